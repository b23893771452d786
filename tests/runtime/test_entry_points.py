"""`train_<algo>` trains its algorithm, or the members of its family, and refuses every other config by name."""

from pathlib import Path
from typing import Any

import pytest

from builders import make_config
from rl_training import load_transition_dataset, train, train_population
from rl_training.errors import ConfigError
from rl_training.experiment.registry import registry
from rl_training.runtime import entry_points
from rl_training.runtime.entry_points import entry_point
from rl_training.runtime.trainer import RunOptions

DQN_FAMILY = {
    "dqn",
    "double_dqn",
    "dueling_dqn",
    "noisy_dqn",
    "prioritized_dqn",
    "n_step_dqn",
    "c51_dqn",
    "rainbow_dqn",
    "bbf",
    "qr_dqn",
    "iqn",
    "fqf",
}
FAMILIES = {"dqn": DQN_FAMILY, "sac": {"sac", "td3", "redq", "tqc"}}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RunOptions | None]]:
    """The algorithms and options that reach `train`, which does nothing here."""
    calls: list[tuple[str, RunOptions | None]] = []
    monkeypatch.setattr(entry_points, "train", lambda config, options: calls.append((config.algo, options)))
    return calls


def config_of(algo: str, tmp_path: Path) -> Any:
    return make_config(tmp_path, algo=algo, **({"num_envs": 2} if algo in ("ppo", "gail") else {}))


@pytest.mark.parametrize("name", registry())
def test_an_entry_point_trains_its_family_and_nothing_else(
    name: str, tmp_path: Path, trained: list[tuple[str, RunOptions | None]]
) -> None:
    options, refused = RunOptions(show_progress=False), {}
    for algo in registry():
        try:
            entry_point(name)(config_of(algo, tmp_path), options)
        except ConfigError as error:
            refused[algo] = str(error)
    members = FAMILIES.get(name, {name})
    assert trained == [(algo, options) for algo in registry() if algo in members]
    assert refused.keys() == registry().keys() - members
    for algo, message in refused.items():
        assert message.startswith(f"train_{name} trains ")
        assert message.endswith(f", but algo is {algo!r}")


@pytest.mark.parametrize(
    ("name", "members"), [("qr_dqn", "QRDQN"), ("sac", "the SAC family"), ("dqn", "the DQN family")]
)
def test_a_refusal_names_what_is_trained(name: str, members: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        entry_point(name)(config_of("bc", tmp_path))
    assert str(caught.value) == f"train_{name} trains {members}, but algo is 'bc'"


def test_a_name_that_is_no_entry_point_is_an_attribute_error() -> None:
    for name in ("train_nothing", "other"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(entry_points, name)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (train, "x.yaml", "train takes a TrainConfig, got 'x.yaml'; write train(load_config('x.yaml'))"),
        (train, {}, "train takes a TrainConfig, got a dict; write train(TrainConfig(**settings))"),
        (
            entry_point("dqn"),
            Path("x.yaml"),
            "train_dqn takes a TrainConfig, got 'x.yaml'; write train_dqn(load_config('x.yaml'))",
        ),
        (
            train_population,
            "x.yaml",
            "train_population takes a PopulationConfig, got 'x.yaml'; "
            "write train_population(PopulationConfig(base=load_config('x.yaml'), seeds=(0, 1, 2)))",
        ),
        (
            train_population,
            make_config(Path("runs")),
            "train_population takes a PopulationConfig, got a TrainConfig; "
            "write train_population(PopulationConfig(base=config, seeds=(0, 1, 2)))",
        ),
        (
            load_transition_dataset,
            "x.npz",
            "load_transition_dataset takes a DatasetSettings, got 'x.npz'; "
            "write load_transition_dataset(rl_training.hparams.iql.IQLHParams(dataset_path='x.npz'))",
        ),
        (
            load_transition_dataset,
            make_config(Path("runs")),
            "load_transition_dataset takes a DatasetSettings, got a TrainConfig; "
            "write load_transition_dataset(config.hparams)",
        ),
    ],
)
def test_an_argument_of_another_kind_is_answered_with_the_call_that_works(
    function: Any, given: Any, message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        function(given)
    assert str(caught.value) == message
