"""PPO scores on the tensor CartPole what it scores on Gymnasium's, over the same ten seeds."""

from pathlib import Path

import pytest
from benchmarks.results import RESULTS, named, read_lines

from device_loops import QUIET
from rl_training.envs.factory import make_env_factory
from rl_training.envs.vector import SyncEnvs
from rl_training.experiment.config_files import load_config
from rl_training.experiment.population import PopulationConfig
from rl_training.launching.populations import train_population
from rl_training.runtime.evaluation import evaluate_episodes
from rl_training.runtime.saved_policy import load_policy

SEEDS = tuple(range(10))


@pytest.mark.slow
@pytest.mark.timeout(1_800)  # two minutes of processor time
def test_ppo_reaches_on_ten_seeds_what_it_reached_in_gymnasium(tmp_path: Path) -> None:
    lines = named(read_lines(RESULTS / "scores" / "ppo-cartpole.jsonl"), contender="ours")
    reached = {line["seed"]: line["score"] for line in lines}
    base = load_config("ppo/cartpole").updated(
        env_id="tensor/CartPole-v1",
        execution_backend="tensor",
        device="cpu",
        acceleration="eager",
        tensorboard=False,
        output_dir=tmp_path,
    )
    result = train_population(PopulationConfig(base=base, seeds=SEEDS, run="stacked"), QUIET)
    assert result.scores == {f"{seed:03d}": pytest.approx(reached[seed], abs=5.0) for seed in SEEDS}
    for seed in SEEDS:  # and in Gymnasium's environment
        _, algorithm = load_policy(result.folder / "members" / f"{seed:03d}", QUIET)
        with SyncEnvs(make_env_factory("CartPole-v1")) as envs:
            (episode,) = evaluate_episodes(envs, algorithm, [seed])
        assert episode.ret == pytest.approx(reached[seed], abs=5.0)
