"""`train_mbpo` fits, rolls out and learns on time, leaves a whole run folder, and goes on exactly after a stop."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_training
from builders import make_config
from rl_training.algorithms.mbpo import MBPO
from rl_training.envs.terminations import NEVER, termination_rule
from rl_training.errors import ConfigError, SpaceError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.mbpo_trainer import train_mbpo
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult, resume
from stand_ins import Images, StopAt
from state_comparison import assert_identical

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    """60 steps on Pendulum, of which 10 are random; fits and rollouts every 10."""
    settings = {"gradient_updates_per_step": 0.5, **changes.pop("algo_kwargs", {})}
    small = {"algo": "mbpo", "env_id": "Pendulum-v1", "eval_episodes": 1, "algo_kwargs": settings}
    return make_config(tmp_path, **{**small, **changes})


def mbpo_of(result: TrainResult) -> MBPO:
    assert isinstance(result.algorithm, MBPO)
    return result.algorithm


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    result = train_mbpo(config_of(tmp_path, log_interval=20), QUIET)
    assert (result.step, result.gradient_step) == (60, 50 // 2)
    assert {"critic_loss", "actor_loss", "entropy", "alpha"} <= set(result.metrics)
    records = read_json_lines(result.run_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == [20, 40, 60]
    shown = records[-1]["metrics"]
    assert {"model_loss", "holdout_mse", "model_epochs", "rollout_horizon", "synthetic_transitions"} <= set(shown)
    assert (shown["rollout_length"], shown["synthetic_transitions"]) == (1.0, 4 * 20)  # Pendulum never terminates
    assert json.loads((result.run_dir / "result.json").read_text())["step"] == 60
    checkpoint = open_checkpoint(result.checkpoint)
    memory = checkpoint.load(MEMORY)
    assert (len(memory["real"]["rows"]), len(memory["model"]["rows"])) == (60, 80)
    assert "ensemble" in checkpoint.load(TRAINING)["algorithm"]
    assert not any("layers.0.weight_" in name or "log_variance" in name for name in checkpoint.load(POLICY))


class Diary(Callback):
    """Notes at which steps the models were fitted and rolled out, and how far."""

    def __init__(self) -> None:
        self.fits: list[int] = []
        self.rollouts: list[tuple[int, int]] = []

    def on_start(self, run: Run) -> None:
        algorithm = run.algorithm
        assert isinstance(algorithm, MBPO)
        fit, rollout = algorithm.update_model, algorithm.rollout

        def noted_fit(transitions: Any, on_epoch: Any) -> Any:
            self.fits.append(run.step)
            assert len(transitions["rewards"]) == run.step  # all that was seen
            return fit(transitions, on_epoch)

        def noted_rollout(memory: Any, horizon: int) -> int:
            self.rollouts.append((run.step, horizon))
            return rollout(memory, horizon)

        algorithm.update_model = noted_fit  # type: ignore[method-assign, assignment]
        algorithm.rollout = noted_rollout  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("num_envs", "fits", "rollouts"),
    [
        # From step 25 on; then every 20 and every 15 steps, or at the first step beyond.
        (1, [25, 40, 60], [25, 30, 45, 60]),
        (3, [27, 42, 60], [27, 30, 45, 60]),
        (7, [28, 42, 63], [28, 35, 49, 63]),
    ],
)
def test_fits_and_rollouts_come_on_time_for_any_number_of_envs(
    tmp_path: Path, num_envs: int, fits: list[int], rollouts: list[int]
) -> None:
    settings = {"learning_starts": 25, "model_train_frequency": 20, "rollout_refresh_interval": 15}
    diary = Diary()
    config = config_of(tmp_path, num_envs=num_envs, algo_kwargs=settings)
    train_mbpo(config, RunOptions(show_progress=False, callbacks=[diary]))
    assert diary.fits == fits
    assert [step for step, _ in diary.rollouts] == rollouts


def test_the_horizon_and_the_memory_grow_with_the_run(tmp_path: Path) -> None:
    settings = {"rollout_horizon": 1, "rollout_horizon_end": 3, "rollout_horizon_steps": [20, 40]}
    diary = Diary()
    config = config_of(tmp_path, log_interval=10, algo_kwargs={**settings, "synthetic_refreshes_kept": 1})
    result = train_mbpo(config, RunOptions(show_progress=False, callbacks=[diary]))
    assert diary.rollouts == [(10, 1), (20, 1), (30, 2), (40, 3), (50, 3), (60, 3)]
    sizes = [record["metrics"]["synthetic_transitions"] for record in read_json_lines(result.run_dir / "metrics.jsonl")]
    assert sizes == [20, 20, 40, 60, 60, 60]


@pytest.mark.parametrize("stop", [10, 33])
def test_stopped_and_resumed_equals_unbroken(tmp_path: Path, stop: int) -> None:
    settings = {"rollout_horizon_end": 3, "rollout_horizon_steps": [10, 40]}
    config = config_of(tmp_path / "whole", log_interval=10, algo_kwargs=settings)
    whole = train_mbpo(config, QUIET)
    broken = train_mbpo(
        config.updated(output_dir=tmp_path / "broken"), RunOptions(show_progress=False, callbacks=[StopAt(stop)])
    )
    assert broken.step == stop
    resumed = resume(broken.run_dir, QUIET)
    assert resumed.step == 60
    ours, theirs = (open_checkpoint(result.checkpoint) for result in (resumed, whole))
    for part in (POLICY, MEMORY):
        assert_identical(ours.load(part), theirs.load(part), part)
    assert_identical(ours.load(TRAINING)["algorithm"], theirs.load(TRAINING)["algorithm"])
    records = [
        [(record["step"], record["metrics"]) for record in read_json_lines(result.run_dir / "metrics.jsonl")]
        for result in (resumed, whole)
    ]
    assert records[0] == records[1]


def test_one_config_and_seed_give_one_result(tmp_path: Path) -> None:
    first, again = (train_mbpo(config_of(tmp_path, seed=3), QUIET) for _ in range(2))
    other = train_mbpo(config_of(tmp_path, seed=4), QUIET)
    assert first.metrics == again.metrics != other.metrics


def test_the_checkpoint_acts_like_the_trained_agent(tmp_path: Path) -> None:
    result = train_mbpo(config_of(tmp_path), QUIET)
    _, policy = load_policy(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert np.array_equal(policy.act(obs).actions, mbpo_of(result).act(obs).actions)


def test_the_rule_is_that_of_the_environment_as_it_was_made(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    kwargs = {"healthy_z_range": [1.2, 1.3]}
    config = config_of(tmp_path, env_id="Hopper-v5", env_kwargs=kwargs, algo_kwargs={"rollout_horizon": 5})
    result = train_mbpo(config, QUIET)
    rows = open_checkpoint(result.checkpoint).load(MEMORY)["model"]
    assert mbpo_of(result).rollouts._rule == termination_rule("Hopper-v5", kwargs)
    assert 0 < len(rows["rows"]) < 4 * 20 * 5  # some rollouts have ended before their horizon


class Pendulum(gym.Wrapper[Any, Any, Any, Any]):
    """One of the user's own, whatever `env_id` says."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))


def test_of_an_environment_of_the_users_own_termination_is_learnt(tmp_path: Path) -> None:
    options = RunOptions(env_factory=Pendulum, show_progress=False)
    learnt = train_mbpo(config_of(tmp_path), options)
    assert mbpo_of(learnt).rollouts._rule is None
    assert mbpo_of(train_mbpo(config_of(tmp_path), QUIET)).rollouts._rule == NEVER


def test_a_model_that_diverges_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    config = config_of(tmp_path, algo_kwargs={"model_learning_rate": 1e30})
    with pytest.raises(
        TrainingError, match=r"holdout_mse is inf after epoch 1 of the fit at env step 10: .*learning_rate"
    ):
        train_mbpo(config, QUIET)


def test_other_algorithms_and_spaces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_mbpo trains MBPO, but algo is 'dqn'"):
        train_mbpo(make_config(tmp_path), QUIET)
    with pytest.raises(SpaceError, match="mbpo needs a box action space"):
        train_mbpo(config_of(tmp_path, env_id="CartPole-v1"), QUIET)
    assert not list(tmp_path.iterdir())


def test_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="mbpo needs vector observations"):
        train_mbpo(config_of(tmp_path), RunOptions(env_factory=Images, show_progress=False))


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.startswith("mbpo/")])
def test_the_configs_that_come_with_the_package_load(name: str) -> None:
    config = load_config(f"configs/{name}")
    assert config.algo == "mbpo"
    assert termination_rule(config.env_id, config.env_kwargs) is not None


def test_the_class_is_exported() -> None:
    assert rl_training.MBPO.algo_name == "mbpo"
    assert rl_training.train_mbpo is train_mbpo
    assert torch.get_num_threads() == 1
