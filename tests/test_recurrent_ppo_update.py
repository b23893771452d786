"""Recurrent PPO: updates against plain PyTorch, bootstrapping, stored states, the carry, and learning to recall."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from builders import make_config
from rl_training.acceleration.compiled_steps import trace
from rl_training.acceleration.steps import _write_in_place
from rl_training.algorithms.recurrent_ppo import RecurrentPPO, build_recurrent_ppo
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch
from rl_training.data.recurrent_rollouts import build_recurrent_rollouts
from rl_training.envs.factory import make_envs
from rl_training.envs.memory_tasks import Recall
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.recurrent_ppo import RecurrentPPOHParams
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import RunOptions, train

BOX = Box(-1.0, 1.0, (2,), np.float32)


def make_recurrent_setup(action: gym.Space[Any] | None = None, num_envs: int = 2, **hparams: Any) -> Setup[Any]:
    """Rollouts of 6 steps in 2 envs, minibatches of one sequence of 6 steps."""
    small = {"hidden_sizes": (8,), "cell_size": 4, "num_steps": 6, "minibatch_size": 6, "update_epochs": 2}
    return Setup(
        spaces=Spaces(Box(-1.0, 1.0, (3,), np.float32), action or Discrete(2), False),
        hparams=RecurrentPPOHParams(**{**small, "normalize": "none", **hparams}),
        total_timesteps=1_000,
        total_updates=1_000,
        streams=Streams(0),
        num_envs=num_envs,
    )


def collected(setup: Setup[Any], seed: int = 0, *, ends: float = 0.2, carry: float = 0.5) -> Batch:
    """A rollout of random steps; a fraction `ends` terminates, the same is truncated; the carry at first is random."""
    memory = build_recurrent_rollouts(setup)
    rng = np.random.default_rng(seed)
    envs, began = setup.num_envs, np.zeros(setup.num_envs, np.bool_)
    setup.spaces.action.seed(seed)
    while not memory.full:
        parts = {f"carry_{name}": rng.normal(scale=carry, size=(envs, size)) for name, size in memory._sizes.items()}
        step = {
            "obs": rng.normal(size=(envs, 3)).astype(np.float32),
            "next_obs": rng.normal(size=(envs, 3)).astype(np.float32),
            "actions": np.stack([setup.spaces.action.sample() for _ in range(envs)]),
            "rewards": rng.normal(size=envs),
            "terminated": rng.random(envs) < ends,
            "truncated": rng.random(envs) < ends,
            "starts": began,
            **parts,
        }
        memory.add(step)
        began = step["terminated"] | step["truncated"]
    return memory.rollout()


def params_of(algorithm: RecurrentPPO) -> Tensor:
    return algorithm._state["params"].clone()


# --- The update ------------------------------------------------------------------------------------------------------


class PlainRecurrentPPO:
    """Recurrent PPO step by step and episode by episode, with torch.optim and torch.distributions."""

    def __init__(self, setup: Setup[Any], network: nn.Module) -> None:
        self.setup, self.hparams, self.network = setup, setup.hparams, network
        for parameter in network.parameters():
            parameter.data = parameter.data.clone()
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=self.hparams.learning_rate, eps=1e-5)
        self.shuffle = Streams(setup.streams.seed).numpy("shuffle")

    def unroll(self, rollout: Batch, env: int, first: int, length: int, state: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs of some steps of an env, (length, outputs + 1), and the state after each, (1, numbers)."""
        outputs, states = [], []
        for step in range(first, first + length):
            row = step * self.setup.num_envs + env
            if rollout["starts"][row]:
                state = torch.zeros_like(state)
            output, after = self.network(rollout["obs"][row : row + 1], state, torch.zeros((1, 1), dtype=torch.bool))
            outputs.append(output[0])
            state = after[0]
            states.append(state)
        return torch.stack(outputs), states

    def policy(self, outputs: Tensor) -> Any:
        if isinstance(self.setup.spaces.action, Box):
            return torch.distributions.Independent(torch.distributions.Normal(outputs[:, :2], outputs[:, 2:4].exp()), 1)
        return torch.distributions.Categorical(logits=outputs[:, :2])

    def update(self, rollout: Batch) -> None:
        hparams, (steps, envs) = self.hparams, (self.hparams.num_steps, self.setup.num_envs)
        length = hparams.sequence_length
        rows = torch.arange(steps * envs).view(steps, envs)
        values, advantages = torch.zeros(steps, envs), torch.zeros(steps, envs)
        old = torch.zeros(steps, envs)
        begin: dict[int, Tensor] = {}
        final = dict(zip(rollout["final_rows"].tolist(), rollout["final_obs"], strict=True))
        with torch.no_grad():
            for env in range(envs):
                outputs, states = self.unroll(rollout, env, 0, steps, rollout["carry"][env : env + 1])
                values[:, env] = outputs[:, -1]
                old[:, env] = self.policy(outputs).log_prob(rollout["actions"][rows[:, env]])
                for number in range(steps // length):
                    before = states[number * length - 1] if number else rollout["carry"][env : env + 1]
                    begin[number * envs + env] = before
                after = torch.zeros(())
                for step in reversed(range(steps)):
                    row = int(rows[step, env])
                    terminated, truncated = bool(rollout["terminated"][row]), bool(rollout["truncated"][row])
                    if row in final:  # the true successor, seen in the state after this step
                        no_start = torch.zeros((1, 1), dtype=torch.bool)
                        next_value = self.network(final[row][None], states[step], no_start)[0][0, -1]
                    else:
                        next_value = values[step + 1, env]
                    delta = rollout["rewards"][row] + hparams.gamma * next_value * (not terminated) - values[step, env]
                    after = delta + hparams.gamma * hparams.gae_lambda * after * (not (terminated or truncated))
                    advantages[step, env] = after
        returns = advantages + values
        for _ in range(hparams.update_epochs):
            order = self.shuffle.permutation(steps // length * envs)
            for chosen in order.reshape(-1, hparams.minibatch_size // length):
                parts = []
                for sequence in chosen:
                    env, first = sequence % envs, sequence // envs * length
                    outputs, _ = self.unroll(rollout, env, first, length, begin[sequence])
                    here = slice(first, first + length)
                    picked = [values[here, env], advantages[here, env], returns[here, env], old[here, env]]
                    parts.append((outputs, rollout["actions"][rows[here, env]], *picked))
                outputs, actions, _, gain, target, old_log_probs = (
                    torch.cat(part) for part in zip(*parts, strict=True)
                )
                policy = self.policy(outputs)
                ratio = (policy.log_prob(actions) - old_log_probs).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clip = hparams.clip_coef
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
                loss = policy_loss + 0.5 * ((outputs[:, -1] - target) ** 2).mean() - 0.01 * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), hparams.max_grad_norm)
                self.optimizer.step()


@pytest.mark.parametrize(
    ("action", "hparams"),
    [
        (Discrete(2), {"cell": "lstm"}),
        (BOX, {"cell": "gru", "unroll_length": 3, "minibatch_size": 6, "shared_trunk": "yes"}),
        (Discrete(2), {"cell": "lstm", "unroll_length": 2, "minibatch_size": 4}),
    ],
    ids=["lstm", "gru-box-shared-3", "lstm-2"],
)
def test_updates_equal_a_plain_pytorch_recurrent_ppo(action: gym.Space[Any], hparams: dict[str, Any]) -> None:
    setup = make_recurrent_setup(action, learning_rate=0.01, ent_coef=0.01, gamma=0.9, gae_lambda=0.8, **hparams)
    algorithm = build_recurrent_ppo(setup)
    expected = PlainRecurrentPPO(setup, build_recurrent_ppo(setup)._network.module)
    for seed in range(2):
        rollout = collected(setup, seed)
        algorithm.update(rollout)
        expected.update(rollout)
    theirs = torch.cat([parameter.detach().reshape(-1) for parameter in expected.network.parameters()])
    torch.testing.assert_close(params_of(algorithm), theirs, rtol=1e-3, atol=1e-5)


def test_at_the_first_gradient_step_the_policy_is_the_one_that_acted() -> None:
    setup = make_recurrent_setup(unroll_length=2, minibatch_size=12, update_epochs=1)
    metrics = build_recurrent_ppo(setup).update(collected(setup)).metrics
    assert metrics["approx_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"].item() == 0.0


def test_a_time_limit_bootstraps_in_the_state_after_the_last_step() -> None:
    # One env, cut off after its first step; reward 0 and gamma 1, so that the advantage is V(final) - V(first).
    setup = make_recurrent_setup(num_envs=1, num_steps=2, minibatch_size=2, gamma=1.0)
    algorithm = build_recurrent_ppo(setup)
    rollout = collected(setup, ends=0.0)
    rollout["rewards"].zero_()
    rollout["truncated"][0] = True
    rollout["starts"][1] = True
    rollout["final_rows"] = torch.tensor([0, 1])
    rollout["final_obs"] = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    network, no_start = algorithm._network.module, torch.zeros((1, 1), dtype=torch.bool)
    first, after = network(rollout["obs"][:1], rollout["carry"], no_start)
    final = network(rollout["final_obs"][:1], after[0], no_start)[0]
    forgotten = network(rollout["final_obs"][:1], torch.zeros_like(after[0]), no_start)[0]
    found = algorithm._advantages(rollout)["advantages"][0]
    assert found.item() == pytest.approx((final[0, -1] - first[0, -1]).item(), abs=1e-6)
    assert abs(found.item() - (forgotten[0, -1] - first[0, -1]).item()) > 1e-4


def test_recomputed_advantages_also_refresh_the_states_at_which_sequences_start() -> None:
    setup = make_recurrent_setup(unroll_length=2, minibatch_size=4, recompute_advantages=True, learning_rate=0.05)
    algorithm = build_recurrent_ppo(setup)
    seen, estimate = [], algorithm._advantages

    def watched(*args: Any, **kwargs: Any) -> Batch:
        seen.append(estimate(*args, **kwargs)["states"].clone())
        return estimate(*args, **kwargs)

    algorithm._advantages = watched  # type: ignore[method-assign]
    rollout = collected(setup)
    algorithm.update(rollout)
    first, second = seen
    torch.testing.assert_close(first[:2], rollout["carry"])  # the rollout's own start stays
    torch.testing.assert_close(second[:2], rollout["carry"])
    assert not torch.allclose(first[2:], second[2:])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_traced_step_equals_the_eager_one(cell: str) -> None:
    setup = make_recurrent_setup(cell=cell, unroll_length=3, minibatch_size=6)
    algorithm = build_recurrent_ppo(setup)
    rollout = collected(setup)
    rollout |= algorithm._advantages(rollout)
    names = ("obs", "actions", "starts", "states", "log_probs", "values", "advantages", "returns")
    batch = {name: rollout[name] for name in names} | {"indices": torch.tensor([2, 1])}
    graph, inputs, metric_names = trace(_write_in_place(algorithm.pure_step), algorithm._state, batch)
    state = {name: algorithm._state[name].clone() for name in sorted(algorithm._state)}
    traced = dict(zip(metric_names, graph(*state.values(), *inputs[len(state) :]), strict=True))
    expected = algorithm._step_in_place(algorithm._state, batch)
    torch.testing.assert_close(traced, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state, {name: algorithm._state[name] for name in state}, rtol=1e-4, atol=1e-6)


# --- Collecting ------------------------------------------------------------------------------------------------------


def test_the_memory_holds_the_carry_and_the_starts_of_the_collector() -> None:
    # Recall with a delay of 2 ends after 3 steps: a rollout of 4 steps starts at steps 0 and 3, the next one at step 2.
    setup = make_recurrent_setup(num_envs=1, num_steps=4, minibatch_size=4)
    memory = build_recurrent_rollouts(setup)
    algorithm = build_recurrent_ppo(setup)
    collector = Collector(make_envs(lambda: Recall(delay=2), 1), Streams(0))
    collector.start()
    for step in range(4):
        memory.add(collector.step(algorithm, step=step))
    rollout = memory.rollout()
    assert rollout["starts"].tolist() == [True, False, False, True]
    assert not rollout["carry"].any()  # nothing came before
    carry = collector.state_dict()["carry"]
    for step in range(4, 8):
        memory.add(collector.step(algorithm, step=step))
    rollout = memory.rollout()
    assert rollout["starts"].tolist() == [False, False, True, False]
    assert rollout["carry"].numpy() == pytest.approx(np.concatenate(list(carry.values()), 1))
    assert rollout["carry"].any()


def test_acting_step_by_step_and_learning_see_the_same_states() -> None:
    setup = make_recurrent_setup(num_envs=2, num_steps=8, minibatch_size=8)
    memory, algorithm = build_recurrent_rollouts(setup), build_recurrent_ppo(setup)
    collector = Collector(make_envs(lambda: Recall(delay=2), 2), Streams(0))
    collector.start()
    for number in range(2):
        for step in range(8):
            memory.add(collector.step(algorithm, step=8 * number + step))
        rollout = memory.rollout()
        starts = rollout["starts"].view(8, 2)
        after = algorithm._network.module(rollout["obs"], rollout["carry"], starts)[1][-1]
        ended = rollout["terminated"][-2:]
        expected = torch.where(ended[:, None], torch.zeros_like(after), after)
        carry = np.concatenate(list(collector.state_dict()["carry"].values()), 1)
        assert carry == pytest.approx(expected.numpy(), abs=1e-6)


def test_a_stored_carry_of_another_size_is_refused() -> None:
    setup = make_recurrent_setup()
    state = build_recurrent_rollouts(setup).state_dict()
    with pytest.raises(CheckpointError, match="the carry before the rollout has shape"):
        build_recurrent_rollouts(setup).load_state_dict({**state, "carry": np.zeros((2, 3), np.float32)})


def test_the_carry_is_what_decides_about_equal_observations() -> None:
    algorithm = build_recurrent_ppo(make_recurrent_setup(BOX))
    obs = np.ones((1, 3), np.float32)
    first = algorithm.act(obs)
    second = algorithm.act(obs, carry=first.carry)
    again = algorithm.act(obs)
    assert np.array_equal(first.actions, again.actions)
    assert not np.array_equal(first.actions, second.actions)


# --- Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hparams", "problem"),
    [
        ({"num_steps": 8, "minibatch_size": 4}, "minibatch_size must be a multiple of unroll_length"),
        ({"num_steps": 8, "minibatch_size": 8, "unroll_length": 3}, "unroll_length must divide num_steps, 8, got 3"),
        ({"num_steps": 8, "minibatch_size": 24}, "minibatch_size must divide the rollout"),
    ],
)
def test_minibatches_of_broken_sequences_are_refused(hparams: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrainConfig(
            algo="recurrent_ppo",
            env_id="rl_training/Recall-v0",
            total_timesteps=100,
            num_envs=2,
            algo_kwargs=hparams,
        )


def test_a_network_of_the_user_is_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, algo="recurrent_ppo", env_id="rl_training/Recall-v0")
    with pytest.raises(ConfigError, match="recurrent_ppo does not accept a network"):
        train(config, RunOptions(network=nn.Linear(3, 3), show_progress=False))


# --- Learning --------------------------------------------------------------------------------------------------------


def recall_config(tmp_path: Path, algo: str, **hparams: Any) -> TrainConfig:
    kwargs = {"num_steps": 16, "minibatch_size": 128, "update_epochs": 4, "learning_rate": 1e-2, "hidden_sizes": [16]}
    return make_config(
        tmp_path,
        algo=algo,
        env_id="rl_training/Recall-v0",
        env_kwargs={"delay": 3},
        total_timesteps=16 * 16 * 16,
        num_envs=16,
        eval_episodes=40,
        algo_kwargs={**kwargs, "normalize": "none", "gamma": 0.9, "ent_coef": 0.01, **hparams},
    )


@pytest.mark.learning
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_cue_is_recalled_and_its_value_is_the_optimal_one(cell: str, tmp_path: Path) -> None:
    # The cue is asked for after 3 steps: V = 0.9 ** 3, 0.9 ** 2, 0.9 and 1 along the episode, for either cue.
    result = train(recall_config(tmp_path, "recurrent_ppo", cell=cell, cell_size=16), RunOptions(show_progress=False))
    assert result.eval_return == 1.0
    algorithm = result.algorithm
    assert isinstance(algorithm, RecurrentPPO)
    for cue in range(2):
        obs = np.zeros((4, 3), np.float32)
        obs[0, cue] = obs[3, 2] = 1.0
        state = torch.zeros(1, sum(algorithm._carry_sizes.values()))
        outputs, _ = algorithm._network.module(torch.from_numpy(obs), state, torch.zeros((4, 1), dtype=torch.bool))
        assert outputs[:, -1].tolist() == pytest.approx([0.729, 0.81, 0.9, 1.0], abs=0.05)


@pytest.mark.learning
def test_plain_ppo_cannot_recall_the_cue(tmp_path: Path) -> None:
    result = train(recall_config(tmp_path, "ppo"), RunOptions(show_progress=False))
    assert result.eval_return is not None
    assert 0.25 <= result.eval_return <= 0.75  # half of the cues are right by chance
