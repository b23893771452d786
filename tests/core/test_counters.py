"""Random numbers as functions of counters: known answers, independence of rows, ranges and moments."""

import numpy as np
import pytest
import torch

from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import Keys, philox
from rl_training.core.types import Batch, Metrics, State
from state_comparison import assert_identical


def keys(rows: int, *, seed: int = 7, episode: int = 0, step: int = 0) -> Keys:
    count = torch.arange(rows)
    return Keys(torch.full_like(count, seed), count, torch.full_like(count, episode), torch.full_like(count, step))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers of Random123 (Salmon et al. 2011), file kat_vectors
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    found = philox(tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key))
    assert tuple(int(word) for word in found) == words


def words_by_definition(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 of Salmon et al. 2011 in Python's integers, which do not overflow."""
    c, k = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = ((second >> 32) ^ c[1] ^ k[0], second % 2**32, (first >> 32) ^ c[3] ^ k[1], first % 2**32)
        k = ((k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32)
    return c


def random_words(count: int) -> np.ndarray:
    """Return rows of six words, many of them at the borders of their range."""
    generator = np.random.default_rng(0)
    words = generator.integers(2**32, size=(count, 6))
    borders = generator.choice([0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1], size=words.shape)
    chosen: np.ndarray = np.where(generator.random(words.shape) < 0.4, borders, words)
    return chosen


def test_philox_equals_its_definition_for_any_counter_and_key() -> None:
    words = random_words(3_000)
    columns = torch.from_numpy(words).unbind(1)
    found = torch.stack(philox(columns[:4], columns[4:]), 1).tolist()
    assert [tuple(row) for row in found] == [
        words_by_definition(tuple(row[:4]), tuple(row[4:])) for row in words.tolist()
    ]


def test_the_numbers_of_a_key_are_those_of_its_counter() -> None:
    # The counter is (env, episode, step, lane and block), the key the two halves of the seed.
    rows = [row.tolist() for row in random_words(50)]
    seeds = torch.tensor([low + (high % 2**31 << 32) for _, _, _, low, high, _ in rows])
    asked = Keys(seeds, *torch.tensor([row[:3] for row in rows]).T)
    lane, expected = 2**15 + 3, []
    for env, episode, step, low, high, _ in rows:
        blocks = ((lane << 16) + block for block in range(3))
        expected.append([w for b in blocks for w in words_by_definition((env, episode, step, b), (low, high % 2**31))])
    assert asked.words(lane, 12).tolist() == expected
    assert asked.words(lane, 10).tolist() == [row[:10] for row in expected]
    assert asked.uniform(lane, 10).tolist() == [[(word >> 8) * 2.0**-24 for word in row[:10]] for row in expected]
    assert asked.below(lane, 37).tolist() == [row[0] * 37 >> 32 for row in expected]
    uniform = np.array([[(word >> 8) * 2.0**-24 for word in row] for row in expected])
    normal = np.sqrt(-2 * np.log(1 - uniform[:, :6])) * np.cos(2 * np.pi * uniform[:, 6:])
    assert asked.normal(lane, 6).numpy() == pytest.approx(normal, abs=1e-5)


@pytest.mark.compile
def test_compiled_numbers_are_those_of_the_eager_ones() -> None:
    def draw(state: State, batch: Batch) -> tuple[State, Metrics]:
        asked = Keys(batch["seed"], batch["env"], batch["episode"], batch["step"])
        words, uniform, normal = asked.words(2**15, 6), asked.uniform(1, 5), asked.normal(2, 3)
        return {"words": words}, {"words": words, "uniform": uniform, "below": asked.below(3, 7), "normal": normal}

    columns = torch.from_numpy(random_words(1_000)).unbind(1)
    batch = dict(zip(("seed", "env", "episode", "step"), columns[:4], strict=True)) | {"seed": columns[0] << 31}
    state = {"words": torch.zeros(1_000, 6, dtype=torch.int64)}
    eager, compiled = (accelerate(draw, mode, "draw")(state, batch) for mode in ("eager", "compile"))
    torch.testing.assert_close(compiled.pop("normal"), eager.pop("normal"), rtol=1e-6, atol=1e-6)
    assert_identical(compiled, eager)


def test_a_row_is_the_same_alone_and_among_others() -> None:
    many, few = keys(100), keys(3)
    assert torch.equal(many.words(5, 6)[:3], few.words(5, 6))
    assert torch.equal(many.normal(5, 3)[:3], few.normal(5, 3))


def test_every_part_of_a_key_changes_the_numbers() -> None:
    one = keys(1)
    others = [keys(1, seed=8), keys(1, seed=7 + 2**40), keys(1, episode=1), keys(1, step=1)]
    found = [one.words(0, 4), one.words(1, 4), keys(2).words(0, 4)[1:], *(other.words(0, 4) for other in others)]
    assert len({tuple(row[0].tolist()) for row in found}) == len(found)
    assert len(set(one.words(0, 12)[0].tolist())) == 12  # three blocks


def test_numbers_have_the_range_and_the_moments_of_their_distribution() -> None:
    rows = keys(20_000)
    uniform, normal, below = rows.uniform(0, 1), rows.normal(1, 2), rows.below(2, 5)
    assert uniform.dtype == normal.dtype == torch.float32
    assert float(uniform.min()) >= 0.0
    assert float(uniform.max()) < 1.0
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(normal.std()) == pytest.approx(1.0, abs=0.02)
    assert float(torch.corrcoef(normal.T)[0, 1]) == pytest.approx(0.0, abs=0.03)
    counts = np.bincount(below.numpy(), minlength=5)
    assert len(counts) == 5
    assert counts.min() > 3_800  # 4,000 expected, standard deviation 57
