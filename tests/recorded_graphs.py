"""A stand-in for `torch.cuda.CUDAGraph` that works on the CPU."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class RecordedGraph(TorchDispatchMode):
    """Record operations and repeat them on the same memory, as `torch.cuda.CUDAGraph` does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self.overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Detached tensors share the memory but keep their shape if the operation changes the original's.
        kept = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}))
        before = args[0].clone() if func._schema.is_mutable else None
        outputs = func(*args, **(kwargs or {}))
        if before is not None and args[0].shape != before.shape:  # e.g. `unsqueeze_`, which changes no number
            return outputs
        if before is not None:
            self.overwritten.append((kept[0][0], before))
        self.operations.append((func, *kept, tree_map_only(torch.Tensor, torch.Tensor.detach, tree_leaves(outputs))))
        return outputs

    def __exit__(self, *error: Any) -> None:
        """Restore the overwritten tensors: capturing a graph runs nothing."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for place, before in reversed(self.overwritten):
            place.copy_(before)

    def replay(self) -> None:
        for func, args, kwargs, places in self.operations:
            for place, value in zip(places, tree_leaves(func(*args, **kwargs)), strict=True):
                # Views and in-place results already lie in the recorded memory.
                if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():
                    place.copy_(value)
