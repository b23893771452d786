"""The DQN family, SAC and TD3 with tensor environments, all on the device.

Their updates are those of the host, a resume is exact, and captured graphs repeat what was captured.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from device_loops import QUIET, prepare
from rl_training.core.counters import Keys
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.learners.random_inputs import RandomInputs, noise
from rl_training.learners.replay_on_device import _FIRST_INPUT, _NUMBERS, epsilon_greedy, warm_up
from rl_training.runtime import device_replay_loop
from rl_training.runtime.device_replay_loop import DeviceReplayLoop
from rl_training.runtime.trainer import RunOptions, resume, train
from stand_ins import StopAt
from state_comparison import assert_identical, assert_same_run

Q_LEARNING = {
    "train_frequency": 4,
    "gradient_steps": 2,
    "target_update_interval": 3,
    "exploration_fraction": 0.0,
    "learning_rate_schedule": "constant",
}
CONTINUOUS: dict[str, dict[str, Any]] = {"sac": {}, "td3": {"policy_delay": 2}}
CASES = ["dqn", *CONTINUOUS]
HEADS = ["noisy_dqn", "n_step_dqn", "prioritized_dqn", "c51_dqn", "qr_dqn", "iqn", "fqf", "rainbow_dqn"]
STEPS = 4 * 4  # of an iteration


@pytest.fixture(autouse=True)
def _short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_replay_loop, "ROUNDS", 4)


def config(tmp_path: Path, algo: str, **changes: Any) -> TrainConfig:
    kwargs = {"buffer_capacity": 60, "batch_size": 16, "learning_starts": 24, "hidden_sizes": [8, 8]}
    settings = {
        "algo": algo,
        "env_id": "tensor/Pendulum-v1" if algo in CONTINUOUS else "tensor/CartPole-v1",
        "execution_backend": "tensor",
        "num_envs": 4,
        "total_timesteps": 96,
        "log_interval": 16,
        "eval_episodes": 1,
        "device": "cpu",
        "acceleration": "eager",
        "tensorboard": False,
        "output_dir": tmp_path,
    }
    own = CONTINUOUS.get(algo, Q_LEARNING) | changes.pop("algo_kwargs", {})
    return TrainConfig(**{**settings, **changes, "algo_kwargs": kwargs | own})


def make_loop(settings: TrainConfig) -> tuple[DeviceReplayLoop, Any, Any, Any]:
    prepared, collector = prepare(settings.updated(acceleration="eager"))
    algorithm: Any = prepared.algorithm
    memory: Any = prepared.memory
    return DeviceReplayLoop([algorithm], [collector], [memory], settings), algorithm, collector, memory


# --- A whole run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", CASES)
def test_a_run_has_the_usual_folder_and_all_its_updates(algo: str, tmp_path: Path) -> None:
    settings = config(tmp_path, algo)
    result = train(settings, QUIET)
    assert result.step == 96  # six iterations of four steps of four environments
    assert result.gradient_step == settings.spec.updates_until(settings.hparams, 96) > 30
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert sorted({record["step"] for record in records}) == [16, 32, 48, 64, 80, 96]
    records = [record for record in records if "q_value_mean" in record["metrics"]]  # not that of the last evaluation
    loss = "loss" if algo == "dqn" else "critic_loss"
    assert records[-1]["metrics"].keys() >= {loss, "q_value_mean"}
    assert np.isfinite(records[-1]["metrics"][loss])
    if algo == "dqn":
        episodes = [json.loads(line) for line in (result.run_dir / "episodes.jsonl").read_text("utf-8").splitlines()]
        assert len(episodes) == records[-1]["metrics"]["episodes"]
        assert all(line["return"] == line["length"] for line in episodes)


@pytest.mark.parametrize("algo", [*CASES, "iqn", "fqf", "rainbow_dqn"])
def test_a_stopped_run_continues_bit_for_bit(algo: str, tmp_path: Path) -> None:
    settings = config(tmp_path, algo)
    whole = train(settings, QUIET)
    half = train(settings, RunOptions(show_progress=False, callbacks=[StopAt(48)]))
    assert half.step == 48
    assert_same_run(resume(half.run_dir, QUIET), whole)


def test_nothing_is_learned_before_the_first_n_step_return_is_complete(tmp_path: Path) -> None:
    settings = config(tmp_path, "n_step_dqn", algo_kwargs={"n_step": 3, "learning_starts": 0})
    loop, algorithm, _, memory = make_loop(settings)
    loop.iteration(0)
    assert len(memory) == 2 * 4  # of four steps of four environments, the last two have no return yet
    assert algorithm.num_updates == 2 * 2


# --- The same update as on the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "kwargs"),
    [
        *((algo, {}) for algo in (*CASES, *HEADS)),
        ("iqn", {"munchausen": True, "tau": 0.05, "target_update_interval": 1, "act_with_target": True}),
        ("qr_dqn", {"n_step": 2, "noisy": True, "prioritized": True, "dueling": True}),
        ("sac", {"n_step": 2, "prioritized": True}),
    ],
)
def test_updates_on_the_device_equal_those_of_the_host(
    algo: str, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path, algo, algo_kwargs=kwargs)
    loop, algorithm, _, memory = make_loop(settings)
    _, other, _, _ = make_loop(settings)
    batches: list[dict[str, Any]] = []

    def noted(step: Any) -> Any:
        def call(state: Any, batch: Any) -> Any:
            batches.append({name: value.clone() for name, value in batch.items()})
            return step(state, batch)

        return call

    monkeypatch.setattr(loop, "_steps", {kind: noted(step) for kind, step in loop._steps.items()})
    for number in range(5):
        loop.iteration(number * STEPS)
    assert len(batches) == algorithm.num_updates > 20
    seed, drawn = algorithm._noise_seed, {"batch": batches[0]}

    def fill(self: RandomInputs, generator: object) -> dict[str, torch.Tensor]:
        row, update = drawn["batch"]["row"], drawn["batch"]["update"]
        for lane, (name, draw) in enumerate(self._draws.filled.items()):
            rows = row[:1] if draw.fill is noise else row  # all rows share the noise of weights
            keys = Keys(torch.full_like(rows, seed), rows, torch.zeros_like(rows), update.expand_as(rows))
            count = math.prod(draw.shape) // len(rows)
            self._batch[name].copy_(_NUMBERS[draw.fill](keys, _FIRST_INPUT + lane, count).view(draw.shape))
        return self._batch

    monkeypatch.setattr(RandomInputs, "fill", fill)
    for batch in batches:
        drawn["batch"] = batch
        found = other.update({name: value for name, value in batch.items() if name not in ("row", "update", "seed")})
    assert other.num_updates == algorithm.num_updates
    ours, theirs = loop.state, other.state
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, rtol=1e-4, atol=1e-5), name
    if settings.hparams.prioritized:  # type: ignore[attr-defined]
        expected = (found.td_errors.max().double() + 1e-6) ** settings.hparams.prioritized_alpha  # type: ignore[attr-defined]
        values = memory._priorities._values  # of the last batch
        torch.testing.assert_close(values.max(), expected, rtol=1e-3, atol=1e-4)
        assert math.isclose(float(memory._priorities.table.sum()), float(memory._priorities.sums.sum()))


@pytest.mark.usefixtures("recorded_graphs")
@pytest.mark.parametrize("algo", ["dqn", "td3", "rainbow_dqn"])
def test_captured_iterations_equal_eager_ones_bit_for_bit(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_replay_loop, "COMPILED", "eager")
    monkeypatch.setattr(device_replay_loop, "ROUNDS", 2)
    settings = config(tmp_path, algo, algo_kwargs={"learning_starts": 12})
    eager, one, collector, memory = make_loop(settings)
    captured, two, other, replay = make_loop(settings.updated(acceleration="cuda_graph"))
    for number in range(3):
        assert_identical(captured.iteration(number * 8).metrics, eager.iteration(number * 8).metrics)
    assert len(captured._graphs) == 3  # warm-up, its end, and learning
    assert_identical(two.policy_state_dict(), one.policy_state_dict())
    assert_identical(two.state_dict(), one.state_dict())
    assert_identical(other.state_dict(), collector.state_dict())
    assert_identical(replay.state_dict(), memory.state_dict())


def test_the_successor_of_a_last_step_is_never_the_start_of_the_next_episode(tmp_path: Path) -> None:
    loop, _, _, replay = make_loop(config(tmp_path, "dqn", max_episode_steps=7, algo_kwargs={"buffer_capacity": 1_000}))
    for number in range(24):
        loop.iteration(number * STEPS)
    rows = replay.layout.tensors(replay.rows.view(-1), len(replay))
    by_env = {name: values.unflatten(0, (-1, 4)) for name, values in rows.items()}
    moved = (by_env["next_obs"][:-1] != by_env["obs"][1:]).any(-1)  # where an episode ended
    assert moved.sum() > 50
    # A step of CartPole moves each number by less than this; a new episode starts anywhere near 0.
    step_size = (by_env["next_obs"] - by_env["obs"]).abs().amax((0, 1))
    assert (step_size < torch.tensor([0.1, 0.5, 0.1, 0.8])).all()
    assert not by_env["terminated"].all()
    assert len(by_env["rewards"]) == 4 * 24


# --- Acting ----------------------------------------------------------------------------------------------------------


def some_keys(rows: int) -> Keys:
    row = torch.arange(rows)
    return Keys(torch.full_like(row, 3), row, torch.zeros_like(row), torch.zeros_like(row))


def test_epsilon_is_the_share_of_random_actions_among_all_choices() -> None:
    q_values = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).repeat(20_000, 1)
    shares = torch.bincount(epsilon_greedy(q_values, torch.tensor(0.4), some_keys(20_000))) / 20_000
    assert shares.tolist() == pytest.approx([0.1, 0.7, 0.1, 0.1], abs=0.015)
    assert (epsilon_greedy(q_values, torch.tensor(0.0), some_keys(20_000)) == 1).all()


def test_actions_of_the_warm_up_are_uniform() -> None:
    actions, keys = torch.full((20_000, 2), 0.3), some_keys(20_000)
    assert warm_up(actions, torch.tensor(0.0), keys).equal(actions)
    drawn = warm_up(actions, torch.tensor(1.0), keys)
    assert drawn.abs().max() <= 1.0
    assert drawn.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=0.02)
    assert drawn.std(0).tolist() == pytest.approx([3**-0.5] * 2, abs=0.02)
    assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 0.03


@pytest.mark.parametrize(
    ("algo", "kwargs", "message"),
    [
        ("dqn", {"n_step_start": 3}, "execution_backend: tensor needs algo_kwargs.n_step_start: null"),
        ("c51_dqn", {"gamma_start": 0.9}, "execution_backend: tensor needs algo_kwargs.gamma_start: null"),
        ("td3", {"normalize_observations": True}, "needs algo_kwargs.normalize_observations: false"),
        ("sac", {"network": "simba"}, "needs algo_kwargs.normalize_observations: false"),
        ("dqn", {"reset_interval": 10}, "needs algo_kwargs.reset_interval: null"),
        ("rainbow_dqn", {"self_prediction_steps": 5}, "needs algo_kwargs.self_prediction_steps: 0"),
    ],
)
def test_settings_that_the_device_loop_lacks_are_refused(
    algo: str, kwargs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, algo, algo_kwargs=kwargs)
