"""Checks at the door of a loss: a wrong rank would broadcast and a wrong dtype would cast, both silently.

They look at shapes and dtypes alone, so that a compiled step pays nothing for them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

FLOATS, INDICES, FLAGS, ANY = "floating point", "int64", "bool", "any dtype"


class Expected(NamedTuple):
    """What a tensor must be: its dtype, and its dimensions by name, such as "batch actions".

    Equal names are equal sizes. A dimension "..." at the end stands for any number of further ones.
    """

    dtype: str
    dims: str


# Entries that several losses read; those that a batch lacks are not checked.
TRANSITIONS = {
    "obs": Expected(ANY, "batch ..."),
    "next_obs": Expected(ANY, "batch ..."),
    "rewards": Expected(FLOATS, "batch"),
    "terminated": Expected(FLAGS, "batch"),
    "discounts": Expected(FLOATS, "batch"),  # of n-step returns
    "weights": Expected(FLOATS, "batch"),  # of prioritized replay
}
CHOICES = {**TRANSITIONS, "actions": Expected(INDICES, "batch"), "next_action_mask": Expected(FLAGS, "batch actions")}
BOX_ACTIONS = {**TRANSITIONS, "actions": Expected(FLOATS, "batch ..."), "next_noise": Expected(FLOATS, "batch numbers")}


def check_tensors(loss: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Expected]) -> None:
    """Raise ValueError for a wrong shape and TypeError for a wrong dtype; `loss` is the name in the message."""
    sizes: dict[str, int] = {}
    for name, (dtype, dims) in expected.items():
        if name not in tensors:
            continue
        tensor, wanted = tensors[name], dims.split()
        if not _has_dtype(tensor, dtype):
            raise TypeError(f"{loss}: {name} must be {dtype}, got {tensor.dtype}")
        is_open = wanted[-1:] == ["..."]
        named = wanted[:-1] if is_open else wanted
        fits = tensor.ndim >= len(named) if is_open else tensor.ndim == len(named)
        if not fits or any(sizes.setdefault(dim, size) != size for dim, size in zip(named, tensor.shape, strict=False)):
            known = ", ".join(f"{dim} = {sizes[dim]}" for dim in named if dim in sizes)
            raise ValueError(
                f"{loss}: {name} must have the shape ({', '.join(wanted)})"
                f"{f' with {known}' if known else ''}, got {tuple(tensor.shape)}"
            )


def _has_dtype(tensor: Tensor, dtype: str) -> bool:
    if dtype == FLOATS:
        return tensor.is_floating_point()
    return dtype == ANY or tensor.dtype == {INDICES: torch.int64, FLAGS: torch.bool}[dtype]
