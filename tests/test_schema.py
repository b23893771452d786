"""Spaces become kinds, fields and dtypes in one place; what no algorithm can take is refused by name."""

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete

from rl_training.data.schema import (
    Field,
    Spaces,
    action_field,
    action_kind,
    check_spaces,
    env_action_offset,
    observation_field,
    observation_kind,
    transition_fields,
)
from rl_training.errors import SpaceError
from rl_training.experiment.registry import find_spec

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
        (spaces.MultiDiscrete([2, 3]), None),
        (spaces.Dict({"a": VECTOR}), None),
        (spaces.Tuple([VECTOR]), None),
        (spaces.Text(5), None),
        (Box(0, 1, (0,), np.float32), None),
    ],
    ids=str,
)
def test_the_kind_of_an_observation(space: Any, kind: str | None) -> None:
    assert observation_kind(space) == kind


@pytest.mark.parametrize(
    ("space", "kind"), [(Discrete(3), "discrete"), (VECTOR, "box"), (spaces.MultiDiscrete([2, 2]), None)], ids=str
)
def test_the_kind_of_an_action(space: Any, kind: str | None) -> None:
    assert action_kind(space) == kind


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (VECTOR, np.float32),
        (Box(-1, 1, (3,), np.float64), np.float32),
        (Box(-1, 1, (3,), np.float16), np.float16),
        (Box(0, 9, (3,), np.int32), np.int32),  # a vector of integers is no image
        (Box(0, 255, (8, 8, 3), np.uint8), np.uint8),
        (Box(0, 255, (8, 8, 3), np.int64), np.uint8),
        (Box(0, 1, (8, 8, 3), np.float32), np.float32),
        (Box(0, 1, (8, 8, 3), np.float64), np.float32),
        (Discrete(4), np.int64),
        (spaces.MultiBinary(3), np.int8),
    ],
    ids=str,
)
def test_how_an_observation_is_stored(space: Any, dtype: Any) -> None:
    assert observation_field(space) == Field(tuple(space.shape), np.dtype(dtype))


@pytest.mark.parametrize(("low", "high"), [(0, 256), (-1, 200)])
def test_integer_images_beyond_a_byte_are_refused(low: int, high: int) -> None:
    with pytest.raises(SpaceError, match=rf"integer images must lie in 0\.\.255, but this space spans {low}\.\.{high}"):
        observation_field(Box(low, high, (8, 8, 3), np.int32))


def test_actions_are_stored_as_indices_or_float32() -> None:
    assert action_field(Discrete(3, start=5)) == Field((), np.dtype(np.int64))
    assert action_field(Box(-1, 1, (2,), np.float64)) == Field((2,), np.dtype(np.float32))


def test_the_fields_of_a_transition_in_order() -> None:
    fields = transition_fields(Spaces(VECTOR, TWO))
    assert list(fields) == ["obs", "next_obs", "actions", "rewards", "terminated"]
    assert fields["rewards"] == Field((), np.dtype(np.float32))
    assert fields["terminated"] == Field((), np.dtype(np.bool_))
    assert fields["obs"] == fields["next_obs"] == Field((3,), np.dtype(np.float32))


def test_the_first_action_of_a_discrete_space_may_be_any_number() -> None:
    assert env_action_offset(Discrete(3, start=5)) == 5
    assert env_action_offset(Discrete(3, start=-1)) == -1
    assert env_action_offset(VECTOR) == 0


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
            "dqn needs discrete or image or vector observations, but Pendulum-v1 has Tuple(Discrete(2), Discrete(2))",
        ),
        (
            Box(0, 300, (8, 8, 3), np.int32),
            TWO,
            "integer images must lie in 0..255, but this space spans 0..300: Box(0, 300, (8, 8, 3), int32)",
        ),
    ],
)
def test_spaces_that_dqn_cannot_take_are_refused_by_name(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=f"^{re.escape(message)}$"):
        check_spaces(find_spec("dqn"), Spaces(observation, action), "Pendulum-v1")


@pytest.mark.parametrize("observation", [VECTOR, Discrete(5), Box(0, 255, (84, 84, 4), np.uint8)], ids=str)
def test_spaces_that_dqn_takes_pass(observation: Any) -> None:
    check_spaces(find_spec("dqn"), Spaces(observation, Discrete(3, start=1)), "some env")
