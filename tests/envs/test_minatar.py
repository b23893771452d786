"""MinAtar's games: each is compared with the package's own, step by step, and comes back from seed and actions."""

import importlib
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from benchmarks.exactness import MINATAR, differences, run_broken, run_unbroken

from rl_training.core.spaces import Spaces, observation_kind, transition_fields
from rl_training.envs.factory import RegisteredEnv, make_env_factory, make_envs
from rl_training.envs.minatar import GAMES, MINATAR_IDS, register_minatar_envs
from rl_training.envs.resumable import EpisodeRecipe, check_replay, restore_env
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError
from rl_training.models.encoders import build_encoder

minatar = pytest.importorskip("minatar", reason="pip install 'rl-training[minatar]'")

BREAKOUT = "MinAtar/Breakout-v0"
NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
PADDLE, BALL = 0, 1  # of Breakout's channels


def make(env_id: str = BREAKOUT, **env_kwargs: Any) -> Any:
    return RegisteredEnv(env_id, env_kwargs)()


def paddle(obs: np.ndarray) -> int:
    return int(obs[9, :, PADDLE].argmax())


# ------------------------------------------------------------------------------------------- the games and their spaces


@pytest.mark.parametrize(
    ("game", "channels", "actions"),
    [
        ("Asterix", 4, [NOOP, LEFT, UP, RIGHT, DOWN]),
        ("Breakout", 4, [NOOP, LEFT, RIGHT]),
        ("Freeway", 7, [NOOP, UP, DOWN]),
        ("Seaquest", 10, [NOOP, LEFT, UP, RIGHT, DOWN, FIRE]),
        ("SpaceInvaders", 6, [NOOP, LEFT, RIGHT, FIRE]),
    ],
)
def test_every_game_has_its_channels_and_both_sets_of_actions(game: str, channels: int, actions: list[int]) -> None:
    whole, minimal = make(f"MinAtar/{game}-v0"), make(f"MinAtar/{game}-v1")
    assert (whole.action_space.n, minimal.action_space.n) == (6, len(actions))
    obs, info = whole.reset(seed=0)
    minimal.reset(seed=0)
    assert (obs.shape, obs.dtype, info) == ((10, 10, channels), np.bool_, {})
    assert obs in whole.observation_space
    for _ in range(30):  # the n-th action of v1 is the one of that number in v0
        number = int(whole.np_random.integers(len(actions)))
        ours, theirs = minimal.step(np.int64(number)), whole.step(np.int64(actions[number]))
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]


def test_v0_is_not_called_out_of_date() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env_factory(BREAKOUT, {"pixels": True})
        make_env_factory(BREAKOUT)


@pytest.mark.parametrize("game", GAMES)
def test_episodes_are_those_of_a_fresh_game_of_the_package_with_the_same_seed(game: str) -> None:
    # Half of the actions stick, so that one which outlived its episode, or another generator, would soon show.
    env = make(f"MinAtar/{game}-v0", sticky_action_prob=0.5)
    rng = np.random.default_rng(0)
    rewards, num_ended = 0.0, 0
    for seed in range(40):
        fresh = minatar.Environment(GAMES[game], sticky_action_prob=0.5)
        fresh.seed(seed)
        fresh.reset()
        np.testing.assert_array_equal(env.reset(seed=seed)[0], fresh.state())
        for action in rng.integers(1, 6, size=300):  # never the no-op that a game begins with
            obs, reward, terminated, truncated, info = env.step(action)
            expected_reward, expected_end = fresh.act(action)
            np.testing.assert_array_equal(obs, fresh.state())
            assert (reward, terminated, truncated, info) == (expected_reward, expected_end, False, {})
            assert (type(reward), type(terminated)) == (float, bool)
            rewards += reward
            if terminated:
                num_ended += 1
                break
    assert rewards > 0 or game == "Freeway"  # where random steps seldom reach the other side
    assert num_ended > 0 or game == "Freeway"


def test_without_a_seed_games_differ_and_after_one_they_go_on_from_it() -> None:
    def starts(first_seed: int | None) -> list[int]:
        env = make()
        columns = [int(env.reset(seed=first_seed)[0][3, :, BALL].argmax())]
        return columns + [int(env.reset()[0][3, :, BALL].argmax()) for _ in range(60)]

    assert starts(None) != starts(None)
    assert starts(5) == starts(5)
    assert set(starts(5)) == {0, 9}


def test_the_difficulty_ramps_unless_it_is_turned_off() -> None:
    def levels(**env_kwargs: Any) -> int:
        env = make("MinAtar/Asterix-v0", **env_kwargs)
        env.reset(seed=0)
        game = env.unwrapped._game.env
        for _ in range(400):
            game.terminal = False  # also when something touches the player
            env.step(np.int64(NOOP))
        return int(game.difficulty_ramp())

    assert levels() == 3  # one for each 102 steps
    assert levels(difficulty_ramping=False) == 0


def test_what_sticks_is_the_action_of_the_step_before() -> None:
    env = make(sticky_action_prob=0.3)
    moved = 0
    for seed in range(1_000):
        env.reset(seed=seed)
        moved += paddle(env.step(np.int64(LEFT))[0]) == 3  # from 4; a no-op stuck otherwise
    assert moved == pytest.approx(700, abs=45)  # three standard deviations of the sum of 1,000 draws
    env = make(sticky_action_prob=0.0)
    env.reset(seed=0)
    assert [paddle(env.step(np.int64(action))[0]) for action in (LEFT, LEFT, RIGHT, UP, LEFT)] == [3, 2, 3, 3, 2]


# ------------------------------------------------------------------------------------------------------ ends and limits


def test_the_end_of_freeway_is_a_time_limit() -> None:
    env = make("MinAtar/Freeway-v0")
    env.reset(seed=0)
    flags = [env.step(np.int64(NOOP))[2:4] for _ in range(2_501)]
    assert flags == [(False, False)] * 2_500 + [(False, True)]


def test_a_lost_ball_is_a_termination() -> None:
    env = make(sticky_action_prob=0.0)
    env.reset(seed=0)
    flags = [env.step(np.int64(NOOP))[2:4] for _ in range(6)]
    assert flags == [(False, False)] * 5 + [(True, False)]  # from row 3 to row 9, far from the paddle


@pytest.mark.parametrize(("env_kwargs", "limit"), [({}, 10_000), ({"max_episode_steps": 3}, 3)])
def test_episodes_are_cut_by_truncation(env_kwargs: dict[str, Any], limit: int) -> None:
    env = make("MinAtar/Asterix-v1", **env_kwargs)
    assert env.spec.max_episode_steps == limit
    env.reset(seed=0)
    game = env.unwrapped._game.env
    for number in range(1, limit + 1):
        game.terminal = False  # never ends
        _, _, _, truncated, _ = env.step(np.int64(NOOP))
        assert truncated == (number == limit)


# -------------------------------------------------------------------------------------------------- replay and workers


@pytest.mark.parametrize("game", GAMES)
def test_the_seed_and_the_actions_repeat_an_episode_bit_for_bit(game: str) -> None:
    assert check_replay(RegisteredEnv(f"MinAtar/{game}-v1", {"sticky_action_prob": 0.4}), seed=0)


@pytest.mark.parametrize("game", GAMES)
def test_an_open_episode_is_restored_in_a_fresh_env(game: str) -> None:
    factory = RegisteredEnv(f"MinAtar/{game}-v0")
    rng, actions = np.random.default_rng(2), []
    with SyncEnvs(factory) as envs, SyncEnvs(factory) as fresh:
        envs.reset([0], [7])
        for _ in range(40):
            actions.append(rng.integers(1, 6))
            if envs.step(np.array(actions[-1:])).ended:
                envs.reset([0], [7])
                actions.clear()
        actions.append(np.int64(RIGHT))
        result = envs.step(np.array([RIGHT]))
        assert restore_env(fresh, 0, EpisodeRecipe(7, np.array(actions)), result.obs[0])
        assert fresh.step(np.array([LEFT])).obs.tobytes() == envs.step(np.array([LEFT])).obs.tobytes()


@pytest.mark.process
def test_workers_give_what_one_process_gives() -> None:
    factory = RegisteredEnv("MinAtar/SpaceInvaders-v1")
    sync, workers = make_envs(factory, 2), make_envs(factory, 2, backend="local_async")
    try:
        assert workers.observation_space == sync.observation_space
        np.testing.assert_array_equal(sync.reset([0, 1], [3, 4])[0], workers.reset([0, 1], [3, 4])[0])
        for action in (3, 1, 1, 3, 0, 2, 2, 2):
            ours, theirs = sync.step(np.full(2, action)), workers.step(np.full(2, action))
            np.testing.assert_array_equal(ours.obs, theirs.obs)
            assert theirs.obs.dtype == np.bool_
    finally:
        sync.close()
        workers.close()


@pytest.mark.learning
def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path) -> None:
    case = replace(MINATAR, settings={**MINATAR.settings, "total_timesteps": 300})
    assert differences(run_broken(case, tmp_path, [74, 231]), run_unbroken(case, tmp_path)) == []


# ------------------------------------------------------------------------------------------------- what a network sees


def test_flags_are_stored_as_they_are_and_reach_the_network_as_zeros_and_ones() -> None:
    env = make("MinAtar/Seaquest-v0")  # as many channels as rows: those are still last
    obs, _ = env.reset(seed=0)
    space = env.observation_space
    fields = transition_fields(Spaces(space, env.action_space))
    assert observation_kind(space) == "image"
    assert (fields["obs"].shape, fields["obs"].dtype) == ((10, 10, 10), np.dtype(np.bool_))
    encoder, num_features = build_encoder(space)
    pixels = encoder[0](torch.from_numpy(obs)[None])
    assert pixels.shape == (1, 10, 10, 10)
    np.testing.assert_array_equal(pixels[0].permute(1, 2, 0).numpy(), obs.astype(np.float32))
    assert isinstance(encoder[1], torch.nn.Conv2d)
    assert (encoder[1].out_channels, num_features) == (16, 16 * 8 * 8)  # MinAtar's own network


def test_cells_are_rendered_in_the_colour_of_their_channel() -> None:
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(3):  # until ball and trail have left the bricks
        obs = env.step(np.int64(NOOP))[0]
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((160, 160, 3), np.uint8)
    cells = picture.reshape(10, 16, 10, 16, 3)
    assert (cells == cells[:, :1, :, :1]).all()
    cells = cells[:, 0, :, 0]
    assert (cells[~obs.any(2)] == 0).all()
    colours = [{tuple(colour) for colour in cells[obs[:, :, channel]]} for channel in range(4)]
    assert [len(found) for found in colours] == [1, 1, 1, 1]
    assert len(set().union(*colours, {(0, 0, 0)})) == 5
    silent = make()
    silent.reset(seed=0)
    assert silent.render() is None
    assert make(pixels={"size": 40}).reset(seed=0)[0].shape == (4, 40, 40)


# ------------------------------------------------------------------------------------------------- settings and errors


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        (BREAKOUT, {"sticky_action_prob": 1.0}, "env_kwargs.sticky_action_prob must be in [0, 1), got 1.0"),
        (BREAKOUT, {"sticky_action_prob": -0.1}, "env_kwargs.sticky_action_prob must be in [0, 1), got -0.1"),
        (BREAKOUT, {"sticky_action_prob": "0.1"}, "env_kwargs.sticky_action_prob must be in [0, 1), got '0.1'"),
        (BREAKOUT, {"sticky_action_prob": True}, "env_kwargs.sticky_action_prob must be in [0, 1), got True"),
        (BREAKOUT, {"difficulty_ramping": 1}, "env_kwargs.difficulty_ramping must be true or false, got 1"),
        (
            BREAKOUT,
            {"sticky_action_probability": 0.1},
            f"env_kwargs: {BREAKOUT} has no setting 'sticky_action_probability'; did you mean 'sticky_action_prob'?",
        ),
        ("MinAtar/Brekout-v1", {}, "unknown environment 'MinAtar/Brekout-v1'; did you mean 'MinAtar/Breakout-v1'?"),
        ("MinAtar/Pong-v0", {}, "unknown environment 'MinAtar/Pong-v0'"),
    ],
)
def test_what_is_wrong_is_named(env_id: str, env_kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_env_factory(env_id, env_kwargs)
    assert message in str(error.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(EnvError) as error:
        make_env_factory("MinAtar/Freeway-v1")
    assert str(error.value).startswith(
        "env_id 'MinAtar/Freeway-v1' needs packages that are not installed: pip install 'rl-training[minatar]' (Module"
    )


def test_the_packages_own_registrations_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for env_id in MINATAR_IDS:
        monkeypatch.delitem(gym.registry, env_id)
    importlib.import_module("minatar.gym").register_envs()
    assert "minatar.gym" in str(gym.registry[BREAKOUT].entry_point)
    register_minatar_envs()
    specs = [gym.registry[env_id] for env_id in MINATAR_IDS]
    assert all(spec.entry_point == "rl_training.envs.minatar:MinAtar" for spec in specs)
    register_minatar_envs()
    assert all(gym.registry[spec.id] is spec for spec in specs)
