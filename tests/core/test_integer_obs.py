"""The largest value of integer observations: from the bound of the space, or from what was seen."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete

from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.integer_obs import decide_obs_max, integer_parts, undecided_parts, with_obs_max
from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import pack_space
from rl_training.errors import ConfigError

IMAGE = Box(0, 255, (7, 7, 3), np.uint8)
RAM = Box(0, 255, (128,), np.uint8)
PACKED = pack_space(
    spaces.Dict({"grid": IMAGE, "dice": Discrete(6), "few": Box(0, 3, (5, 5), np.uint8), "speed": Box(-1, 1, (2,))})
)


@pytest.mark.parametrize(
    ("space", "seen", "decided"),
    [
        (IMAGE, {"": 10}, 10),
        (IMAGE, {"": 31}, 31),
        (IMAGE, {"": 32}, 255),  # dark pixels
        (IMAGE, {"": 0}, 255),  # nothing was seen
        (RAM, {"": 200}, 255),
        (Box(0, 10, (7, 7, 3), np.uint8), {}, 10),
        (Box(0, 40, (7, 7, 3), np.int64), {}, 40),
        (PACKED, {"grid": 8}, {"grid": 8, "few": 3}),
        (Box(0, 1, (7, 7, 3), np.float32), {}, None),
        (spaces.MultiBinary(4), {}, None),
        (Box(0, 255, (4,), np.int32), {}, None),
        (Discrete(4), {}, None),
    ],
    ids=str,
)
def test_the_bound_decides_unless_it_is_that_of_pixels_and_only_small_values_were_seen(
    space: Any, seen: dict[str, int], decided: Any
) -> None:
    assert decide_obs_max(space, seen) == decided


def test_only_parts_with_the_range_of_pixels_are_undecided() -> None:
    assert list(integer_parts(PACKED)) == ["few", "grid"]
    assert undecided_parts(PACKED) == ["grid"]
    assert undecided_parts(RAM) == [""]
    assert undecided_parts(Box(-1, 1, (3,))) == []


def test_the_space_takes_the_decided_bound() -> None:
    assert with_obs_max(IMAGE, 10, one_hot=False) == Box(0, 10, (7, 7, 3), np.uint8)
    assert with_obs_max(IMAGE, 255, one_hot=False) is IMAGE
    stack = FrameStackSpace(4, (4, 84, 84))
    assert with_obs_max(stack, 255, one_hot=False) is stack
    assert with_obs_max(stack, 9, one_hot=False) == FrameStackSpace(4, (4, 84, 84), high=9)
    assert with_obs_max(Box(-1, 1, (3,)), 255, one_hot=False) == Box(-1, 1, (3,))


def test_one_hot_makes_a_grid_of_categories_of_images_only() -> None:
    assert with_obs_max(IMAGE, 10, one_hot=True) == spaces.MultiDiscrete(np.full((7, 7, 3), 11))
    assert with_obs_max(RAM, 10, one_hot=True) == Box(0, 10, (128,), np.uint8)


def test_parts_take_their_own_bound_and_stay_where_they_are() -> None:
    new = with_obs_max(PACKED, {"grid": 8}, one_hot=False)
    assert isinstance(new, PackedSpace)
    assert [leaf.space for leaf in new.leaves if leaf.name == "grid"] == [Box(0, 8, (7, 7, 3), np.uint8)]
    places = [[(leaf.name, leaf.start, leaf.dtype) for leaf in space.leaves] for space in (PACKED, new)]
    assert places[0] == places[1]
    grid = with_obs_max(PACKED, {"grid": 8}, one_hot=True)
    assert isinstance(grid, PackedSpace)
    assert [leaf.dtype for leaf in grid.leaves if leaf.name == "grid"] == [np.uint8]


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"obs_max: .* has no integer part 'image'; it has 'few', 'grid'"):
        with_obs_max(PACKED, {"image": 8}, one_hot=False)
