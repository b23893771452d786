"""Whatever steps the environments: an episode's last `next_obs` is its true successor, never the next one's first."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from rl_training.core.seeding import Streams
from rl_training.core.types import ActResult
from rl_training.envs.factory import Backend, make_env_factory, make_envs, make_vector_factory
from rl_training.runtime.collector import Collector
from stand_ins import ActsOnly

LIMIT = {"max_episode_steps": 15}  # about half of the episodes of random play are shorter
MODES = ("Disabled", "SameStep", "NextStep")


class Random(ActsOnly):
    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)

    def act(self, obs: np.ndarray, **_: Any) -> ActResult:
        return ActResult(self._generator.integers(2, size=len(obs)))


def vector(mode: str) -> Any:
    return make_vector_factory(
        "CartPole-v1", {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}, **LIMIT}
    )


@pytest.mark.parametrize(
    ("backend", "factory"),
    [
        ("local_sync", make_env_factory("CartPole-v1", LIMIT)),
        pytest.param("local_async", make_env_factory("CartPole-v1", LIMIT), marks=pytest.mark.process),
        ("envpool", make_env_factory("CartPole-v1", LIMIT)),
        ("local_sync", make_env_factory("tensor/CartPole-v1", LIMIT)),
        *(pytest.param("vector", vector(mode), id=f"vector-{mode}") for mode in MODES),
    ],
)
def test_the_last_successor_belongs_to_its_own_episode(backend: Backend, factory: Any) -> None:
    with closing(make_envs(factory, 3, backend=backend)) as envs:
        collector, actor = Collector(envs, Streams(0)), Random()
        collector.start()
        rows = [collector.step(actor, step=3 * step) for step in range(200)]
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    obs, next_obs = columns["obs"], columns["next_obs"]
    # Positions of CartPole change by the speeds before the step: x' = x + 0.02 v.
    for position, speed in ((0, 1), (2, 3)):
        expected = obs[..., position] + 0.02 * obs[..., speed]
        np.testing.assert_allclose(next_obs[..., position], expected, atol=1e-6)
    ended = columns["terminated"] | columns["truncated"]
    np.testing.assert_array_equal(next_obs[:-1][~ended[:-1]], obs[1:][~ended[:-1]])
    firsts, lasts = obs[1:][ended[:-1]], next_obs[:-1][ended[:-1]]
    assert np.abs(firsts).max() <= 0.05
    assert (firsts != lasts).any(-1).all()
    fallen = (np.abs(next_obs[..., 0]) > 2.4) | (np.abs(next_obs[..., 2]) > 12 * 2 * np.pi / 360)
    np.testing.assert_array_equal(fallen, columns["terminated"])
    assert min(columns["terminated"].sum(), (columns["truncated"] & ~columns["terminated"]).sum()) > 10
