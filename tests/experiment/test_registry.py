"""Every row of the registry is consistent, and packages can add rows of their own."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import rl_training
from rl_training.api.algorithms import ManagedAlgorithm, managed_class
from rl_training.errors import ConfigError
from rl_training.experiment import registry as module
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.registry import AlgorithmSpec, find_spec, registry
from rl_training.hparams.dqn import DQNHParams


@dataclass
class FakeEntryPoint:
    """What `importlib.metadata.entry_points` gives for an installed package."""

    content: Any
    name: str = "theirs"
    value: str = "their_package:SPEC"

    def load(self) -> Any:
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeEntryPoint]]:
    """Entry points that the test adds to; the registry is read again."""
    found: list[FakeEntryPoint] = []
    monkeypatch.setattr(module, "entry_points", lambda group: found if group == "rl_training.algorithms" else [])
    registry.cache_clear()
    managed_class.cache_clear()
    yield found
    registry.cache_clear()
    managed_class.cache_clear()


def their_spec(**changes: Any) -> AlgorithmSpec:
    return dataclasses.replace(find_spec("dqn"), **{"name": "theirs", "class_name": "Theirs", **changes})


# --- Our rows --------------------------------------------------------------------------------------------------------


def test_names_and_class_names_are_unique_and_fit_their_rows() -> None:
    rows = registry()
    assert "dqn" in rows
    assert all(name == spec.name for name, spec in rows.items())
    assert len({spec.class_name for spec in rows.values()}) == len(rows)


@pytest.mark.parametrize("name", registry())
def test_the_reference_config_is_shipped_and_trains_this_algorithm(name: str) -> None:
    spec = registry()[name]
    assert spec.reference_config in packaged_configs()
    assert load_config(f"configs/{spec.reference_config}").algo == name


def test_every_row_says_what_it_is_and_takes() -> None:
    fields = ("summary", "paper", "actions", "observations")
    empty = [f"{name}.{field}" for name, spec in registry().items() for field in fields if not getattr(spec, field)]
    assert empty == []
    assert [name for name, spec in registry().items() if not spec.hparams.__doc__] == []


@pytest.mark.parametrize("name", registry())
def test_the_json_schema_shows_types_ranges_defaults_and_meaning(name: str) -> None:
    schema = registry()[name].hparams.model_json_schema()
    assert schema["additionalProperties"] is False
    assert all(field["description"] for field in schema["properties"].values())
    assert all("default" in field for field in schema["properties"].values())


def test_the_json_schema_of_dqn_holds_the_ranges() -> None:
    properties = DQNHParams.model_json_schema()["properties"]
    gamma, sizes = properties["gamma"], properties["hidden_sizes"]
    assert (gamma["type"], gamma["minimum"], gamma["maximum"], gamma["default"]) == ("number", 0.0, 1.0, 0.99)
    assert properties["batch_size"]["minimum"] == 1
    assert properties["learning_rate"]["exclusiveMinimum"] == 0
    assert properties["loss"]["enum"] == ["huber", "mse"]
    assert sizes["items"] == {"type": "integer", "minimum": 1}


# --- Rows of other packages ------------------------------------------------------------------------------------------


def test_an_entry_point_adds_an_algorithm_everywhere(installed: list[FakeEntryPoint]) -> None:
    spec = their_spec()
    installed.append(FakeEntryPoint(spec))
    registry.cache_clear()
    assert registry()["theirs"] is spec
    assert next(iter(registry())) == "dqn"
    assert TrainConfig(algo="theirs", env_id="x", total_timesteps=1).spec is spec
    assert {"Theirs", "train_theirs"} <= set(dir(rl_training))
    managed, train_theirs = (getattr(rl_training, name) for name in ("Theirs", "train_theirs"))
    assert issubclass(managed, ManagedAlgorithm)
    assert managed.algo_name == "theirs"
    with pytest.raises(ConfigError, match=r"^train_theirs trains Theirs, but algo is 'dqn'$"):
        train_theirs(TrainConfig(algo="dqn", env_id="x", total_timesteps=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "dqn"}, "'their_package:SPEC': an algorithm named 'dqn' exists already"),
        ({"class_name": "DQN"}, "'their_package:SPEC': an algorithm with the class DQN exists already"),
    ],
)
def test_a_clash_with_a_row_of_ours_is_refused(
    changes: dict[str, str], message: str, installed: list[FakeEntryPoint]
) -> None:
    installed.append(FakeEntryPoint(their_spec(**changes)))
    registry.cache_clear()
    assert set(registry()) == {spec.name for spec in module.ROWS}
    with pytest.raises(ConfigError, match=message):
        find_spec("theirs")


def test_of_two_packages_with_one_name_the_first_counts(
    installed: list[FakeEntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    spec = their_spec()
    installed += [FakeEntryPoint(spec), FakeEntryPoint(their_spec(class_name="Other"))]
    registry.cache_clear()
    with caplog.at_level("WARNING", logger="rl_training"):
        assert registry()["theirs"] is spec
    assert "an algorithm named 'theirs' exists already" in caplog.text


def test_an_entry_point_of_another_kind_is_refused(installed: list[FakeEntryPoint]) -> None:
    installed.append(FakeEntryPoint({"name": "theirs"}))
    with pytest.raises(ConfigError, match=r"entry point 'theirs' of group .* must be an AlgorithmSpec, got dict"):
        find_spec("theirs")


def test_an_entry_point_that_cannot_be_loaded_stops_only_its_own_algorithm(
    installed: list[FakeEntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    installed.append(FakeEntryPoint(ImportError("no module named their_package")))
    with caplog.at_level("WARNING", logger="rl_training"):
        assert find_spec("dqn").name == "dqn"
    assert "no module named their_package; this algorithm is left out" in caplog.text
    with pytest.raises(ConfigError, match=r"'theirs' cannot be used: .*'their_package:SPEC' .*no module named"):
        find_spec("theirs")


def test_an_unknown_name_is_refused_with_the_one_probably_meant() -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'dqn2'; did you mean 'dqn'"):
        find_spec("dqn2")
