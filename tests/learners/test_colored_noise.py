"""Exploration noise with a colour: its spectrum, its distribution at each step, and what acting does with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.exactness import ACTOR_CRITICS, differences, run_broken, run_unbroken

from builders import make_box_batch, make_box_setup, make_config
from rl_training.core.types import Carry, act_on
from rl_training.errors import ConfigError
from rl_training.experiment.registry import registry
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.colored_noise import SEQUENCE_LENGTH, ColoredNoise, colored_sequences
from state_comparison import assert_identical

ALGORITHMS = ["sac", "td3", "redq", "tqc", "crossq"]
LATE = 10**6  # a step after warm-up


def build(algo: str = "sac", **setup: Any) -> ActorCritic:
    learner = registry()[algo].build_algorithm(make_box_setup(algo, **setup))
    assert isinstance(learner, ActorCritic)
    return learner


# --- The sequences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("color", [0.0, 0.5, 1.0, 2.0])
def test_the_power_falls_with_the_frequency_to_this_power(color: float) -> None:
    sequences = colored_sequences(color, 200, 1, np.random.default_rng(0))[:, :, 0]
    power = np.square(np.abs(np.fft.rfft(sequences))).mean(0)[1:-1]
    frequencies = np.fft.rfftfreq(SEQUENCE_LENGTH)[1:-1]
    slope = np.polyfit(np.log(frequencies), np.log(power), 1)[0]
    assert slope == pytest.approx(-color, abs=0.05)


@pytest.mark.parametrize("color", [0.0, 1.0, 2.0])
def test_each_step_is_a_standard_normal_number(color: float) -> None:
    sequences = colored_sequences(color, 2_000, 2, np.random.default_rng(0))
    assert sequences.shape == (2_000, SEQUENCE_LENGTH, 2)
    assert sequences.dtype == np.float32
    at_one_step = sequences[:, [0, 1, 100, SEQUENCE_LENGTH - 1]]
    np.testing.assert_allclose(at_one_step.mean(0), 0.0, atol=0.1)
    np.testing.assert_allclose(at_one_step.var(0), 1.0, atol=0.15)
    expected = [-1.2816, 0.0, 1.2816]  # deciles of the normal distribution
    np.testing.assert_allclose(np.quantile(at_one_step[:, 2, 0], [0.1, 0.5, 0.9]), expected, atol=0.15)
    assert abs(np.corrcoef(sequences[:, 5].T)[0, 1]) < 0.1  # numbers of an action are independent


def test_neighbouring_steps_are_the_more_alike_the_redder_the_noise() -> None:
    alike = []
    for color in (0.0, 1.0, 2.0):
        sequences = colored_sequences(color, 2_000, 1, np.random.default_rng(0))[:, :, 0]
        alike.append(np.corrcoef(sequences[:, 10], sequences[:, 11])[0, 1])
    assert abs(alike[0]) < 0.05
    assert 0.5 < alike[1] < alike[2]
    assert alike[2] > 0.98


# --- Drawing from them -----------------------------------------------------------------------------------------------


def draw(noise: ColoredNoise, steps: int, rows: int, carry: Carry | None = None) -> tuple[np.ndarray, Carry | None]:
    generator, drawn = np.random.default_rng(0), []
    for _ in range(steps):
        values, carry = noise.draw(rows, generator, carry)
        drawn.append(values)
    return np.stack(drawn), carry


def test_white_noise_is_drawn_step_by_step_and_remembers_nothing() -> None:
    drawn, carry = draw(ColoredNoise(0.0, (3,)), 4, 2)
    assert carry is None
    generator = np.random.default_rng(0)
    assert np.array_equal(drawn, np.stack([generator.standard_normal((2, 3), np.float32) for _ in range(4)]))


def test_each_row_follows_its_own_sequence_and_takes_the_next_one_at_its_end() -> None:
    drawn, carry = draw(ColoredNoise(1.0, (2,)), SEQUENCE_LENGTH + 3, 3)
    generator = np.random.default_rng(0)
    first, second = (colored_sequences(1.0, 3, 2, generator) for _ in range(2))
    assert np.array_equal(drawn[:SEQUENCE_LENGTH], first.transpose(1, 0, 2))
    assert np.array_equal(drawn[SEQUENCE_LENGTH:], second.transpose(1, 0, 2)[:3])
    assert carry is not None
    assert carry["noise_position"].tolist() == [3, 3, 3]


def test_a_row_of_zeros_starts_a_new_sequence_and_leaves_the_others_alone() -> None:
    noise = ColoredNoise(1.0, (2,))
    _, carry = draw(noise, 5, 2)
    assert carry is not None
    before = {name: values.copy() for name, values in carry.items()}
    reset = {name: values.copy() for name, values in carry.items()}
    for values in reset.values():
        values[1] = 0
    drawn, after = noise.draw(2, np.random.default_rng(7), reset)
    assert after is not None
    assert after["noise_position"].tolist() == [6, 1]
    assert np.array_equal(drawn[0], before["noise_sequence"][0, 5])
    assert np.array_equal(drawn[1], colored_sequences(1.0, 1, 2, np.random.default_rng(7))[0, 0])
    noise.draw(2, np.random.default_rng(1), carry)
    assert_identical(carry, before)  # what was passed in is not changed: the step may be taken again


# --- Acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_actions_follow_the_noise_and_updates_do_not(algo: str) -> None:
    white, pink = build(algo), build(algo, noise_color=1.0)
    obs = np.zeros((2, 3), np.float32)
    assert white.act(obs, step=LATE, explore=True).carry is None
    carry, actions = None, []
    for _ in range(200):
        chosen = act_on(pink, obs, carry, step=LATE, explore=True)
        carry = chosen.carry
        actions.append(chosen.actions)
    numbers = np.arctanh(np.clip(np.stack(actions)[:, 0, 0], -0.999, 0.999))
    assert np.corrcoef(numbers[:-1], numbers[1:])[0, 1] > 0.4
    for seed in range(3):  # the same draws in learning, whatever acting has drawn
        assert_identical(pink.update(make_box_batch(seed)).metrics, white.update(make_box_batch(seed)).metrics)


def test_the_noise_moves_the_action_as_the_policy_says() -> None:
    learner = build("sac", noise_color=1.0)
    obs = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    chosen = learner.act(obs, step=LATE, explore=True)
    assert chosen.carry is not None
    outputs = learner._outputs(learner.scaling.rows(obs))
    expected = np.tanh(outputs[:, :2] + np.exp(outputs[:, 2:]) * chosen.carry["noise_sequence"][:, 0])
    np.testing.assert_allclose(chosen.actions, expected, rtol=1e-5)


def test_random_actions_of_warm_up_are_uniform_at_each_step_and_have_the_color() -> None:
    learner = build("sac", noise_color=1.0, learning_starts=10)
    first = act_on(learner, np.zeros((2_000, 3), np.float32), None, step=0, explore=True)
    second = act_on(learner, np.zeros((2_000, 3), np.float32), first.carry, step=9, explore=True)
    for actions in (first.actions, second.actions):
        assert actions.dtype == np.float32
        assert np.abs(actions).max() <= 1.0
        np.testing.assert_allclose(np.quantile(actions, [0.1, 0.5, 0.9], axis=0)[:, 0], [-0.8, 0.0, 0.8], atol=0.08)
    assert np.corrcoef(first.actions[:, 0], second.actions[:, 0])[0, 1] > 0.5


def test_best_actions_need_no_noise() -> None:
    chosen = build("sac", noise_color=1.0).act(np.zeros((2, 3), np.float32))
    assert chosen.carry is None


def test_a_color_beyond_red_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sac\.algo_kwargs\.noise_color must be in \[0, 2\], got 2\.5"):
        make_config(tmp_path, algo="sac", algo_kwargs={"noise_color": 2.5})


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_resumed_run_continues_its_sequences(algo: str, tmp_path: Path) -> None:
    case = next(case for case in ACTOR_CRITICS if case.name == algo)
    case = replace(case, settings=case.settings | {"total_timesteps": 200}, algo_kwargs={"noise_color": 1.0})
    whole = run_unbroken(case, tmp_path)
    assert differences(run_broken(case, tmp_path, [50, 171]), whole) == []
