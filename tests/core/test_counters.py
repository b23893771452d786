"""Random numbers as functions of counters: known answers, independence of rows, ranges and moments."""

import numpy as np
import pytest
import torch

from rl_training.core.counters import Keys, philox


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
