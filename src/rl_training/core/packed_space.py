"""A Dict observation space as one row of bytes, and the position of each part in the row.

Envs, workers, buffers and checkpoints then handle one array. The encoder splits the row into its parts again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_WORD = 8  # bytes; the length of a row is a multiple, so that the parts of every row of a batch are aligned


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a Dict observation, and the bytes of the row that hold it."""

    path: tuple[str, ...]  # the keys that lead to it; more than one in a nested Dict
    space: gym.Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # as stored, which may be narrower than that of the space
    start: int  # its first byte in the row

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class PackedSpace(spaces.Box):
    """The elements of a Dict space as bytes; its repr is that of the Dict.

    `leaves` are in the order of the Dict. In the row, the widest items come first, so that all are aligned without
    padding.
    """

    def __init__(self, original: spaces.Dict, dtypes: Mapping[tuple[str, ...], np.dtype[Any]]) -> None:
        """`dtypes`: the dtype in which each leaf is stored, by its path; see `leaf_spaces`."""
        self.original = original
        self._tree = _tree(original)
        leaves = leaf_spaces(original)
        starts, end = {}, 0
        # Equal dtypes are adjacent, so that one check covers all floats.
        for path in sorted(leaves, key=lambda path: (-dtypes[path].itemsize, dtypes[path].str)):
            starts[path] = end
            end += int(np.prod(leaves[path].shape or (), dtype=np.int64)) * dtypes[path].itemsize
        self.leaves = tuple(
            Leaf(path, space, tuple(space.shape or ()), dtypes[path], starts[path]) for path, space in leaves.items()
        )
        super().__init__(0, 255, (-(-end // _WORD) * _WORD,), np.uint8)

    def views(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return a view of each leaf of contiguous `rows`, (*batch, bytes), as an array (*batch, *shape)."""
        batch = rows.shape[:-1]
        views = []
        for leaf in self.leaves:
            inner = np.ndarray(leaf.shape, leaf.dtype).strides
            shape, strides = (*batch, *leaf.shape), (*rows.strides[:-1], *inner)
            views.append(np.ndarray(shape, leaf.dtype, rows.data, leaf.start, strides))
        return views

    def leaf_values(self, obs: Any) -> list[Any]:
        """Return the leaf values of a Dict observation, in the order of `leaves`.

        Raises `ValueError` if its keys are not those of the Dict. The caller puts "an observation" before the message.
        """
        return _leaf_values(obs, self._tree)

    def sample(self, mask: None = None, probability: None = None) -> np.ndarray:
        """Sample a row whose leaves are elements of their spaces; random bytes could be any float, NaN included."""
        obs: Any = self.original.sample()
        row = np.zeros(self.shape, np.uint8)
        for value, view in zip(self.leaf_values(obs), self.views(row), strict=True):
            view[...] = value
        return row

    def seed(self, seed: Any = None) -> Any:
        return self.original.seed(seed)

    def __repr__(self) -> str:
        return repr(self.original)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedSpace) and self.original == other.original


def leaf_spaces(space: spaces.Dict, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], gym.Space[Any]]:
    """Return the leaf spaces of a nested Dict, by the keys that lead to them."""
    leaves: dict[tuple[str, ...], gym.Space[Any]] = {}
    for key, part in space.spaces.items():
        if isinstance(part, spaces.Dict):
            leaves |= leaf_spaces(part, (*path, key))
        else:
            leaves |= {(*path, key): part}
    return leaves


# The keys of a nested Dict; None stands for an array. It is traversed at every step, for which spaces are too slow.
_Tree: TypeAlias = "dict[str, _Tree | None]"


def _tree(space: spaces.Dict) -> _Tree:
    return {key: _tree(part) if isinstance(part, spaces.Dict) else None for key, part in space.spaces.items()}


def _leaf_values(obs: Any, tree: _Tree, path: str = "") -> list[Any]:
    if not isinstance(obs, dict | Mapping) or obs.keys() != tree.keys():
        raise ValueError(_describe_wrong_keys(obs, tree, path))
    values = []
    for key, branch in tree.items():
        if branch is None:
            values.append(obs[key])
        else:
            values += _leaf_values(obs[key], branch, f"{path}{key}.")
    return values


def _describe_wrong_keys(obs: Any, tree: _Tree, path: str) -> str:
    expected = ", ".join(repr(path + key) for key in tree)
    if not isinstance(obs, Mapping):
        whose = f"whose part {path[:-1]!r}" if path else "that"
        return f"{whose} is of type {type(obs).__name__}, but the space declares a dict of {expected}"
    missing, unknown = (
        ", ".join(repr(f"{path}{key}") for key in keys) for keys in (tree.keys() - obs.keys(), obs.keys() - tree.keys())
    )
    found = f"without the part {missing}" if missing else f"with the unknown part {unknown}"
    return f"{found}; the space declares {expected}"
