"""MinAtar's games as tensor environments: equal to the package in every cell, reward and end, on the same draws."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from minatar_draws import ScriptedDraws, key
from rl_training.core.counters import Keys
from rl_training.envs.factory import make_env_factory
from rl_training.envs.minatar import GAMES, MINATAR_IDS
from rl_training.envs.tensor_checks import check_tensor_env
from rl_training.envs.tensor_env import TENSOR_ENVS, tensor_env_of
from rl_training.envs.tensor_minatar import Asterix, Breakout, Freeway, SpaceInvaders
from rl_training.envs.tensor_seaquest import Seaquest
from rl_training.errors import ConfigError

minatar = pytest.importorskip("minatar", reason="pip install 'rl-training[minatar]'")

CLASSES: dict[str, Any] = {game.__name__: game for game in (Asterix, Breakout, Freeway, Seaquest, SpaceInvaders)}
# Mostly useful play, so that episodes are long: Freeway goes up, Seaquest dives, and the shooters shoot.
ACTIONS = [5, 1, 3, 2]
OTHER_ACTIONS = {"Seaquest": [5, 1, 3, 4]}


@pytest.mark.parametrize("ramping", [True, False])
@pytest.mark.parametrize("game", CLASSES)
def test_every_cell_reward_and_end_equal_the_package(game: str, ramping: bool) -> None:
    env = CLASSES[game](difficulty_ramping=ramping)
    oracle: Any = minatar.Environment(GAMES[game], 0.1, ramping)
    draws = ScriptedDraws()
    oracle.random = oracle.env.random = draws
    generator = np.random.default_rng(0)
    ends, total, steps = 0, 0.0, 0
    episode, num_steps = 0, 400 if ramping else 100
    while steps < num_steps:
        draws.set_step(key(episode, 0), 0)
        oracle.last_action = 0
        oracle.reset()
        state = env.first(key(episode, 0))
        ended, elapsed = False, 0
        if game == "Asterix":  # random play ends before the difficulty rises for the first time, after 100 steps
            oracle.env.ramp_timer, state["ramp_timer"] = 2, torch.tensor([2])
        while not ended and steps < num_steps:
            assert np.array_equal(env.observe(state)[0].numpy(), oracle.state()), (episode, elapsed)
            elapsed, steps = elapsed + 1, steps + 1
            action = int(generator.choice(OTHER_ACTIONS.get(game, ACTIONS), p=[0.4, 0.2, 0.2, 0.2]))
            draws.set_step(key(episode, elapsed), 2)
            reward, ended = oracle.act(action)
            state, rewards, terminated = env.step(state, torch.tensor([action]), key(episode, elapsed))
            assert float(rewards) == reward
            assert bool(terminated) == (ended and game != "Freeway")
            total, ends = total + reward, ends + ended
        episode += 1
    assert total > 0 or not ramping
    assert ends > 0 or game == "Freeway" or not ramping


@pytest.mark.parametrize("game", CLASSES)
def test_ids_spaces_and_time_limits_are_those_of_the_package(game: str) -> None:
    for version in (0, 1):
        name = f"MinAtar-{game}-v{version}"
        env, oracle = tensor_env_of(make_env_factory(f"tensor/{name}")), make_env_factory(name.replace("-", "/", 1))()
        assert (env.observation_space, env.action_space) == (oracle.observation_space, oracle.action_space)
        assert env.max_episode_steps == (2_501 if game == "Freeway" else 10_000)
    ours = {env_id for env_id in TENSOR_ENVS if "MinAtar" in env_id}
    assert len(ours) == len(MINATAR_IDS)


@pytest.mark.parametrize("game", CLASSES)
def test_the_games_pass_the_test_kit(game: str) -> None:
    check_tensor_env(CLASSES[game](), num_steps=8)


@pytest.mark.parametrize("game", CLASSES)
def test_a_step_is_one_graph_that_serves_every_step(game: str) -> None:
    env, rows = CLASSES[game](), torch.arange(50)
    state = env.first(Keys(rows, rows, rows, torch.zeros_like(rows)))
    names, values = list(state), [value.clone() for value in state.values()]

    def step(actions: Tensor, number: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, values, strict=True))
        new, rewards, terminated = env.step(given, actions, Keys(rows, rows, rows, number))
        return (*(new[name] for name in names), rewards, terminated, env.observe(new))

    graph = make_fx(step)(rows % 6, torch.ones_like(rows), *values)
    for number in range(1, 41):
        inputs = ((rows + number * number) % 6, torch.full_like(rows, number), *values)
        expected = step(*inputs)
        assert all(torch.equal(one, two) for one, two in zip(graph(*inputs), expected, strict=True))
        values = list(expected[: len(names)])


def test_minimal_actions_mean_the_useful_ones() -> None:
    whole, minimal = Breakout(), Breakout(minimal_actions=True)
    for number, code in enumerate(Breakout.useful_actions):
        one, _, _ = whole.step(whole.first(key(0, 0)), torch.tensor([code]), key(0, 1))
        other, _, _ = minimal.step(minimal.first(key(0, 0)), torch.tensor([number]), key(0, 1))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_wrong_probability_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sticky_action_prob must be in \[0, 1\), got 1.0"):
        Breakout(sticky_action_prob=1.0)
