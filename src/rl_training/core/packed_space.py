"""A Dict or Tuple observation space as one row of bytes, and the position of each part in the row.

Envs, workers, buffers and checkpoints then handle one array. The encoder splits the row into its parts again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Composite: TypeAlias = spaces.Dict | spaces.Tuple  # type: ignore[type-arg]

_WORD = 8  # bytes; the length of a row is a multiple, so that the parts of every row of a batch are aligned


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a Dict or Tuple observation, and the bytes of the row that hold it."""

    path: tuple[str, ...]  # the keys and positions that lead to it; more than one in a nested space
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
    """The elements of a Dict or Tuple space as bytes; its repr is that of the original.

    `leaves` are in the order of the original. In the row, the widest items come first, so that all are aligned without
    padding.
    """

    def __init__(self, original: Composite, dtypes: Mapping[tuple[str, ...], np.dtype[Any]]) -> None:
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
        """Return the leaf values of an observation, in the order of `leaves`.

        Raises `ValueError` if its keys or its length are not those of the space. The caller puts "an observation"
        before the message.
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


def leaf_spaces(space: Composite, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], gym.Space[Any]]:
    """Return the leaf spaces of a nested space, by the keys and positions that lead to them."""
    leaves: dict[tuple[str, ...], gym.Space[Any]] = {}
    for key, part in _parts(space).items():
        if isinstance(part, Composite):
            leaves |= leaf_spaces(part, (*path, key))
        else:
            leaves |= {(*path, key): part}
    return leaves


def replace_leaves(space: PackedSpace, new: Mapping[str, gym.Space[Any]]) -> PackedSpace:
    """Return the space with other leaf spaces, by name; they have the shapes and stored dtypes of the old ones."""

    def replaced(part: gym.Space[Any], path: tuple[str, ...]) -> gym.Space[Any]:
        if not isinstance(part, Composite):
            return new.get(".".join(path), part)
        parts = {key: replaced(inner, (*path, key)) for key, inner in _parts(part).items()}
        return spaces.Tuple(list(parts.values())) if isinstance(part, spaces.Tuple) else spaces.Dict(parts)

    original: Any = replaced(space.original, ())
    return PackedSpace(original, {leaf.path: leaf.dtype for leaf in space.leaves})


def _parts(space: Composite) -> dict[str, gym.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return {str(position): part for position, part in enumerate(space.spaces)}


# The keys of a nested Dict, a list for a Tuple; None stands for an array. It is traversed at every step, for which
# spaces are too slow.
_Tree: TypeAlias = "dict[str, _Tree | None] | list[_Tree | None]"


def _tree(space: Composite) -> _Tree:
    branches = {key: _tree(part) if isinstance(part, Composite) else None for key, part in _parts(space).items()}
    return list(branches.values()) if isinstance(space, spaces.Tuple) else branches


def _leaf_values(obs: Any, tree: _Tree, path: str = "") -> list[Any]:
    if isinstance(tree, list):
        if not isinstance(obs, tuple | list) or len(obs) != len(tree):
            raise ValueError(_describe_wrong_length(obs, tree, path))
        branches = [(str(position), obs[position], branch) for position, branch in enumerate(tree)]
    else:
        if not isinstance(obs, dict | Mapping) or obs.keys() != tree.keys():
            raise ValueError(_describe_wrong_keys(obs, tree, path))
        branches = [(key, obs[key], branch) for key, branch in tree.items()]
    values = []
    for key, value, branch in branches:
        if branch is None:
            values.append(value)
        else:
            values += _leaf_values(value, branch, f"{path}{key}.")
    return values


def _describe_wrong_length(obs: Any, tree: "list[_Tree | None]", path: str) -> str:
    whose = f"whose part {path[:-1]!r}" if path else "that"
    found = f"a tuple of {len(obs)}" if isinstance(obs, tuple | list) else f"of type {type(obs).__name__}"
    return f"{whose} is {found}, but the space declares a tuple of {len(tree)}"


def _describe_wrong_keys(obs: Any, tree: "dict[str, _Tree | None]", path: str) -> str:
    expected = ", ".join(repr(path + key) for key in tree)
    if not isinstance(obs, Mapping):
        whose = f"whose part {path[:-1]!r}" if path else "that"
        return f"{whose} is of type {type(obs).__name__}, but the space declares a dict of {expected}"
    missing, unknown = (
        ", ".join(repr(f"{path}{key}") for key in keys) for keys in (tree.keys() - obs.keys(), obs.keys() - tree.keys())
    )
    found = f"without the part {missing}" if missing else f"with the unknown part {unknown}"
    return f"{found}; the space declares {expected}"
