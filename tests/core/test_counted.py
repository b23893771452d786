"""Numbers of things in messages."""

import pytest

from rl_training.core.counted import counted


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 members"), (1, "1 member"), (2, "2 members"), (1_000, "1,000 members")]
)
def test_one_thing_is_named_in_the_singular(count: int, expected: str) -> None:
    assert counted(count, "member") == expected
