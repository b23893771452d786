"""Deep Q-learning, as far as it is the same whatever a network says about an action: acting, updating, state.

A recipe (dqn.py, c51_dqn.py, qr_dqn.py, iqn.py, fqf.py) brings the network, its Q-values and the loss. Double
selection, dueling streams, noisy layers, n-step returns and prioritized replay are settings that any recipe takes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import accelerate
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.errors import CheckpointError, ConfigError
from rl_training.hparams.dqn import QLearningHParams
from rl_training.learners.optim import ClippedAdam, FlatModule, Optimizer, descend
from rl_training.learners.random_inputs import RandomInput, RandomInputs, uniform
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import HeadStyle, NoisyLayers, noise_factors

Apply = Callable[..., Any]  # (params, obs, ...) -> the network's outputs


class QRecipe(Protocol):
    """What a member of the family brings."""

    @property
    def network(self) -> nn.Module:
        """All that is learnt."""
        ...

    @property
    def q_values(self) -> nn.Module:
        """(batch, *obs) -> (batch, actions), by the network's parameters: what acting looks at."""
        ...

    @property
    def random_inputs(self) -> Mapping[str, int]:
        """Numbers in [0, 1) that the loss needs for each row of a batch: how many, by their name there."""
        ...

    def loss(self, params: Tensor, target_params: Tensor, batch: Batch, apply: Apply) -> Metrics:
        """At least loss, q_value_mean, target_mean, td_error_mean, and td_errors: per row, unweighted, not negative."""
        ...


# --- What the losses share -------------------------------------------------------------------------------------------


def noisy_copies(apply: Apply, batch: Batch) -> tuple[Apply, Apply, Apply]:
    """Give the network as it values the state, as it values the successor and as it selects the successor's action.

    Each has its own noise if the batch brings any, (3, numbers): with shared noise their errors would agree.
    """
    if "noise" not in batch:
        return apply, apply, apply
    online, target, selection = (partial(apply, noise=noise) for noise in batch["noise"].unbind())
    return online, target, selection


def greedy_actions(q_values: Tensor, batch: Batch) -> Tensor:
    """Give the best action of the successor that its mask allows: (batch, actions) -> (batch,)."""
    if "next_action_mask" in batch:
        q_values = q_values.masked_fill(~batch["next_action_mask"], -torch.inf)
    return q_values.argmax(1)


def pick(values: Tensor, actions: Tensor) -> Tensor:
    """Pick one action's numbers in each row: (batch, actions, ...) -> (batch, ...)."""
    index = actions.view(-1, *(1,) * (values.ndim - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """Mean over the rows, with the importance weights of prioritized replay if there are any."""
    return (batch["weights"] * losses).mean() if "weights" in batch else losses.mean()


# --- The learner -----------------------------------------------------------------------------------------------------


class QLearner:
    """Acts epsilon-greedily, or by its noise, on the online network; learns one gradient step per update."""

    def __init__(self, recipe: QRecipe, setup: Setup[QLearningHParams], optimizer: Optimizer | None = None) -> None:
        self.recipe = recipe
        self.hparams = setup.hparams
        self._optimizer = optimizer or adam_of(setup.hparams)
        self.num_actions = int(setup.spaces.action.n)  # type: ignore[attr-defined]
        self.num_updates = 0
        self._device = setup.device
        self._total_timesteps = setup.total_timesteps
        self._total_updates = max(1, setup.hparams.updates_until(setup.total_timesteps))
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "noise", "eval_action")}
        recipe.q_values.to(setup.device)  # the network, and what makes Q-values of its outputs
        self._network = FlatModule(recipe.network)
        self._noisy = NoisyLayers(recipe.network)
        if setup.hparams.noisy and not self._noisy.size:
            raise ConfigError(
                "algo_kwargs.noisy: true needs a network with NoisyLinear layers, "
                f"but {type(recipe.network).__name__} has none"
            )
        self._no_noise = torch.zeros(self._noisy.size, device=setup.device)
        params = self._network.params
        self._state = {**self._optimizer.state(params), "target": params.clone()}
        self._random_inputs: dict[int, RandomInputs] = {}  # by the number of rows
        mode = "eager" if self._noisy.size else setup.acceleration  # a captured graph would keep its first noise
        self._q_values = act_function(recipe.q_values, setup.device, mode)
        self._step = accelerate(self._learn, setup.acceleration, identity=setup.identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        epsilon = self._epsilon(step) if explore else self.hparams.evaluation_epsilon
        generator = self._generators["action" if explore else "eval_action"]
        rows = len(obs)
        # One draw per env: envs that share a draw would explore in lockstep.
        random = generator.random(rows) < epsilon if epsilon > 0.0 else np.zeros(rows, np.bool_)
        if random.all():
            return ActResult(self._random(rows, generator, action_mask))
        if self._noisy.size:  # each env has noise of its own, too
            self._noisy.set(self._acting_noise(rows, generator) if explore else self._no_noise)
        actions = self._greedy(obs, action_mask)
        if random.any():
            actions = np.where(random, self._random(rows, generator, action_mask), actions)
        return ActResult(actions)

    def update(self, batch: Batch) -> UpdateResult:
        if self.hparams.learning_rate_schedule == "linear":
            left = max(0.0, 1.0 - self.num_updates / self._total_updates)
            self._state["learning_rate"].fill_(self.hparams.learning_rate * left)
        metrics = self._step(self._state, batch | self._draw(len(batch["rewards"])))
        self.num_updates += 1
        if self.num_updates % self.hparams.target_update_interval == 0:
            self._state["target"].copy_(self._state["params"])
        return UpdateResult(metrics, td_errors=metrics.pop("td_errors"))

    def status(self, step: int) -> dict[str, float]:
        return {"epsilon": self._epsilon(step)}

    def policy_state_dict(self) -> StateDict:
        return dict(self._network.named(self._state["params"]))

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load(self._state["params"], state)

    def state_dict(self) -> StateDict:
        learning = {name: value for name, value in self._state.items() if name != "params"}
        generators = {name: generator_state(generator) for name, generator in self._generators.items()}
        return {**learning, "num_updates": self.num_updates, "generators": generators}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "generators" not in state:
            raise CheckpointError(
                "the checkpoint lacks the states of the random generators: it can be evaluated, but not continued"
            )
        for name, value in self._state.items():
            if name != "params":
                value.copy_(torch.as_tensor(state[name]))
        self.num_updates = int(state["num_updates"])
        for name, generator in self._generators.items():
            set_generator_state(generator, state["generators"][name])

    def _draw(self, rows: int) -> Batch:
        if rows not in self._random_inputs:
            random_inputs = {
                name: RandomInput((rows, count), uniform) for name, count in self.recipe.random_inputs.items()
            }
            if self._noisy.size:
                random_inputs["noise"] = RandomInput((3, self._noisy.size), _draw_noise_factors)
            self._random_inputs[rows] = RandomInputs(random_inputs, self._device)
        return self._random_inputs[rows].fill(self._generators["noise"])

    def _learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> Metrics:
            return self.recipe.loss(params, state["target"], batch, self._apply)

        return descend(loss, state, self._optimizer)

    def _apply(self, params: Tensor, *inputs: Any, noise: Tensor | None = None) -> Any:
        return self._network.apply(params, *inputs, buffers=None if noise is None else self._noisy.buffers(noise))

    def _epsilon(self, step: int) -> float:
        if step < self.hparams.learning_starts:
            return 1.0  # nothing is learnt yet: the untrained network's preference is no exploration
        return self.hparams.epsilon(step, self._total_timesteps)

    def _acting_noise(self, rows: int, generator: np.random.Generator) -> Tensor:
        normal = generator.standard_normal((rows, self._noisy.size), np.float32)
        return torch.from_numpy(noise_factors(normal)).to(self._device)

    def _greedy(self, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        q_values = self._q_values(obs)
        actions: np.ndarray = (q_values if mask is None else np.where(mask, q_values, -np.inf)).argmax(1)
        return actions

    def _random(self, rows: int, generator: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        if mask is None:
            return generator.integers(self.num_actions, size=rows)
        actions: np.ndarray = np.where(mask, generator.random(mask.shape), -1.0).argmax(1)  # all allowed ones alike
        return actions


def _draw_noise_factors(generator: np.random.Generator, out: np.ndarray) -> None:
    out[:] = noise_factors(generator.standard_normal(out.shape, np.float32))


def adam_of(hparams: QLearningHParams) -> ClippedAdam:
    return ClippedAdam(learning_rate=hparams.learning_rate, eps=hparams.adam_eps, max_grad_norm=hparams.max_grad_norm)


def build_network(setup: Setup[QLearningHParams], kind: Callable[..., nn.Module], **sizes: int) -> nn.Module:
    """Give the user's network, or make one of this kind for the run's spaces: an encoder and the recipe's layers."""
    if setup.network is not None:
        return setup.network
    hparams = setup.hparams
    style = HeadStyle(
        layer_norm=hparams.layer_norm,
        dueling=hparams.dueling,
        noisy_sigma=hparams.noisy_sigma if hparams.noisy else None,
        residual=hparams.network == "simba",
    )
    num_actions = int(setup.spaces.action.n)  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.streams.integer("init"))
        encoder, features = build_encoder(setup.spaces.observation)
        return kind(features, num_actions, hparams.hidden_sizes, encoder, style=style, **sizes)
