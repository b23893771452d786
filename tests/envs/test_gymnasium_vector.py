"""Vector environments of Gymnasium: what the collector gets from them, whatever they do at the end of an episode."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation
from torch import Tensor

from builders import make_config
from env_groups import assert_same_results
from rl_training import DQN, PPO
from rl_training.core.seeding import Streams
from rl_training.envs.factory import RegisteredEnv, make_env_factory, make_vector_factory
from rl_training.envs.gymnasium_vector import VectorEnvs, make_vector_envs
from rl_training.envs.vector import EnvGroup, SyncEnvs
from rl_training.envs.vector_abilities import Abilities
from rl_training.envs.vector_factory import OwnVectorEnv, VectorFactory
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.collector import Collector
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.trainer import train
from state_comparison import assert_same_run
from test_docs import DOCS, blocks

CARTPOLE = partial(gym.make, "CartPole-v1")


class IgnoresMask(SyncVectorEnv[Any, Any]):
    """Resets all rows, whichever are asked for, and takes one seed for all: as most classes of other packages do."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is None or isinstance(seed, int), "one seed for all"
        return super().reset(seed=seed)


class SeedsRowsButIgnoresMask(SyncVectorEnv[Any, Any]):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)


class LosesFinalObs(IgnoresMask):
    def step(self, actions: Any) -> Any:
        *values, infos = super().step(actions)
        return *values, {name: value for name, value in infos.items() if "final" not in name}


class LikeManiSkill(IgnoresMask):
    """Takes and returns tensors, and does not declare when it resets; `final_observation` holds all rows."""

    device = "cpu"

    def __init__(self, *arguments: Any, **choice: Any) -> None:
        super().__init__(*arguments, **choice)
        del self.metadata["autoreset_mode"]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return torch.from_numpy(super().reset(seed=seed)[0]), {}

    def step(self, actions: Tensor) -> Any:
        obs, *flags, infos = super().step(actions.numpy())
        ended, final_obs = np.logical_or(flags[1], flags[2]), obs.copy()
        for index in np.flatnonzero(ended):
            final_obs[index] = infos["final_obs"][index]
        final = {"final_observation": torch.from_numpy(final_obs), "_final_observation": torch.from_numpy(ended)}
        return *(torch.from_numpy(values) for values in (obs, *flags)), final if ended.any() else {}


def make(
    num_envs: int,
    env: Callable[[], gym.Env[Any, Any]] = CARTPOLE,
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    kind: type[SyncVectorEnv[Any, Any]] = SyncVectorEnv,
) -> SyncVectorEnv[Any, Any]:
    return kind([env] * num_envs, autoreset_mode=mode)


def group(num_envs: int, **choice: Any) -> VectorEnvs | SyncEnvs:
    return make_vector_envs(VectorFactory(OwnVectorEnv(partial(make, **choice))), num_envs)


def group_of_the_recipe(num_envs: int) -> VectorEnvs | SyncEnvs:
    """Return a group in the wrapper of docs/environments.md."""
    names: dict[str, Any] = {}
    (code,) = (body for body in blocks(DOCS / "environments.md", "python") if "VectorWrapper" in body)
    exec(compile(code, "environments.md", "exec"), names)

    def make_wrapped(num_envs: int) -> Any:
        return names["ManiSkillRows"](make(num_envs, mode=AutoresetMode.SAME_STEP, kind=LikeManiSkill))

    return make_vector_envs(VectorFactory(OwnVectorEnv(make_wrapped)), num_envs)


def step_to_the_left(envs: EnvGroup, num_steps: int) -> None:
    for _ in range(num_steps):
        result = envs.step(np.zeros(envs.num_envs, np.int64))
        envs.reset(result.ended, [0] * len(result.ended))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1", "rl_training/TinyDict-v0"])
def test_every_mode_gives_the_transitions_of_single_environments(env_id: str, mode: AutoresetMode) -> None:
    # The last observation of an episode is therefore never the first of the next one.
    factory = RegisteredEnv(env_id)
    with SyncEnvs(factory, 3) as single, group(3, env=factory, mode=mode) as vector:
        assert isinstance(vector, VectorEnvs)
        assert assert_same_results(single, vector) > 6
        assert vector.cannot_repeat == ""


@pytest.mark.process
def test_worker_processes_of_gymnasium_give_the_same() -> None:
    factory = make_vector_factory("CartPole-v1", {"vectorization_mode": "async"})
    with SyncEnvs(RegisteredEnv("CartPole-v1"), 2) as single, make_vector_envs(factory, 2) as vector:
        assert assert_same_results(single, vector, num_steps=60) > 4


@pytest.mark.parametrize("mode", AutoresetMode)
def test_action_masks_are_those_of_single_environments(mode: AutoresetMode) -> None:
    factory = partial(gym.make, "rl_training/Masked-v0", mask_in_obs=True, length=3)
    with SyncEnvs(factory, 2) as single, group(2, env=factory, mode=mode) as vector:
        rows = [envs.reset([0, 1], [5, 6]) for envs in (single, vector)]
        for step in range(9):
            for obs, infos in zip(*(zip(*pair, strict=True) for pair in rows), strict=True):
                assert np.array_equal(obs[0], infos[0])
                assert np.array_equal(obs[1]["action_mask"], infos[1]["action_mask"])
            actions = np.array([int(np.argmax(info["action_mask"])) for info in rows[0][1]])
            results = [envs.step(actions) for envs in (single, vector)]
            rows = [(result.obs, result.infos) for result in results]
            if results[0].ended:
                assert results[1].ended == results[0].ended == [0, 1]
                rows = [envs.reset([0, 1], [10 + step, 20 + step]) for envs in (single, vector)]


@pytest.mark.parametrize("build", [partial(group, mode=AutoresetMode.SAME_STEP, kind=IgnoresMask), group_of_the_recipe])
def test_rows_that_cannot_be_reset_alone_go_on_from_their_own_first_observation(
    build: Callable[[int], VectorEnvs | SyncEnvs],
) -> None:
    # As single environments that are seeded once and then reset without a seed.
    singles = [CARTPOLE() for _ in range(3)]
    rng = np.random.default_rng(0)
    with build(3) as vector:
        assert isinstance(vector, VectorEnvs)
        obs, _ = vector.reset([0, 1, 2], [7, 8, 9])
        assert np.array_equal(obs, [env.reset(seed=7 + index)[0] for index, env in enumerate(singles)])
        num_ended = 0
        for _ in range(120):
            actions = rng.integers(2, size=3)
            result = vector.step(actions)
            expected = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            assert np.array_equal(result.obs, [step[0] for step in expected])
            assert result.ended == [index for index, step in enumerate(expected) if step[2] or step[3]]
            if result.ended:
                num_ended += len(result.ended)
                first, _ = vector.reset(result.ended, [0] * len(result.ended))
                assert np.array_equal(first, [singles[index].reset()[0] for index in result.ended])
        assert num_ended > 5
        assert "cannot give each environment a seed or reset one environment alone" in vector.cannot_repeat


def test_a_class_that_resets_all_rows_or_none_is_split(caplog: pytest.LogCaptureFixture) -> None:
    with SyncEnvs(CARTPOLE, 3) as single, group(3, kind=IgnoresMask) as vector:
        assert assert_same_results(single, vector) > 6
    assert "IgnoresMask cannot reset single environments" in caplog.text
    assert "each of the 3 environments therefore gets a vector environment of its own" in caplog.text


def test_a_class_that_resets_all_rows_is_split_although_its_first_step_may_change_nothing() -> None:
    # A step to the left leaves a chain at its start, where a reset of all rows would put it as well.
    groups = [group(2, env=partial(gym.make, "rl_training/Chain-v0"), kind=IgnoresMask) for _ in range(8)]
    assert [type(one) for one in groups] == [SyncEnvs] * 8


def test_rows_that_cannot_be_reset_alone_resume_with_seeds_of_their_own() -> None:
    choice: dict[str, Any] = {"mode": AutoresetMode.SAME_STEP, "kind": SeedsRowsButIgnoresMask}
    streams = Streams(3)
    with group(3, **choice) as vector:
        collector = Collector(vector, streams)
        collector.start()
        state = collector.state_dict()
    with group(3, **choice) as vector:
        assert isinstance(vector, VectorEnvs)
        collector = Collector(vector, streams)
        collector.load_state_dict(state)
        assert collector.inexact_restores == [0, 1, 2]
        expected = [CARTPOLE().reset(seed=streams.episode_seed(index, 1))[0] for index in range(3)]
        assert np.array_equal(collector.state_dict()["obs"], expected)
    with group(3, **choice) as vector:
        first, second = vector.reset([0], [7])[0], vector.reset([1], [8])[0]
        assert not np.array_equal(first, second)


def test_a_lost_final_observation_is_an_error() -> None:
    with group(2, mode=AutoresetMode.SAME_STEP, kind=LosesFinalObs) as vector:
        vector.reset([0, 1], [0, 1])
        with pytest.raises(EnvError, match=r"env \d reset itself .* its info has no `final_obs`: the last observation"):
            step_to_the_left(vector, 50)


def test_open_episodes_are_repeated_together() -> None:
    with group(3) as vector:
        assert isinstance(vector, VectorEnvs)
        vector.reset([0, 1, 2], [1, 2, 3])
        taken: list[list[int]] = [[], [], []]
        seeds, rng = [1, 2, 3], np.random.default_rng(1)
        for step in range(40):
            actions = rng.integers(2, size=3)
            result = vector.step(actions)
            obs = result.obs.copy()
            for index in range(3):
                taken[index].append(int(actions[index]))
            for index in result.ended:
                seeds[index], taken[index] = 100 + step, []
                obs[index] = vector.reset([index], [seeds[index]])[0][0]
        assert len({len(actions) for actions in taken}) > 1
        recipes = [np.array(actions, np.int64) for actions in taken]
        found = vector.replay_together(seeds, recipes, [4, 5, 6])
        same = [one is not None and np.array_equal(one, other) for one, other in zip(found, obs, strict=True)]
        assert same == [True, True, True]
        too_long = [np.zeros(30, np.int64), *recipes[1:]]  # CartPole falls after ten steps to one side
        found = vector.replay_together(seeds, too_long, [4, 5, 6])
        assert found[0] is None
        same = [one is not None and np.array_equal(one, other) for one, other in zip(found, obs, strict=True)]
        assert same == [False, True, True]


def test_a_failing_vector_environment_is_reported(tmp_path: Path) -> None:
    env = partial(gym.make, "rl_training/Misbehaving-v0", fault="raise", step=4, episode=4)
    vector = VectorEnvs(make(2, env), Abilities(resets=True, seeds=True), crash_dir=tmp_path)
    vector.reset([0, 1], [0, 1])
    with pytest.raises(EnvError, match=r"the vector environment raised ValueError: misbehaving .* at step 44 of all"):
        step_to_the_left(vector, 60)
    assert "_maybe_fault" in (tmp_path / "envs.txt").read_text()
    with pytest.raises(EnvError, match="the environments are closed, because the vector environment raised"):
        vector.reset([0], [0])


def test_functions_that_make_something_else_are_refused(tmp_path: Path) -> None:
    def small(num_envs: int) -> SyncVectorEnv[Any, Any]:
        return make(2)

    config = make_config(tmp_path, env_id="mine", execution_backend="vector", num_envs=3)
    for function, message in (
        (lambda: make(3), "vector calls <lambda> with num_envs and the env_kwargs {}, which it cannot be called with"),
        (small, "of num_envs=3 environments, but small returned 2 environments"),
        (lambda num_envs: CARTPOLE(), "of num_envs=3 environments, but <lambda> returned TimeLimit"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(config, RunOptions(env_factory=function))
    with pytest.raises(ConfigError, match=r"max_episode_steps cannot be set for a function that makes vector env"):
        train(config.updated(max_episode_steps=9), RunOptions(env_factory=make))
    with pytest.raises(ConfigError, match="wrappers are for single environments, but execution_backend is vector"):
        config.updated(wrappers=["gymnasium.wrappers:FlattenObservation"])
    with pytest.raises(ConfigError, match=r"does not preprocess images, but env_id 'ALE/Pong-v5' needs it"):
        make_vector_factory("ALE/Pong-v5", {})
    assert list(tmp_path.iterdir()) == []


def test_a_class_that_does_not_say_when_it_resets_is_refused(tmp_path: Path) -> None:
    def silent(num_envs: int) -> SyncVectorEnv[Any, Any]:
        vector = make(num_envs)
        del vector.metadata["autoreset_mode"]
        return vector

    config = make_config(tmp_path, env_id="mine", execution_backend="vector", num_envs=2)
    with pytest.raises(ConfigError, match=r"needs to know when SyncVectorEnv\(.*metadata have the autoreset_mode None"):
        train(config, RunOptions(env_factory=silent))


def test_statistics_of_a_vector_wrapper_are_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, env_id="mine", execution_backend="vector", num_envs=2)
    with pytest.raises(ConfigError, match="the environment has the wrapper NormalizeObservation, which learns"):
        train(config, RunOptions(env_factory=lambda num_envs: NormalizeObservation(make(num_envs))))


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_run_equals_that_of_single_environments(algo: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algo": algo, "env_id": "CartPole-v1", "num_envs": 2, "total_timesteps": 160}
    settings["max_episode_steps"] = 21  # truncations are no terminations
    sync = {"env_kwargs": {"vectorization_mode": "sync"}, "execution_backend": "vector"}
    single = train(make_config(tmp_path / "single", **settings))
    vector = train(make_config(tmp_path / "vector", **settings, **sync))
    assert_same_run(vector, single)
    episodes = [read_json_lines(result.run_dir / "episodes.jsonl") for result in (vector, single)]
    assert episodes[0] == episodes[1]
    assert len(episodes[0]) > 2


def test_an_instance_is_copied_and_its_agent_evaluates_and_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = gym.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    agent = PPO.for_env(instance, 64, algo_kwargs={"num_steps": 16, "minibatch_size": 32}, output_dir=tmp_path)
    assert agent.config.num_envs == 2
    assert agent.config.execution_backend == "vector"
    assert agent.config.env_kwargs == {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": "SameStep"}}
    with caplog.at_level(logging.WARNING):
        agent.learn()
    assert "no time limit" not in caplog.text
    returns = [episode.ret for episode in agent.evaluate(episodes=2)]
    assert [episode.ret for episode in PPO.load(agent.save(tmp_path / "copy")).evaluate(episodes=2)] == returns
    with pytest.raises(TypeError, match="num_envs is 3, but env is a vector of 2 environments already"):
        PPO.for_env(instance, 64, num_envs=3)


def test_instances_that_cannot_be_copied_are_refused() -> None:
    for vector, reason in (
        (make(2), "it was not made by gymnasium.make_vec; give a function that makes it, such as DQN.for_env"),
        (
            NormalizeObservation(gym.make_vec("CartPole-v1", 2, "sync")),
            "it has wrappers, which config.yaml cannot hold",
        ),
    ):
        with pytest.raises(ConfigError, match=reason) as refused:
            DQN.for_env(vector, 100)
        call = 'DQN.for_env(lambda num_envs: SyncVectorEnv(...), 100, num_envs=2, execution_backend="vector")'
        assert str(refused.value).endswith(call)


def test_the_module_of_an_id_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    (tmp_path / "vector_ids.py").write_text(f"import gymnasium\ngymnasium.register('Here-v0', {entry_point!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with make_vector_envs(make_vector_factory("vector_ids:Here-v0", {"vector_kwargs": None}), 2) as vector:
        assert isinstance(vector, VectorEnvs)


def test_an_id_may_have_a_vector_class_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
    spec = EnvSpec("VectorOnly-v0", vector_entry_point=entry_point, max_episode_steps=20)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    config = make_config(tmp_path, env_id=spec.id, execution_backend="vector", num_envs=2, total_timesteps=60)
    result = train(config)
    assert result.step == 60
    assert len(read_json_lines(result.run_dir / "episodes.jsonl")) > 1


def test_an_id_is_tried_before_the_run() -> None:
    with pytest.raises(ConfigError, match="env_kwargs: CartPole-v1 has no setting 'gravity'"):
        make_vector_factory("CartPole-v1", {"vectorization_mode": "sync", "gravity": 3})
    with pytest.raises(ConfigError, match="unknown environment 'CartPole-v7'"):
        make_vector_factory("CartPole-v7", {})
    assert make_env_factory("CartPole-v1") == RegisteredEnv("CartPole-v1", {})
