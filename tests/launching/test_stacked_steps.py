"""Stacked members with tensor environments: each acts, steps, samples or shuffles, and learns as it would alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.exactness import differences

from device_loops import prepare
from recorded_streams import RecordedStreams
from rl_training.api.algorithms import managed_class
from rl_training.core.types import Batch, Metrics, State
from rl_training.data.device_replay import DeviceReplay
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY
from rl_training.experiment.population import PopulationConfig, PopulationDir
from rl_training.experiment.registry import registry
from rl_training.experiment.run_dir import read_run_config
from rl_training.launching.populations import PopulationResult, resume_population, train_population
from rl_training.learners import stack as learners_stack
from rl_training.learners.replay_on_device import with_random_inputs
from rl_training.learners.stack import stack_states
from rl_training.runtime import device_loop, device_replay_loop, stacked_work
from rl_training.runtime.device_loop import DeviceLoop
from rl_training.runtime.device_replay_loop import DeviceReplayLoop
from rl_training.runtime.trainer import resume, train
from stacks import QUIET, Killed, kill_at, member, poison, saved

CONTINUOUS = ("sac", "td3")
LOOPS = {"dqn": "DeviceReplayLoop", "ppo": "DeviceLoop"}
ROLLOUTS: dict[str, dict[str, Any]] = {"ppo": {"normalize": "both", "clip_schedule": "linear"}, "pqn": {}}


@pytest.fixture(autouse=True)
def _short_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_replay_loop, "ROUNDS", 4)


def base(folder: Path, algo: str = "dqn", **changes: Any) -> TrainConfig:
    """Six iterations of four steps of two environments; off-policy, with updates after the second."""
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": "tensor/Pendulum-v1" if algo in CONTINUOUS else "tensor/CartPole-v1",
        "execution_backend": "tensor",
        "num_envs": 2,
        "total_timesteps": 48,
        "log_interval": 8,
        "eval_interval": 24,
        "checkpoint_interval": 24,
        "eval_episodes": 1,
        "max_episode_steps": 5,
        "device": "cpu",
        "acceleration": "eager",
        "tensorboard": False,
        "output_dir": folder,
    }
    own: dict[str, Any] = {"buffer_capacity": 30, "batch_size": 8, "learning_starts": 16, "train_frequency": 2}
    if algo not in CONTINUOUS:
        own |= {"target_update_interval": 3, "gradient_steps": 2, "exploration_fraction": 0.0}
    if algo in ROLLOUTS:
        own = {"num_steps": 4, "minibatch_size": 4, "update_epochs": 2} | ROLLOUTS[algo]
    kwargs = {"hidden_sizes": [8, 8]} | own | changes.pop("algo_kwargs", {})
    return TrainConfig(**{**values, **changes, "algo_kwargs": kwargs})


def stack(folder: Path, algo: str = "dqn", seeds: tuple[int, ...] = (0, 1, 2), **changes: Any) -> PopulationResult:
    return train_population(PopulationConfig(base=base(folder, algo, **changes), seeds=seeds, run="stacked"), QUIET)


def assert_close(ours: Path, theirs: Path) -> None:
    expected = saved(theirs, POLICY)
    torch.testing.assert_close(saved(ours, POLICY), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", ["dqn", "iqn", "fqf", "rainbow_dqn", *CONTINUOUS, *ROLLOUTS])
def test_stacked_members_learn_as_single_runs_do(algo: str, tmp_path: Path, recorded_streams: RecordedStreams) -> None:
    result = stack(tmp_path, algo)
    drawn = {number: recorded_streams.take(number) for number in (0, 2)}
    assert [state.state for state in result.states.values()] == ["done"] * 3
    for number in (0, 2):
        alone = train(base(tmp_path / "alone", algo, seed=number), QUIET)
        assert recorded_streams.take(number) == drawn[number]
        assert_close(member(result, number), alone.run_dir)
        ours, theirs = (saved(folder, MEMORY) for folder in (member(result, number), alone.run_dir))
        stored = 44 if algo == "rainbow_dqn" else 48  # two more steps complete an n-step return
        assert ours.get("count") == theirs.get("count") == (None if algo in ROLLOUTS else stored)
        if algo == "dqn":  # the same actions, and therefore the same rows up to rounding
            assert np.mean(np.asarray(ours["rows"]) == np.asarray(theirs["rows"])) > 0.9
        logs = [read_json_lines(folder / "metrics.jsonl") for folder in (member(result, number), alone.run_dir)]
        assert [(line["step"], line["gradient_step"]) for line in logs[0]] == [
            (line["step"], line["gradient_step"]) for line in logs[1]
        ]
        episodes = [read_json_lines(folder / "episodes.jsonl") for folder in (member(result, number), alone.run_dir)]
        assert [line["episode"] for line in episodes[0]] == [line["episode"] for line in episodes[1]]
        assert len(episodes[0]) >= 8  # of at most five steps each


def test_a_stack_of_one_member_is_a_single_run(tmp_path: Path) -> None:
    result = stack(tmp_path, seeds=(2,))
    alone = train(base(tmp_path / "alone", seed=2), QUIET)
    assert [state.state for state in result.states.values()] == ["done"]
    assert differences(member(result, 0), alone.run_dir) == []


@pytest.mark.parametrize(
    ("algo", "vary"),
    [
        ("dqn", {"learning_rate": (1e-3, 1e-2)}),
        ("ppo", {"learning_rate": (1e-3, 1e-2), "clip_coef": (0.1, 0.3), "ent_coef": (0.0, 0.2)}),
        ("pqn", {"learning_rate": (1e-3, 1e-2), "epsilon_end": (0.0, 0.9)}),
    ],
)
def test_members_differ_in_settings_and_do_not_depend_on_each_other(
    algo: str, vary: dict[str, tuple[float, ...]], tmp_path: Path
) -> None:
    named = {f"algo_kwargs.{name}": values for name, values in vary.items()}
    config = PopulationConfig(base=base(tmp_path, algo), seeds=(0, 1), run="stacked", vary=named, combine="zip")
    result = train_population(config, QUIET)
    assert len(result.states) == 2
    assert len(PopulationDir(result.folder).stacks() or ()) == 1
    for number in range(2):
        own = read_run_config(member(result, number))
        alone = train(own.updated(output_dir=tmp_path / "alone"), QUIET)
        assert_close(member(result, number), alone.run_dir)


@pytest.mark.parametrize("algo", LOOPS)
def test_a_member_does_not_depend_on_the_settings_of_the_others(algo: str, tmp_path: Path) -> None:
    def with_rates(folder: Path, *rates: float) -> Path:
        vary = {"algo_kwargs.learning_rate": rates}
        config = PopulationConfig(base=base(folder, algo), seeds=(0, 1), vary=vary, combine="zip", run="stacked")
        return member(train_population(config, QUIET), 0)

    assert differences(with_rates(tmp_path, 1e-3, 1e-2), with_rates(tmp_path / "other", 1e-3, 3e-2)) == []


VALUES: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-3, 1e-2),
    "clip_coef": (1e-4, 0.3),
    "ent_coef": (0.0, 0.2),
    "vf_coef": (0.1, 1.0),
    "epsilon_start": (0.1, 1.0),
    "epsilon_end": (0.0, 0.1),
}


@pytest.mark.parametrize(
    ("algo", "setting"), [(algo, name) for algo in ROLLOUTS for name in sorted(registry()[algo].per_member)]
)
def test_a_stack_with_two_values_equals_two_stacks_with_one(algo: str, setting: str, tmp_path: Path) -> None:
    vary = {f"algo_kwargs.{setting}": VALUES[setting]}
    config = PopulationConfig(base=base(tmp_path, algo), seeds=(0,), run="stacked", vary=vary)
    both = train_population(config, QUIET)
    assert len(PopulationDir(both.folder).stacks() or ()) == 1
    for number, value in enumerate(VALUES[setting]):
        alone = stack(tmp_path / "alone", algo, seeds=(0,), algo_kwargs={setting: value})
        assert_close(member(both, number), member(alone, 0))
    assert any(text.startswith("policy") for text in differences(member(both, 0), member(both, 1)))


@pytest.mark.parametrize("algo", LOOPS)
def test_an_interrupted_stack_continues_as_if_it_never_was(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stack(tmp_path / "whole", algo)
    with monkeypatch.context() as patch:
        kill_at(patch, stacked_work.StackedSteps, 32)
        with pytest.raises(Killed):
            stack(tmp_path / "broken", algo)
    (folder,) = (tmp_path / "broken").iterdir()
    resumed = resume_population(folder, QUIET)
    for number in range(3):
        assert differences(member(resumed, number), member(whole, number)) == []


def test_a_stack_that_continues_holds_its_replay_buffers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, stacked_work.StackedSteps, 32)
        with pytest.raises(Killed):
            stack(tmp_path, "rainbow_dqn")
    loaded, load = list[int](), DeviceReplay.load_state_dict

    def noting(replay: DeviceReplay, state: Mapping[str, Any]) -> None:
        loaded.append(replay.rows.untyped_storage().data_ptr())
        load(replay, state)

    monkeypatch.setattr(DeviceReplay, "load_state_dict", noting)
    (folder,) = tmp_path.iterdir()
    resume_population(folder, QUIET)
    assert len(loaded) == 3
    assert len(set(loaded)) == 1  # each member loads into its part of the stack


@pytest.mark.parametrize(("algo", "updates"), [("dqn", 48), ("ppo", 8 * 2 * 2)])
def test_a_member_evaluates_predicts_loads_and_continues_alone(algo: str, updates: int, tmp_path: Path) -> None:
    result = stack(tmp_path, algo, seeds=(0, 1))
    agent = managed_class(algo).load(member(result, 1), show_progress=False)
    assert agent.predict(np.zeros((2, 4), np.float32)).shape == (2,)
    (episode,) = json.loads((member(result, 1) / "result.json").read_text())["eval"]
    assert [one.ret for one in agent.evaluate(episodes=1)] == [episode["return"]]
    longer = resume(member(result, 1), QUIET, total_timesteps=64)
    assert longer.step == 64
    assert longer.gradient_step == updates


def test_a_member_does_not_depend_on_its_place_or_on_the_others(tmp_path: Path) -> None:
    three, two = stack(tmp_path, "ppo", seeds=(4, 5, 6)), stack(tmp_path, "ppo", seeds=(6, 4))
    for number, other in ((0, 1), (2, 0)):
        assert_close(member(three, number), member(two, other))


def loop_over(folder: Path, algo: str, *seeds: int, **changes: Any) -> Any:
    prepared = [prepare(base(folder, algo, seed=seed, **changes)) for seed in seeds]
    algorithms: list[Any] = [one.algorithm for one, _ in prepared]
    memories: list[Any] = [one.memory for one, _ in prepared]
    stacked_work.join_memories(memories)
    kind: Any = DeviceLoop if algo in ROLLOUTS else DeviceReplayLoop
    return kind(algorithms, [collector for _, collector in prepared], memories, prepared[0][0].config)


@pytest.mark.parametrize("algo", ROLLOUTS)
def test_shuffles_resets_and_actions_of_a_stack_are_those_of_single_runs_bit_for_bit(algo: str, tmp_path: Path) -> None:
    loops = [loop_over(tmp_path, algo, seed) for seed in (3, 8)]
    both = loop_over(tmp_path, algo, 3, 8)
    for loop in (*loops, both):
        loop.iteration()
    for number, alone in enumerate(loops):
        ours, theirs = both.episodes_of(number)[0], alone.episodes_of(0)[0]
        assert torch.equal(ours["actions"], theirs["actions"])
        assert torch.equal(ours["obs"], theirs["obs"])
        assert both.num_ended[number] == alone.num_ended
        for epoch in range(2):
            assert torch.equal(both._learning._order(epoch)[number], alone._learning._order(epoch))


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("dqn", {"epsilon_start": 1.0, "epsilon_end": 1.0}),
        ("rainbow_dqn", {"learning_starts": 1_000}),
        ("sac", {"learning_starts": 1_000}),
        ("td3", {"learning_starts": 1_000}),
    ],
)
def test_exploration_resets_and_batches_of_a_stack_are_those_of_single_runs_bit_for_bit(
    algo: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    loops = [loop_over(tmp_path, algo, seed, algo_kwargs=changes) for seed in (3, 8)]
    both = loop_over(tmp_path, algo, 3, 8, algo_kwargs=changes)
    for loop in (*loops, both):
        for number in range(6):
            loop.iteration(8 * number)
    update = torch.tensor(7)
    batch = both._replay.sample(update.expand(2))
    for number, alone in enumerate(loops):
        assert torch.equal(both._replay.rows[number], alone._replay.rows)
        assert both.num_ended[number] == alone.num_ended >= 8
        for name, values in alone._replay.sample(update).items():
            assert torch.equal(batch[name][number], values), name


@pytest.mark.parametrize("algo", ["sac", "iqn", "noisy_dqn"])
def test_random_inputs_of_a_stack_are_those_of_single_runs_bit_for_bit(algo: str, tmp_path: Path) -> None:
    algorithm: Any = loop_over(tmp_path, algo, 3)._algorithms[0]
    inputs = algorithm.random_inputs(next(iter(algorithm.pure_steps)), 1)

    def keep(state: State, batch: Batch) -> tuple[State, Metrics]:
        return {name: batch[name] for name in inputs}, {}

    drawing = with_random_inputs(keep, inputs)
    rows = torch.arange(max(draw.shape[0] for draw in inputs.values()))
    numbers = [{"seed": torch.tensor(seed), "row": rows, "update": torch.tensor(4)} for seed in (3, 8)]
    both, _ = torch.func.vmap(drawing, randomness="error")({}, stack_states(numbers))
    assert both.keys() == inputs.keys()
    for number, of_member in enumerate(numbers):
        for name, values in drawing({}, of_member)[0].items():
            assert torch.equal(both[name][number], values), name
    assert not any(torch.equal(*values) for values in both.values())


@pytest.mark.parametrize("algo", ROLLOUTS)
def test_members_stay_within_a_ten_thousandth_of_single_runs_for_a_hundred_updates(algo: str, tmp_path: Path) -> None:
    loops = [loop_over(tmp_path, algo, seed) for seed in (3, 8)]
    both = loop_over(tmp_path, algo, 3, 8)
    for loop in (*loops, both):
        loop._collect()
        for number in range(25):  # of two epochs of two minibatches
            loop._update.fill_(number)
            assert loop._learn().num_gradient_steps == 4
    for number, alone in enumerate(loops):
        for name, value in alone.state.items():
            error = (both.state[name][number].double() - value.double()).norm()
            assert error <= 1e-4 * (value.double().norm() + 1.0), name


def test_the_check_of_the_memory_counts_what_an_update_keeps_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []
    monkeypatch.setattr(learners_stack, "check_memory", lambda size, *_, available: needed.append(size))
    made: list[DeviceLoop] = []
    real = DeviceLoop.__init__

    def noted(self: DeviceLoop, *args: Any) -> None:
        made.append(self)
        real(self, *args)

    monkeypatch.setattr(DeviceLoop, "__init__", noted)
    stack(tmp_path, "ppo", (0, 1))
    (loop,) = made
    state = sum(value.nbytes for name, value in loop.state.items() if name != "alive")
    kept = sum(value.nbytes for value in loop._learning._memory.values())
    assert needed == [learners_stack.COPIES * state + loop._rollout.num_bytes + kept]


@pytest.mark.parametrize("algo", LOOPS)
def test_a_member_that_diverges_ends_alone(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = stack(tmp_path / "healthy", algo)
    poison(monkeypatch, stacked_work.StackedSteps, "params", {24: [1]})
    result = stack(tmp_path / "poisoned", algo)
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    for number in (0, 2):
        assert differences(member(result, number), member(healthy, number)) == []


@pytest.mark.usefixtures("recorded_graphs")
@pytest.mark.parametrize("algo", LOOPS)
def test_captured_members_equal_eager_ones(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = stack(tmp_path / "eager", algo, seeds=(0, 1), total_timesteps=24)
    for module in (device_loop, device_replay_loop):
        monkeypatch.setattr(module, "COMPILED", "eager")
    make = getattr(stacked_work, LOOPS[algo])

    def capturing(algorithms: Any, collectors: Any, memories: Any, config: TrainConfig) -> Any:
        return make(algorithms, collectors, memories, config.updated(acceleration="cuda_graph"))

    monkeypatch.setattr(stacked_work, LOOPS[algo], capturing)
    captured = stack(tmp_path / "captured", algo, seeds=(0, 1), total_timesteps=24)
    for number in range(2):
        assert differences(member(captured, number), member(eager, number)) == []


def test_stacked_members_of_on_policy_algorithms_need_tensor_environments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stacked members of ppo need tensor environments: set execution_backend"):
        stack(tmp_path, "ppo", env_id="CartPole-v1", execution_backend="local_sync")
