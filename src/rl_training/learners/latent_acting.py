"""Acting in states that a world model infers from all observations of an episode."""

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.steps import accelerate
from rl_training.core.types import ActResult, Batch, Carry, Metrics, State
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.random_inputs import FILLS, uniform
from rl_training.models.dreamer import WorldModel


class LatentActing:
    """Chooses actions by the actor; the carry holds the features of the state and the last actions, encoded."""

    def __init__(self, world: FlatModule, actor: FlatModule, policy: State, acceleration: str) -> None:
        """`policy`: the parameters of both networks, `world_model.params` and `actor.params`."""
        assert isinstance(world.module, WorldModel)
        self._world, self._actor, self._policy = world, actor, policy
        self._actions = actions = world.module.actions
        self._carry_sizes = {"features": world.module.sizes.features, "previous": actions.num_inputs}
        self._noise = [
            ("noise", world.module.sizes.latents, uniform),
            ("action_noise", actions.noise_size, FILLS[actions.noise]),
        ]
        # Compiling the acting step for each number of rows takes longer than it saves.
        mode = "eager" if acceleration == "compile" else acceleration
        self._choose_in_place = accelerate(self._choose, mode, "acting step", capture_plain=True)

    def act(self, obs: np.ndarray, carry: Carry | None, generator: np.random.Generator | None) -> ActResult:
        """Sample states and actions by the generator; without one, take the most likely ones."""
        rows = len(obs)
        if carry is None:
            carry = {name: np.zeros((rows, size), np.float32) for name, size in self._carry_sizes.items()}
        batch = {name: self._tensor(values) for name, values in {"obs": obs, **carry}.items()}
        if generator is not None:
            for name, size, fill in self._noise:
                fill(generator, noise := np.empty((rows, size), np.float32))
                batch[name] = self._tensor(noise)
        result = self._choose_in_place(self._policy, batch)
        actions = result.pop("actions").cpu().numpy()
        return ActResult(actions, {name: values.cpu().numpy() for name, values in result.items()})

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self._world.params.device)  # a copy: see acceleration/acting.py

    def _choose(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Sample where the batch has noise, else take the most likely state and action; nothing is learned."""
        inputs = (batch["obs"], batch["features"], batch["previous"], batch.get("noise"))
        features = self._world.apply(state["world_model.params"], WorldModel.filter, *inputs)
        actions = self._actions.draw(self._actor.apply(state["actor.params"], features), batch.get("action_noise"))
        return {}, {"actions": actions, "features": features, "previous": self._actions.encode(actions)}
