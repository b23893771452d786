"""Wrappers of the config are applied in order, recorded, and imported only with consent."""

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import ClipAction, FilterObservation, TransformAction

from builders import make_config
from rl_training import DQN, RunOptions, train
from rl_training.core.spaces import Spaces
from rl_training.envs.array_space import checked_reward
from rl_training.envs.factory import RegisteredEnv, make_env_factory, make_envs, modules_of
from rl_training.envs.packages import package_versions
from rl_training.envs.tiny import Chain
from rl_training.envs.wrapping import WrappedEnv, with_wrappers
from rl_training.errors import CheckpointError, ConfigError, EnvError, SpaceError
from rl_training.experiment.registry import find_spec
from rl_training.experiment.space_checks import check_spaces
from tampering import edit_manifest

QUIET = RunOptions(show_progress=False)
FLATTEN = "gymnasium.wrappers:FlattenObservation"
LIMIT = {"class": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 3}


class Named(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the names of the wrappers inside, to show their order."""

    def __init__(self, env: Any, name: str) -> None:
        super().__init__(env)
        self.names: list[str] = [*getattr(env, "names", []), name]


def test_wrappers_are_applied_from_the_inside() -> None:
    entries = [{"class": f"{__name__}:Named", "name": name} for name in ("inner", "outer")]
    env = with_wrappers(Chain, entries)()
    assert isinstance(env, Named)
    assert env.names == ["inner", "outer"]


def test_a_registered_environment_is_checked_with_its_wrappers() -> None:
    factory = make_env_factory("rl_training/Chain-v0", {"num_states": 4}, [LIMIT, FLATTEN])
    env = pickle.loads(pickle.dumps(factory))()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("gymnasium.wrappers.FlattenObservation", "each entry must be a class, such as gymnasium.wrappers:Flatten"),
        ({"max_episode_steps": 3}, r"each entry must be a class.* got \{'max_episode_steps': 3\}"),
        ("gymnasium.wrappers:Flaten", "gymnasium.wrappers:Flaten cannot be imported: .*no attribute 'Flaten'"),
        ("no_such_module:Wrapper", "no_such_module:Wrapper cannot be imported: No module named"),
        ("rl_training.envs.tiny:Chain", "must be a subclass of gymnasium.Wrapper, found"),
        ({"class": FLATTEN, "size": 3}, "FlattenObservation around .*Chain.* failed with TypeError: .*'size'"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"wrappers: .*{message}"):
        make_env_factory("rl_training/Chain-v0", None, [entry])


def test_a_class_itself_is_refused_with_the_text_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make_config(tmp_path, wrappers=[LIMIT, ClipAction])
    assert str(refused.value) == (
        "wrappers must hold text, such as 'gymnasium.wrappers:FlattenObservation', or groups with `class`, "
        f"got {[LIMIT, ClipAction]!r}"
    )


def test_envpool_cannot_step_wrapped_environments() -> None:
    with pytest.raises(ConfigError, match="it cannot step environments with wrappers"):
        make_envs(with_wrappers(RegisteredEnv("CartPole-v1"), [FLATTEN]), backend="envpool")


def test_a_run_applies_records_and_loads_its_wrappers(tmp_path: Path) -> None:
    result = train(make_config(tmp_path, wrappers=[LIMIT, FLATTEN], total_timesteps=20), QUIET)
    assert {episode.length for episode in result.eval_episodes} <= {1, 2, 3}
    agent = DQN.load(result.run_dir)
    assert agent.config.wrappers == [LIMIT, FLATTEN]
    assert agent.evaluate(1)[0].length <= 3


def test_wrappers_around_a_function_of_the_user(tmp_path: Path) -> None:
    agent = DQN.for_env(
        Chain,
        20,
        wrappers=[LIMIT],
        output_dir=tmp_path,
        algo_kwargs={"hidden_sizes": [8], "learning_starts": 10},
        show_progress=False,
    )
    agent.learn()
    assert agent.evaluate(1)[0].length <= 3


def test_wrappers_of_a_stranger_need_consent_also_around_a_function_of_the_user(tmp_path: Path) -> None:
    result = train(make_config(tmp_path, total_timesteps=20), QUIET)
    edit_manifest(result.checkpoint, lambda manifest: manifest["config"].update(wrappers=["stranger:Wrapper"]))
    with pytest.raises(CheckpointError, match=r"names code \(wrappers: stranger:Wrapper\)"):
        DQN.load(result.checkpoint, env_factory=Chain)


def test_the_packages_of_environments_and_wrappers_are_recorded(tmp_path: Path) -> None:
    modules = modules_of(WrappedEnv(RegisteredEnv("CartPole-v1"), ((Named, {}), (FilterObservation, {}))))
    assert modules == ["gymnasium.envs.classic_control.cartpole", __name__, FilterObservation.__module__]
    assert package_versions([*modules, "numpy.linalg"]) == {"gymnasium": gym.__version__, "numpy": np.__version__}
    result = train(make_config(tmp_path, env_id="CartPole-v1", total_timesteps=20), QUIET)
    started = json.loads((result.run_dir / "metadata.json").read_text())["starts"][0]
    assert started["env_packages"] == {"gymnasium": gym.__version__}


# --- Remedies in messages work ---------------------------------------------------------------------------------------


class Mission(gym.ObservationWrapper[Any, Any, Any]):
    """Adds a text to the observation, as MiniGrid does."""

    def __init__(self, env: Any = None) -> None:
        super().__init__(env or Chain())
        self.observation_space = gym.spaces.Dict(
            {"mission": gym.spaces.Text(5), "state": self.env.observation_space, "time": Box(0, 1, (1,))}
        )

    def observation(self, observation: Any) -> Any:
        return {"mission": "go", "state": observation, "time": np.zeros(1, np.float32)}


def test_a_text_is_left_out_by_the_setting_that_the_message_names() -> None:
    mission = f"{__name__}:Mission"
    remedy = "wrappers: [{class: gymnasium.wrappers:FilterObservation, filter_keys: [state, time]}]"
    with pytest.raises(SpaceError) as refused:
        make_env_factory("rl_training/Chain-v0", None, [mission])
    assert str(refused.value).endswith(remedy)
    filtered = {"class": "gymnasium.wrappers:FilterObservation", "filter_keys": ["state", "time"]}
    make_env_factory("rl_training/Chain-v0", None, [mission, filtered])


def test_infinite_bounds_of_clip_action_are_explained() -> None:
    env = gym.make("Pendulum-v1")
    with pytest.raises(SpaceError, match="remove the wrapper ClipAction"):
        check_spaces(find_spec("sac"), Spaces(env.observation_space, ClipAction(env).action_space), "Pendulum-v1")
    bounded = TransformAction(ClipAction(env), lambda action: action, Box(-1.0, 1.0, (1,)))
    check_spaces(find_spec("sac"), Spaces(env.observation_space, bounded.action_space), "Pendulum-v1")


def test_a_reward_of_several_numbers_is_refused_with_a_remedy() -> None:
    with pytest.raises(EnvError, match=r"a reward of 2 numbers.*mo_gymnasium.wrappers:LinearReward"):
        checked_reward(np.array([1.0, 2.0]))
    assert checked_reward(np.array([2.0])) == 2.0


def test_an_environment_that_cannot_be_made_shows_its_own_error() -> None:
    def broken(**kwargs: Any) -> gym.Env[Any, Any]:
        raise gym.error.DependencyNotInstalled("pip install a-simulator")

    gym.register("BrokenInMake-v0", broken)
    try:
        with pytest.raises(EnvError, match="could not be built: DependencyNotInstalled: pip install a-simulator"):
            make_env_factory("BrokenInMake-v0")
    finally:
        gym.registry.pop("BrokenInMake-v0")


def test_an_error_without_a_text_shows_the_line_that_raised_it() -> None:
    def broken(**kwargs: Any) -> gym.Env[Any, Any]:
        raise AssertionError

    gym.register("AssertsInMake-v0", broken)
    try:
        with pytest.raises(EnvError, match=r"AssertionError: raise AssertionError \(in .*test_wrapping.py, line \d+\)"):
            make_env_factory("AssertsInMake-v0")
    finally:
        gym.registry.pop("AssertsInMake-v0")
