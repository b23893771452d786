"""Spaces become kinds, fields and dtypes in one place; unsupported spaces are refused by name."""

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete

from rl_training.core.spaces import (
    Field,
    Spaces,
    action_field,
    action_kind,
    mask_size,
    observation_field,
    observation_kind,
    pack_space,
    to_env_actions,
    transition_fields,
)
from rl_training.errors import SpaceError
from rl_training.experiment.registry import find_spec
from rl_training.experiment.space_checks import check_spaces

TWO = Discrete(2)
VECTOR = Box(-1.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (VECTOR, "vector"),
        (Box(-1, 1, (), np.float32), "vector"),
        (Box(-1, 1, (2, 3), np.float32), "vector"),  # flattened
        (Box(0, 9, (4,), np.int64), "vector"),
        (spaces.MultiBinary(5), "vector"),
        (Box(0, 255, (84, 84), np.uint8), "image"),  # grey
        (Box(0, 255, (84, 84, 3), np.uint8), "image"),
        (Box(0, 1, (84, 84, 3), np.float32), "image"),
        (Box(-1, 1, (2, 3, 4, 5), np.float32), "vector"),
        (Discrete(4), "discrete"),
        (Box(0, 255, (4, 96, 96, 3), np.uint8), "image"),  # stacked colour frames
        (Box(0, 255, (4, 3, 96, 96), np.uint8), "image"),
        (Box(0, 255, (9, 9, 9, 9), np.uint8), "vector"),
        (spaces.MultiDiscrete([2, 3]), "discrete"),
        (spaces.MultiDiscrete(np.full((7, 7, 3), 11)), "image"),  # a grid of categories
        (spaces.MultiDiscrete(np.full((2, 7), 11)), "discrete"),
        (spaces.MultiDiscrete(np.arange(1, 10).reshape(3, 3)), "discrete"),
        (spaces.Dict({"a": VECTOR}), None),  # only after it is packed
        (pack_space(spaces.Dict({"a": VECTOR})), "dict"),
        (spaces.Tuple([VECTOR]), None),
        (spaces.Text(5), None),
        (Box(0, 1, (0,), np.float32), None),
    ],
    ids=str,
)
def test_the_kind_of_an_observation(space: Any, kind: str | None) -> None:
    assert observation_kind(space) == kind


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (Discrete(3), "discrete"),
        (VECTOR, "box"),
        (Box(0, 9, (2,), np.int64), None),
        (spaces.MultiDiscrete([2, 2]), "multidiscrete"),
        (spaces.MultiDiscrete(np.array([[2, 2]])), None),
        (spaces.MultiBinary(2), "multibinary"),
        (spaces.Tuple([TWO]), None),
    ],
    ids=str,
)
def test_the_kind_of_an_action(space: Any, kind: str | None) -> None:
    assert action_kind(space) == kind


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (VECTOR, np.float32),
        (Box(-1, 1, (3,), np.float64), np.float32),
        (Box(-1, 1, (3,), np.float16), np.float16),
        (Box(0, 9, (3,), np.int32), np.int32),  # a vector of integers is not an image
        (Box(0, 255, (8, 8, 3), np.uint8), np.uint8),
        (Box(0, 255, (8, 8, 3), np.int64), np.uint8),
        (Box(0, 1, (8, 8, 3), np.float32), np.float32),
        (Box(0, 1, (8, 8, 3), np.float64), np.float32),
        (Discrete(4), np.int64),
        (spaces.MultiBinary(3), np.int8),
        (spaces.MultiDiscrete([2, 3]), np.int64),
        (spaces.MultiDiscrete(np.full((7, 7, 3), 11)), np.uint8),
        (pack_space(spaces.Dict({"a": Box(-1, 1, (3,), np.float64), "b": Discrete(4)})), np.uint8),
        (pack_space(spaces.Tuple([VECTOR, Discrete(4)])), np.uint8),
    ],
    ids=str,
)
def test_how_an_observation_is_stored(space: Any, dtype: Any) -> None:
    assert observation_field(space) == Field(tuple(space.shape), np.dtype(dtype))


@pytest.mark.parametrize(("low", "high"), [(0, 256), (-1, 200)])
def test_integer_images_beyond_a_byte_are_refused(low: int, high: int) -> None:
    with pytest.raises(SpaceError, match=rf"integer images must be in 0\.\.255, but this space spans {low}\.\.{high}"):
        observation_field(Box(low, high, (8, 8, 3), np.int32))


CANNOT = "the part 'a.b' of the observation space cannot be "


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (spaces.Text(5), CANNOT + "encoded: it is Text("),
        (spaces.Sequence(TWO), CANNOT + "encoded: it is Sequence("),
        (spaces.Graph(VECTOR, None), CANNOT + "encoded: it is Graph("),
        (Box(0, 1, (0,), np.float32), CANNOT + "encoded: it is Box("),
        (Box(0, 300, (8, 8, 3), np.int32), CANNOT + "stored: integer images must be in 0..255"),
        pytest.param(
            Box(0, 1, (2,), np.longdouble),
            CANNOT + f"stored: its dtype is {np.dtype(np.longdouble)}",
            marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize <= 8, reason="no numbers of more bits here"),
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unsupported_parts_of_a_dict_are_refused_by_name(part: Any, message: str) -> None:
    space = spaces.Dict({"a": spaces.Dict({"b": part}), "c": VECTOR})
    with pytest.raises(SpaceError, match=re.escape(message)):
        pack_space(space)


def test_a_dict_without_parts_or_with_two_of_a_name_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"the observation space has no parts: it is Dict\(\)"):
        pack_space(spaces.Dict())
    with pytest.raises(SpaceError, match=r"two parts named 'a\.b'"):
        pack_space(spaces.Dict({"a": spaces.Dict({"b": VECTOR}), "a.b": VECTOR}))


def test_actions_are_stored_as_indices_or_float32() -> None:
    assert action_field(Discrete(3, start=5)) == Field((), np.dtype(np.int64), choices=3)
    assert action_field(Box(-1, 1, (2,), np.float64)) == Field((2,), np.dtype(np.float32))


def test_the_fields_of_a_transition_in_order() -> None:
    fields = transition_fields(Spaces(VECTOR, TWO))
    assert list(fields) == ["obs", "next_obs", "actions", "rewards", "terminated"]
    assert fields["rewards"] == Field((), np.dtype(np.float32))
    assert fields["terminated"] == Field((), np.dtype(np.bool_))
    assert fields["obs"] == fields["next_obs"] == Field((3,), np.dtype(np.float32))


def test_the_first_action_of_a_discrete_space_may_be_any_number() -> None:
    assert to_env_actions(Discrete(3, start=5))(np.array([0, 2])).tolist() == [5, 7]
    assert to_env_actions(Discrete(3, start=-1))(np.array([0, 2])).tolist() == [-1, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_at_the_ends_are_within_the_bounds_of_the_space(dtype: Any) -> None:
    high = np.array([0.1, 0.7], dtype)  # float32 rounds the first one up and the second one down
    space = Box(-high, high, dtype=dtype)
    ends = np.array([[-1.0, -1.0], [1.0, 1.0]], np.float32)
    for action in to_env_actions(space)(ends).astype(dtype):
        assert space.contains(action)


@pytest.mark.parametrize(
    ("space", "size"), [(Discrete(4), 4), (Discrete(4, start=7), 4), (spaces.MultiDiscrete([3, 2]), 5)], ids=str
)
def test_an_action_mask_has_a_flag_per_choice(space: Any, size: int) -> None:
    assert mask_size(space) == size


@pytest.mark.parametrize("space", [VECTOR, spaces.MultiBinary(3)], ids=str)
def test_other_actions_have_no_masks(space: Any) -> None:
    with pytest.raises(SpaceError, match=r"action masks need a Discrete or MultiDiscrete action space, but it is"):
        mask_size(space)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (
            VECTOR,
            Box(-2.0, 2.0, (1,), np.float32),
            "dqn needs a discrete action space, but Pendulum-v1 has Box(-2.0, 2.0, (1,), float32)",
        ),
        (
            VECTOR,
            spaces.MultiDiscrete([2, 2]),
            "dqn needs a discrete action space, but Pendulum-v1 has MultiDiscrete([2 2])",
        ),
        (
            spaces.Tuple([TWO, TWO]),
            TWO,
            "dqn needs dict or discrete or image or vector observations, "
            "but Pendulum-v1 has Tuple(Discrete(2), Discrete(2))",
        ),
        (
            Box(0, 300, (8, 8, 3), np.int32),
            TWO,
            "integer images must be in 0..255, but this space spans 0..300: Box(0, 300, (8, 8, 3), int32)",
        ),
    ],
)
def test_spaces_that_dqn_does_not_support_are_refused_by_name(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=f"^{re.escape(message)}$"):
        check_spaces(find_spec("dqn"), Spaces(observation, action), "Pendulum-v1")


@pytest.mark.parametrize(
    "observation",
    [VECTOR, Discrete(5), Box(0, 255, (84, 84, 4), np.uint8), pack_space(spaces.Dict({"a": VECTOR}))],
    ids=str,
)
def test_spaces_that_dqn_supports_pass(observation: Any) -> None:
    check_spaces(find_spec("dqn"), Spaces(observation, Discrete(3, start=1)), "some env")
