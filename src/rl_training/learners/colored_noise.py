"""Exploration noise whose steps depend on each other: the power falls with the frequency f as 1 / f ** color.

White noise (0) cancels itself out within a few steps. Pink (1) and red noise (2) push in one direction for long enough
to get somewhere. At each single step the noise is standard normal for any color.

Eberhard et al. 2023, Pink noise is all you need: colored noise exploration in deep reinforcement learning.
"""

import math

import numpy as np
import torch

from rl_training.core.types import ActResult, Carry

SEQUENCE_LENGTH = 1_024  # steps; the slowest change that the noise knows takes as long


def colored_sequences(color: float, rows: int, numbers: int, generator: np.random.Generator) -> np.ndarray:
    """Return independent sequences, (rows, steps, numbers), by the inverse Fourier transform of normal coefficients."""
    frequencies = np.fft.rfftfreq(SEQUENCE_LENGTH)
    frequencies[0] = frequencies[1]  # the mean is as strong as the slowest wave: an infinite one would drown the others
    scales = frequencies ** (-color / 2.0)
    shares = np.square(scales)
    shares[1:-1] *= 2.0  # all but the first and the last stand for two frequencies, of either sign
    real, imaginary = generator.standard_normal((2, rows, numbers, len(scales)))
    imaginary[..., [0, -1]], real[..., [0, -1]] = 0.0, real[..., [0, -1]] * np.sqrt(2.0)
    # The variance of a step is the sum of the shares, times two for real and imaginary parts, over the squared length.
    waves = (real + 1j * imaginary) * scales * (SEQUENCE_LENGTH / np.sqrt(2.0 * shares.sum()))
    sequences: np.ndarray = np.fft.irfft(waves, SEQUENCE_LENGTH).swapaxes(1, 2).astype(np.float32)
    return sequences


class ColoredNoise:
    """Draws standard normal numbers for each env, step by step. What it remembers of each env is in the carry.

    An episode begins with a new sequence, and takes another one where the first is used up.
    """

    def __init__(self, color: float, action_shape: tuple[int, ...]) -> None:
        self.color, self._action_shape = color, action_shape
        self._numbers = math.prod(action_shape)

    def draw(self, rows: int, generator: np.random.Generator, carry: Carry | None) -> tuple[np.ndarray, Carry | None]:
        """Return noise of one step, (rows, numbers), and the next carry: None for white noise."""
        if self.color == 0.0:
            return generator.standard_normal((rows, self._numbers), np.float32), None
        if carry is None:
            sequences = np.zeros((rows, SEQUENCE_LENGTH, self._numbers), np.float32)
            positions = np.zeros(rows, np.int64)
        else:
            sequences, positions = carry["noise_sequence"], carry["noise_position"]
        new = (positions % SEQUENCE_LENGTH) == 0  # at the start of an episode, or at the end of a sequence
        if new.any():
            sequences, positions = sequences.copy(), np.where(new, 0, positions)
            sequences[new] = colored_sequences(self.color, int(new.sum()), self._numbers, generator)
        noise = sequences[np.arange(rows), positions]
        return noise, {"noise_sequence": sequences, "noise_position": positions + 1}

    def random_actions(self, rows: int, generator: np.random.Generator, carry: Carry | None) -> ActResult:
        """Return actions that are uniform in [-1, 1] at each step, and over time of the color of the noise."""
        shape = (rows, *self._action_shape)
        if self.color == 0.0:
            return ActResult(generator.uniform(-1.0, 1.0, shape).astype(np.float32))
        noise, carry = self.draw(rows, generator, carry)
        # The normal distribution function turns normal numbers into uniform ones, here in [-1, 1].
        return ActResult(torch.erf(torch.from_numpy(noise) / math.sqrt(2.0)).numpy().reshape(shape), carry)
