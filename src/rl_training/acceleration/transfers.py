"""Memory that the host fills and the device reads: copied in one transfer, which the host does not wait for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORD = 8  # bytes
_FIXED = "_at_fixed_place"


class Block:
    """Memory on the host and on its device; on the CPU both are the same."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        words, is_cuda = -(-num_bytes // WORD), device.type == "cuda"
        self.host = torch.empty(words, dtype=torch.int64, pin_memory=is_cuda)  # only pinned memory needs no waiting
        self.on_device = self.host if device.type == "cpu" else self.host.to(device)
        self._copied = torch.cuda.Event() if is_cuda else None

    def wait(self) -> None:
        """Wait until the last transfer has read `host`. Call it before writing there again."""
        if self._copied is not None:
            self._copied.synchronize()

    def transfer(self) -> None:
        """Start the copy to the device. Operations that are launched later see the new numbers."""
        if self.on_device is not self.host:
            self.on_device.copy_(self.host, non_blocking=self._copied is not None)
            if self._copied is not None:
                self._copied.record()


def mark_fixed(tensors: Mapping[str, Tensor]) -> None:
    """Mark tensors whose owner writes new numbers into the same memory before each use.

    A captured step reads them where they are, instead of a copy.
    """
    for tensor in tensors.values():
        setattr(tensor, _FIXED, True)


def is_fixed(tensor: Tensor) -> bool:
    return hasattr(tensor, _FIXED)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
