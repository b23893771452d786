"""The example package `examples/own_algorithm`: its loss, computed by hand, and its row."""

import math
import sys
from typing import Any

import pytest
import torch

from reference_scripts import EXAMPLES


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_algorithm"))
    import mellow_dqn.algorithm
    import mellow_dqn.spec

    yield mellow_dqn
    for module in [name for name in sys.modules if name.partition(".")[0] == "mellow_dqn"]:
        del sys.modules[module]


def test_the_target_has_the_soft_maximum_of_the_next_values(package: Any) -> None:
    """Q = (1, 3) everywhere, omega = 1: mellowmax = log((e + e^3) / 2); gamma 0.5, reward 2; no bootstrap at an end."""
    batch = {
        "obs": torch.zeros(2, 1),
        "next_obs": torch.zeros(2, 1),
        "actions": torch.tensor([0, 0]),
        "rewards": torch.tensor([2.0, 2.0]),
        "terminated": torch.tensor([False, True]),
    }
    hparams = package.hparams.MellowDQNHParams(omega=1.0, gamma=0.5)
    values = torch.tensor([1.0, 3.0])
    found = package.algorithm.mellow_loss(
        values, values, batch, hparams, lambda params, obs, *noise: params.expand(len(obs), 2)
    )
    soft = math.log((math.e + math.e**3) / 2.0)
    assert found["target_mean"].item() == pytest.approx((2.0 + 0.5 * soft + 2.0) / 2.0)
    assert found["q_value_mean"].item() == 1.0


def test_the_row_names_what_it_builds_without_importing_torch(package: Any) -> None:
    spec = package.spec.SPEC
    assert spec.build == "mellow_dqn.algorithm:build_mellow_dqn"
    assert spec.hparams().omega == 10.0
