"""What every registered algorithm must do. A new row of the registry gets these tests by being there."""

import itertools
import random
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

import rl_training
from builders import make_batch, make_config, make_setup
from rl_training.acceleration import steps
from rl_training.acceleration.steps import InPlaceStep, Step, accelerate
from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.spaces import to_env_actions
from rl_training.core.types import Batch, Metrics, State
from rl_training.envs.factory import EnvFactory
from rl_training.envs.tiny import Masked, TinyDict
from rl_training.experiment.checkpointing import save_checkpoint
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.registry import registry
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.experiment.space_checks import check_spaces
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.q_learning import QLearner
from rl_training.runtime.run import Run
from rl_training.runtime.run_spaces import spaces_of
from small_runs import advance, make_run, some_actions
from state_comparison import assert_identical, clone

ALGORITHMS = sorted(registry())
ACTIONS = [(name, kind) for name in ALGORITHMS for kind in sorted(registry()[name].actions)]
EXAMPLES = Path(__file__).parents[2] / "examples"
GLOSSARY = Path(__file__).parents[2] / "docs" / "metrics.md"
METRICS = {
    name
    for line in GLOSSARY.read_text("utf-8").splitlines()
    if line.startswith("| `")
    for name in re.findall(r"`(\w+)`", line.split("|")[1])
}


def some_obs(run: Run) -> np.ndarray:
    assert run.env_factory is not None
    space = spaces_of(run.env_factory).observation
    space.seed(0)
    return np.stack([space.sample() for _ in range(30)])


@pytest.mark.parametrize(("name", "actions"), ACTIONS)
@pytest.mark.parametrize("explore", [False, True])
def test_acts_in_its_space(name: str, actions: str, explore: bool) -> None:
    run = make_run(name, actions=actions)
    assert run.env_factory is not None
    spaces = spaces_of(run.env_factory)
    check_spaces(run.config.spec, spaces, run.config.env_id)
    for step in (0, 100, 10**6):
        chosen = run.algorithm.act(some_obs(run), step=step, explore=explore).actions
        for_env = to_env_actions(spaces.action)(chosen).astype(spaces.action.dtype)
        assert len(for_env) == 30
        assert all(spaces.action.contains(action) for action in for_env)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_greedy_acting_repeats_itself_and_leaves_the_state_alone(name: str) -> None:
    run = make_run(name)
    advance(run, 5)
    obs, before = some_obs(run), clone(run.parts())
    first, again = run.algorithm.act(obs).actions, run.algorithm.act(obs).actions
    assert np.array_equal(first, again)
    assert_identical(run.parts(), before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_updates_learn_and_give_finite_documented_scalars(name: str) -> None:
    run = make_run(name)
    before = clone(run.algorithm.policy_state_dict())
    advance(run, 8)
    assert run.gradient_step >= 1
    assert run.last_metrics
    assert all(value.shape == () and not value.requires_grad for value in run.last_metrics.values())
    assert all(torch.isfinite(value) for value in run.last_metrics.values())
    assert all(np.isfinite(value) for value in run.algorithm.status(run.step).values())
    assert {*run.last_metrics, *run.algorithm.status(run.step)} <= METRICS
    after = run.algorithm.policy_state_dict()
    assert any(not torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_state_loads_into_another_one(name: str) -> None:
    run, other = make_run(name), make_run(name, seed=1)
    advance(run, 5)
    other.load(run.counters(), clone(run.parts()))
    assert_identical(other.parts(), run.parts())


def check_resume(make: Callable[[], Run], folder: Path, steps: int = 10) -> Run:
    """Some steps, saved and loaded, and as many more, equal twice as many, bit for bit; gives the resumed run."""
    unbroken = make()
    expected = advance(unbroken, 2 * steps)

    first = make()
    metrics = advance(first, steps)
    path = save_checkpoint(folder, config=first.config, counters=first.counters(), parts=first.parts())
    resumed, checkpoint = make(), open_checkpoint(path)
    parts = {part: checkpoint.load(part) for part in (POLICY, TRAINING, MEMORY)}
    resumed.load(checkpoint.manifest["counters"], parts)
    metrics += advance(resumed, steps)

    assert metrics == expected
    assert resumed.gradient_step == unbroken.gradient_step >= 1
    assert_identical(resumed.parts(), unbroken.parts())
    return resumed


@pytest.mark.learning
@pytest.mark.parametrize(("name", "actions"), ACTIONS)
def test_ten_steps_saved_and_loaded_and_ten_more_equal_twenty(name: str, actions: str, tmp_path: Path) -> None:
    check_resume(lambda: make_run(name, actions=actions), tmp_path)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_policy_alone_acts_like_the_whole(name: str) -> None:
    run, other = make_run(name), make_run(name, seed=1)
    advance(run, 10)
    other.algorithm.load_policy_state_dict(clone(run.algorithm.policy_state_dict()))
    obs = some_obs(run)
    assert np.array_equal(other.algorithm.act(obs).actions, run.algorithm.act(obs).actions)


@pytest.mark.learning
@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_class_learns_predicts_saves_and_loads(name: str, tmp_path: Path) -> None:
    spec = registry()[name]
    config = make_config(
        tmp_path / "runs",
        algo=name,
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": some_actions(spec)},
        total_timesteps=20,
    )
    managed = getattr(rl_training, spec.class_name)
    agent = managed(config, show_progress=False)
    result = agent.learn()
    assert result.step == 20
    assert all(np.isfinite(value) for value in result.metrics.values())
    obs = np.random.default_rng(0).random((30, 3), np.float32)
    loaded = managed.load(agent.save(tmp_path / "agent"), show_progress=False)
    assert np.array_equal(loaded.predict(obs), agent.predict(obs))
    assert loaded.evaluate(episodes=2) == agent.evaluate(episodes=2)


def test_every_algorithm_has_an_example() -> None:
    assert [name for name in ALGORITHMS if not list(EXAMPLES.glob(f"{name}_*_reference.py"))] == []


# --- What composes in the DQN family ---------------------------------------------------------------------------------


class Drawn(gym.Env[np.ndarray, np.int64]):
    """Observations of any Box are drawn at random, rewards too; a tenth of the steps terminates, the seventh truncates.

    A stack of frames keeps all but its oldest one from step to step.
    """

    def __init__(self, space: Box) -> None:
        self.observation_space, self.action_space = space, Discrete(3)
        self._obs: np.ndarray = np.zeros(space.shape, space.dtype)
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        terminated, reward = bool(self.np_random.random() < 0.1), float(self.np_random.normal())
        return self._draw(), reward, terminated, self._num_steps == 7, {}

    def _draw(self) -> np.ndarray:
        space = self.observation_space
        shares = self.np_random.random(space.shape)
        drawn: np.ndarray = (shares * (255 if space.dtype == np.uint8 else 1)).round(2).astype(space.dtype)
        if isinstance(space, FrameStackSpace) and self._num_steps:
            layers = space.frame_shape[0]
            drawn = np.concatenate([self._obs[layers:], drawn[:layers]])
        self._obs = drawn
        return np.array(drawn)


OBSERVATIONS: dict[str, EnvFactory] = {
    "vector": lambda: Drawn(Box(0.0, 1.0, (3,), np.float32)),
    "image": lambda: Drawn(Box(0, 255, (8, 8, 1), np.uint8)),
    "float image": lambda: Drawn(Box(0.0, 1.0, (8, 8, 1), np.float32)),
    "flags": lambda: Drawn(Box(0, 1, (10, 10, 4), np.bool_)),  # type: ignore[arg-type]  # as MinAtar's
    "frames": lambda: Drawn(FrameStackSpace(3, (3, 12, 12))),
    "dict": TinyDict,
    "masks": Masked,
}
HEADS = ["dqn", "c51_dqn", "qr_dqn", "iqn", "fqf"]
OPTIONS = ("double_q", "dueling", "noisy", "prioritized", "n_step")
NAMES = ("head", "observations", *OPTIONS)


def covering_cases() -> list[tuple[Any, ...]]:
    """Every head with every kind of observation; the options beside them are drawn so that each pair occurs."""
    draw = random.Random(3)
    return [(*pair, *(draw.random() < 0.5 for _ in OPTIONS)) for pair in itertools.product(HEADS, OBSERVATIONS)]


def test_the_cases_cover_every_pair_of_choices() -> None:
    columns = dict(zip(NAMES, zip(*covering_cases(), strict=True), strict=True))
    for one, other in itertools.combinations(NAMES, 2):
        seen = set(zip(columns[one], columns[other], strict=True))
        assert seen == set(itertools.product(set(columns[one]), set(columns[other]))), (one, other)


@pytest.mark.learning
@pytest.mark.parametrize("case", covering_cases(), ids=lambda case: "-".join(str(value) for value in case))
def test_any_head_composes_with_any_options_and_observations(case: tuple[Any, ...], tmp_path: Path) -> None:
    choices = dict(zip(NAMES, case, strict=True))
    hparams = {name: choices[name] for name in OPTIONS} | {"n_step": 3 if choices["n_step"] else 1}
    factory = OBSERVATIONS[choices["observations"]]
    run = check_resume(lambda: make_run(choices["head"], factory=factory, **hparams), tmp_path, steps=5)
    assert all(torch.isfinite(value) for value in run.last_metrics.values())
    batch = run.memory.sample(4)  # type: ignore[attr-defined]
    options = {"discounts": "n_step", "weights": "prioritized"}
    assert {name for name in options if name in batch} == {name for name, option in options.items() if choices[option]}
    assert ("next_action_mask" in batch) == (choices["observations"] == "masks")


@pytest.mark.learning
@pytest.mark.parametrize("observations", ["image", "dict", "masks"])
def test_a_recurrent_policy_resumes_inside_an_episode_with_any_observations(observations: str, tmp_path: Path) -> None:
    # Episodes of at most 7 or 10 steps, rollouts of 4: after 5 steps an episode and a rollout are open.
    factory = OBSERVATIONS[observations]
    check_resume(lambda: make_run("recurrent_ppo", factory=factory, unroll_length=2), tmp_path, steps=5)


@pytest.mark.learning
def test_resets_annealed_returns_self_prediction_and_augmented_frames_resume_exactly(tmp_path: Path) -> None:
    hparams: dict[str, Any] = {"reset_interval": 8, "anneal_updates": 6, "encoder_width": 1, "gradient_steps": 1}
    run = check_resume(lambda: make_run("bbf", factory=OBSERVATIONS["frames"], **hparams), tmp_path, steps=7)
    assert run.gradient_step > 8
    assert run.last_metrics["self_prediction_loss"] > 0.0


# --- Compiled updates ------------------------------------------------------------------------------------------------
# All heads in one program, which takes half a minute instead of a quarter for each; DQN's own is in test_dqn_update.py.
# Rainbow has dueling streams and noise, and predicts its own features of images; the others have what it has not; rows
# that differ in their memory have its weights and discounts.

STYLES: dict[str, dict[str, Any]] = {
    "rainbow_dqn": {
        "observation": Box(0, 255, (5, 5, 1), np.uint8),
        "self_prediction_steps": 2,
        "augmentation": "shift",
    },
    "qr_dqn": {"tau": 0.1, "target_update_interval": 1},
    "iqn": {"noisy": True},
    "fqf": {"double_q": True, "fraction_learning_rate": 1e-3},
}


def all_learners() -> dict[str, QLearner]:
    learners = {}
    for name, style in STYLES.items():
        setup = make_setup(algo=name, num_actions=3, hidden_sizes=(8,), layer_norm=False, **style)
        learner = registry()[name].build_algorithm(setup)
        assert isinstance(learner, QLearner)
        learners[name] = learner
    return learners


def all_at_once(learners: dict[str, QLearner]) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """One step that updates every learner; names of tensors begin with the learner's."""

    def of(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        new: State = {}
        metrics: Metrics = {}
        for name, learner in learners.items():
            new_state, more = learner.pure_step(of(name, state), of(name, batch))
            new |= {f"{name}/{key}": value for key, value in new_state.items()}
            metrics |= {f"{name}/{key}": value for key, value in more.items()}
        return new, metrics

    return step


@pytest.mark.compile
def test_compiled_updates_of_every_head_equal_eager_ones() -> None:
    def run(mode: str) -> tuple[list[Metrics], State]:
        learners = all_learners()
        state = {f"{name}/{key}": value for name, learner in learners.items() for key, value in learner._state.items()}
        update, results = accelerate(all_at_once(learners), mode), []
        generator = torch.Generator().manual_seed(0)
        for seed in range(5):
            shared = make_batch(seed, num_actions=3, size=4) | {
                "weights": torch.rand(4, generator=generator),
                "discounts": torch.rand(4, generator=generator),
                "next_action_mask": torch.rand(4, 3, generator=generator) < 0.8,
            }
            pixels = torch.randint(256, (4, 4, 5, 5, 1), generator=generator).to(torch.uint8)
            images = {"obs": pixels[:, 0], "next_obs": pixels[:, 1], "future_obs": pixels[:, 2:]} | {
                "future_actions": torch.randint(3, (4, 2), generator=generator),
                "follows": torch.rand(4, 2, generator=generator) < 0.8,
            }
            drawn = {name: shared | learner._draw(4) for name, learner in learners.items()}
            drawn["rainbow_dqn"] |= images
            batch = {f"{name}/{key}": value for name, part in drawn.items() for key, value in part.items()}
            results.append(clone(update(state, batch)))
        return results, state

    (plain, plain_state), (fast, fast_state) = run("eager"), run("compile")
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(fast_state, plain_state, rtol=1e-3, atol=1e-5)
    before = all_learners()
    assert all(not torch.equal(fast_state[f"{name}/params"], before[name]._state["params"]) for name in STYLES)


# --- Members of a population -----------------------------------------------------------------------------------------

SEEDS = (0, 1, 2)
Call = tuple[Step, State, Batch]


def recorded_calls(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> dict[str, Call]:
    """Return the last call of each pure step while `run` runs."""
    calls: dict[str, Call] = {}

    def recording(step: Step, run_eagerly: Callable[[Step], InPlaceStep] = steps._run_eagerly) -> InPlaceStep:
        in_place = run_eagerly(step)

        def note(state: State, batch: Batch) -> Metrics:
            calls[step.__qualname__] = (step, copied(state), copied(batch))
            return in_place(state, batch)

        return note

    with monkeypatch.context() as patch:
        patch.setattr(steps, "_run_eagerly", recording)
        run()
    return calls


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, in float64 where they are floats."""
    return {name: x.double() if x.is_floating_point() else x.clone() for name, x in tensors.items()}


def train(name: str, seed: int) -> None:
    advance(make_run(name, seed=seed), 12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stacked_step_equals_the_steps_of_its_members(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [recorded_calls(monkeypatch, lambda seed=seed: train(name, seed)) for seed in SEEDS]  # type: ignore[misc]
    compute_in_float64(monkeypatch)
    assert members[0]
    for key, (step, _, _) in members[0].items():
        calls = [member[key] for member in members]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")  # such as for an operation that vmap runs in a loop
            new, metrics = torch.func.vmap(step, randomness="error")(*stack_all(calls))
            alone = [step(state, batch) for _, state, batch in calls]
        for number, (state, values) in enumerate(alone):
            assert_close({key: value[number] for key, value in {**new, **metrics}.items()}, {**state, **values})


def compute_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep steps from computing in float32: by conversions, new tensors, and the buffers of their networks."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "zeros", partial(torch.zeros, dtype=torch.float64))

    def apply(self: FlatModule, *inputs: Any, run: Any = FlatModule.apply, **kwargs: Any) -> Any:
        own = copied(dict(self.module.named_buffers()))
        return run(self, *inputs, **kwargs | {"buffers": own | dict(kwargs.get("buffers") or {})})

    monkeypatch.setattr(FlatModule, "apply", apply)


def stack_all(calls: list[Call]) -> tuple[State, Batch]:
    states, batches = [state for _, state, _ in calls], [batch for _, _, batch in calls]
    return stack(states), stack(batches)


def stack(members: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = (found[name].double() - value.double()).norm()
        assert error <= 1e-10 * (value.double().norm() + 1.0), (name, float(error))
