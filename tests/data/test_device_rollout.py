"""The rollout on the device: its members' memory in a stack."""

import weakref
from typing import Any

import numpy as np
import pytest

from rl_training.core.spaces import Field
from rl_training.data.device_rollout import DeviceRollout, stack_rollouts

FIELDS = {"rewards": Field((), np.dtype(np.float32)), "obs": Field((3,), np.dtype(np.float32))}


def test_members_release_their_memory_before_the_stack_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [DeviceRollout(4, 2, FIELDS) for _ in range(3)]
    own = [weakref.ref(tensor) for member in members for tensor in member._tensors.values()]
    held, build = list[bool](), DeviceRollout.__init__

    def noting(*args: Any, **kwargs: Any) -> None:
        held.extend(tensor() is not None for tensor in own)
        build(*args, **kwargs)

    monkeypatch.setattr(DeviceRollout, "__init__", noting)
    stack = stack_rollouts(members)
    assert held == [False] * 6
    members[1].at(2)["obs"].fill_(7.0)
    assert stack.rows()["obs"].sum((1, 2)).tolist() == [0.0, 42.0, 0.0]  # 2 envs, 3 numbers, of one step
