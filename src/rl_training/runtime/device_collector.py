"""The collector of a run on the device: its environments are tensors, and their state is what a resume needs."""

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.acceleration.step_checks import copy_tensors
from rl_training.core.state_checks import stored_array
from rl_training.core.types import State, StateDict
from rl_training.envs.tensor_env import TensorEnvs
from rl_training.errors import CheckpointError
from rl_training.runtime.collector import Episode


class DeviceCollector:
    """Holds tensor environments and the state that the device loop changes in place."""

    replayable, exact = True, True
    exactness = "exact: the state of the environments is saved"

    def __init__(self, envs: TensorEnvs) -> None:
        self.envs = envs
        self.state: State = {}
        self.finished: list[Episode] = []  # until a callback reads them and clears the list
        self.inexact_restores: list[int] = []

    def start(self) -> None:
        # An environment may return one tensor under two names, such as a place and the place before it.
        self.state = copy_tensors(self.envs.start())

    def state_dict(self) -> StateDict:
        tensors = {name: value.cpu().clone() for name, value in self.state.items()}
        # A reader counts the open episodes by their numbers.
        return {"envs": tensors, "numbers": self.state["episode"].tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.start()
        saved = state["envs"]
        if not isinstance(saved, Mapping) or saved.keys() != self.state.keys():
            raise CheckpointError(f"the saved environments must hold {', '.join(self.state)}, found {str(saved)[:80]}")
        for name, value in self.state.items():
            array = stored_array(saved[name], f"the environments' {name}", tuple(value.shape))
            value.copy_(torch.from_numpy(array.copy()))

    def close(self) -> None:
        pass
