"""Record pairs of inputs and outputs of a policy in episodes of its environment."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rl_training.core.packed_space import PackedSpace
from rl_training.core.types import Algorithm, Carry, act_on
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.exporting.contract import FIRST
from rl_training.exporting.module import PolicyModule
from rl_training.runtime.episodes import play_episode

Columns = dict[str, list[np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRecorder:
    """Plays the policy and notes what it takes and returns.

    `algorithm`: chooses the actions, as in evaluations. None: the module does, because the algorithm would add chance.
    """

    module: PolicyModule
    algorithm: Algorithm | None
    factory: EnvFactory

    def record(self, count: int, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Return `count` pairs of the episodes with these seeds; of a recurrent policy, at least a whole episode."""
        names = [port.name for port in (*self.module.inputs, *self.module.outputs)]
        columns: Columns = {name: [] for name in (*names, FIRST)}
        with contextlib.closing(SyncEnvs(self.factory)) as envs:
            for number, seed in enumerate(seeds):
                act = self._follow_episode(columns)
                for step in play_episode(envs, act, seed=seed, number=number):
                    columns["action"][-1] = step.actions  # as the environment received them
                    ended = bool(step.result.ended) or step.cut
                    if len(columns[FIRST]) >= count and (not self.module.policy.carry or number or ended):
                        return {name: np.concatenate(rows) for name, rows in columns.items()}
        return {name: np.concatenate(rows) for name, rows in columns.items()}

    def _follow_episode(self, columns: Columns) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
        """Return a function that acts in one episode and appends the inputs and outputs of each step to `columns`."""
        sizes = self.module.policy.carry
        own_carry: Carry | None = None  # of the algorithm
        carry = {name: np.zeros((1, size), np.float32) for name, size in sizes.items()}
        first = True

        def act(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
            nonlocal own_carry, carry, first
            inputs = self._inputs(obs, mask, carry)
            with torch.inference_mode():
                tensors = [torch.tensor(inputs[port.name]) for port in self.module.inputs]
                decision = self.module.decide(*tensors)
                values = self.module.all_outputs(decision)
            outputs = {port.name: rows.numpy() for port, rows in zip(self.module.outputs, values, strict=True)}
            actions = decision.actions.numpy()
            if self.algorithm is not None:
                chosen = act_on(self.algorithm, obs, own_carry, step=0, action_mask=mask)
                actions, own_carry = chosen.actions, chosen.carry
                outputs |= {f"next_{name}": chosen.carry[name] for name in sizes} if chosen.carry else {}
            for name, row in {**inputs, **outputs, FIRST: np.array([first])}.items():
                columns[name].append(row)
            carry, first = {name: outputs[f"next_{name}"] for name in sizes}, False
            return actions

        return act

    def _inputs(self, obs: np.ndarray, mask: np.ndarray | None, carry: Carry) -> dict[str, np.ndarray]:
        space = self.module.observation_space
        parts = space.views(np.ascontiguousarray(obs)) if isinstance(space, PackedSpace) else [obs]
        others = [*([mask] if self.module.has_mask else []), *carry.values()]
        return {port.name: np.array(values) for port, values in zip(self.module.inputs, [*parts, *others], strict=True)}
