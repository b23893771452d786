"""Environments on the machines of a Ray cluster: what needs no Ray. `test_ray_cluster.py` needs it."""

import io
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import make_config
from rl_training.core.ray_cluster import connect_to_ray
from rl_training.envs.array_space import ArraySpace
from rl_training.envs.factory import EnvFactory, LimitedEnv, RegisteredEnv, check_backend
from rl_training.envs.local_workers import Failure
from rl_training.envs.ray_workers import EnvActor, check_ray, divide
from rl_training.envs.tiny import Chain, Misbehaving
from rl_training.envs.wrapping import with_wrappers
from rl_training.errors import ConfigError
from rl_training.runtime.trainer import RunOptions, train


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))


def test_a_run_without_the_package_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError) as error:
        train(make_config(tmp_path / "runs", execution_backend="ray"), RunOptions(show_progress=False))
    assert str(error.value) == 'execution_backend: ray needs the package ray: pip install "rl-training[ray]"'
    assert not (tmp_path / "runs").exists()


class Names(pickle.Unpickler):
    """Collects what a pickle imports."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        self.found = [*getattr(self, "found", []), f"{module_name}.{global_name}"]
        return super().find_class(module_name, global_name)


def test_a_cluster_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*arguments: object, **options: object) -> None:
        raise Exception("the node timed out")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(ConfigError, match=r"^--launcher ray cannot connect to Ray \(address=x\): the node timed out$"):
        connect_to_ray("--launcher ray", "x")


@pytest.mark.parametrize(
    ("factory", "names"),
    [
        (RegisteredEnv("CartPole-v1", {"render_mode": None}), ["rl_training.envs.factory.RegisteredEnv"]),
        (LimitedEnv(Chain, 20), ["rl_training.envs.factory.LimitedEnv", "rl_training.envs.tiny.Chain"]),
        (
            with_wrappers(RegisteredEnv("Pendulum-v1"), ["gymnasium.wrappers:FlattenObservation"]),
            [
                "rl_training.envs.wrapping.WrappedEnv",
                "rl_training.envs.factory.RegisteredEnv",
                "gymnasium.wrappers.transform_observation.FlattenObservation",
            ],
        ),
    ],
    ids=["registered", "own", "wrapped"],
)
@pytest.mark.usefixtures("with_ray")
def test_only_names_and_settings_travel(factory: EnvFactory, names: list[str]) -> None:
    reader = Names(io.BytesIO(check_ray(factory)))
    assert reader.load() == factory
    assert reader.found == names


@pytest.mark.usefixtures("with_ray")
def test_a_function_that_other_machines_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"^execution_backend: ray: each machine must be able to import the function that makes the environments, "
    with pytest.raises(ConfigError, match=message + r"but .*<lambda>.*, or use execution_backend: local_async$"):
        check_backend(lambda: Chain(), "ray")
    monkeypatch.setattr(Chain, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Chain", Chain, raising=False)
    with pytest.raises(ConfigError, match=message + r"but it is defined in the script that was started; define"):
        check_backend(Chain, "ray")


@pytest.mark.parametrize(
    ("num_envs", "cpus", "expected"),
    [
        (16, [8.0], [16]),
        (16, [4.0, 4.0], [8, 8]),
        (16, [8.0, 2.0, 6.0], [8, 2, 6]),
        (1, [4.0, 4.0, 64.0], [0, 0, 1]),
        (3, [1.0, 1.0], [2, 1]),
    ],
)
def test_machines_get_environments_in_proportion_to_their_cpus(
    num_envs: int, cpus: list[float], expected: list[int]
) -> None:
    assert divide(num_envs, cpus) == expected


def make_actor(factory: EnvFactory, num_envs: int) -> EnvActor:
    env = factory()
    spaces = ArraySpace.of(env.observation_space, "observation"), ArraySpace.of(env.action_space, "action")
    sent = pickle.dumps(factory)
    return EnvActor(sent, num_envs, spaces, worker_timeout=60.0, worker_start="auto", import_path=sys.path)


@pytest.mark.process
def test_an_actor_returns_what_its_environments_wrote_and_how_they_failed() -> None:
    actor = make_actor(RegisteredEnv("rl_training/Misbehaving-v0", {"fault": "exit", "step": 2}), 2)
    actions = np.zeros(2, np.int64)
    assert pickle.loads(actor.exchange({0: None, 1: None}, actions)[0]) == {0: None, 1: None}
    actor.exchange({0: ("reset", (1,)), 1: ("reset", (2,))}, actions)
    replies, results = actor.exchange({0: ("step", ()), 1: ("step", ())}, actions)
    assert pickle.loads(replies) == {0: {}, 1: {}}
    assert results["obs"][:, 0].tolist() == [1, 1]
    assert results["rewards"].tolist() == [1, 1]
    replies, _ = actor.exchange({1: ("step", ())}, actions)
    assert pickle.loads(replies) == Failure(1, "ended its process with exit code 3")
    actor.close()
    assert actor.pids() == []


def test_a_module_that_is_missing_on_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Misbehaving, "__module__", "elsewhere")
    module = ModuleType("elsewhere")
    module.Misbehaving = Misbehaving  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    sent, env = pickle.dumps(Misbehaving), Misbehaving()
    monkeypatch.delitem(sys.modules, "elsewhere")
    spaces = ArraySpace.of(env.observation_space, "observation"), ArraySpace.of(env.action_space, "action")
    actor = EnvActor(sent, 1, spaces, worker_timeout=60.0, worker_start="auto", import_path=[])
    failure = pickle.loads(actor.exchange({0: None}, np.zeros(1, np.int64))[0])
    assert isinstance(failure, Failure)
    assert failure.what == "raised ModuleNotFoundError: No module named 'elsewhere'"
