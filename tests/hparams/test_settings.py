"""Settings are flat: one class per algorithm, directly under `HParams`, with all its fields, defaults and checks."""

import inspect
import pickle
from typing import Any, ClassVar, get_origin

import pytest
from pydantic import Field

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry
from rl_training.hparams.base import HParams, variant
from rl_training.hparams.bc import BCHParams
from rl_training.hparams.c51_dqn import C51HParams, RainbowDQNHParams
from rl_training.hparams.checks import check_network, run_checks
from rl_training.hparams.datasets import DatasetChoice, dataset_choice
from rl_training.hparams.dqn import DoubleDQNHParams, DQNHParams
from rl_training.hparams.fields import Count, Discount, Search
from rl_training.hparams.gail import GAILHParams
from rl_training.hparams.iql import IQLOnlineHParams

# One setting of each group, in the order a user thinks; an algorithm has the first of each that it knows.
GROUPS = {
    "data": ("batch_size", "minibatch_size"),
    "network": ("network", "size"),
    "optimizer": ("learning_rate", "policy_learning_rate"),
    "algorithm": ("gamma",),
}


def own_fields(model: type[HParams]) -> list[str]:
    """Return the fields that stand in the class itself, in their order."""
    annotations: dict[str, Any] = inspect.get_annotations(model)
    return [name for name, kind in annotations.items() if kind is not ClassVar and get_origin(kind) is not ClassVar]


# --- Every row -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry())
def test_settings_have_no_parent_but_hparams(name: str) -> None:
    assert registry()[name].hparams.__bases__ == (HParams,)


@pytest.mark.parametrize("name", registry())
def test_every_field_and_its_default_stand_in_the_class(name: str) -> None:
    model = registry()[name].hparams
    assert own_fields(model) == list(model.model_fields)
    assert [field for field, info in model.model_fields.items() if info.is_required()] == []


@pytest.mark.parametrize("name", registry())
def test_fields_stand_in_the_order_data_network_optimizer_algorithm(name: str) -> None:
    fields = list(registry()[name].hparams.model_fields)
    known = [[field for field in group if field in fields] for group in GROUPS.values()]
    places = [fields.index(group[0]) for group in known if group]  # an algorithm may lack a group
    assert places == sorted(places)


@pytest.mark.parametrize("name", registry())
def test_defaults_pass_the_checks_of_values_that_users_write(name: str) -> None:
    defaults = registry()[name].hparams()
    assert type(defaults)(**defaults.model_dump()) == defaults


@pytest.mark.parametrize("name", registry())
def test_no_two_algorithms_share_their_settings(name: str) -> None:
    model = registry()[name].hparams
    assert [spec.name for spec in registry().values() if spec.hparams is model] == [name]


@pytest.mark.parametrize("name", registry())
def test_every_search_lies_within_its_field_and_holds_the_default(name: str) -> None:
    model = registry()[name].hparams
    marks = [(field, info.default, mark) for field, info in model.model_fields.items() for mark in info.metadata]
    searches = {field: (default, mark) for field, default, mark in marks if isinstance(mark, Search)}
    assert searches.keys() & {"learning_rate", "policy_learning_rate"}
    for field, (default, search) in searches.items():
        ends = [1.0 - end if search.one_minus else end for end in (search.low, search.high)]
        assert default in search.choices or min(ends) <= default <= max(ends), field
        for value in search.choices or ends:
            assert getattr(model(**{field: value}), field) == value


# --- Variants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "of", "changed"),
    [
        (DoubleDQNHParams, DQNHParams, {"double_q": True}),
        (
            RainbowDQNHParams,
            C51HParams,
            {
                "double_q": True,
                "dueling": True,
                "noisy": True,
                "prioritized": True,
                "prioritized_alpha": 0.5,
                "n_step": 3,
            },
        ),
    ],
)
def test_a_variant_differs_in_its_defaults_alone(
    made: type[HParams], of: type[HParams], changed: dict[str, Any]
) -> None:
    assert list(made.model_fields) == list(of.model_fields)
    assert made().model_dump() == {**of().model_dump(), **changed}
    assert (made.checks, made.run_checks) == (of.checks, of.run_checks)
    ours, theirs = (model.model_json_schema()["properties"] for model in (made, of))
    for name, value in changed.items():
        assert ours[name].pop("default") == value
        theirs[name].pop("default")
    assert ours == theirs


def test_a_variant_survives_a_pickle() -> None:
    assert pickle.loads(pickle.dumps(RainbowDQNHParams(v_min=-3.0))) == RainbowDQNHParams(v_min=-3.0)


def test_a_variant_of_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="Typo: unknown setting 'doubleq'; did you mean 'double_q'"):
        variant("Typo", DQNHParams, "A typo.", doubleq=True)


# --- Checks ----------------------------------------------------------------------------------------------------------


def check_order(low: int, high: int) -> None:
    if high < low:
        raise ValueError(f"high must be at least low, {low}, got {high}")


def check_room(high: int, num_envs: int) -> None:
    if num_envs > high:
        raise ValueError(f"high must be at least num_envs, {num_envs}, got {high}")


class Bounds(HParams):
    """Settings that are checked against each other, and against the run."""

    checks: ClassVar = (check_order,)
    run_checks: ClassVar = (check_room,)

    low: Count = Field(1, description="the smaller number")
    high: Count = Field(5, description="the larger number")
    gamma: Discount = 0.9


def test_a_check_gets_the_settings_that_its_parameters_name() -> None:
    assert Bounds(low=5).high == 5
    with pytest.raises(ValueError, match="high must be at least low, 6, got 5"):
        Bounds(low=6)


def test_a_check_of_the_run_gets_what_the_run_has() -> None:
    Bounds().check_run(5)
    with pytest.raises(ValueError, match="high must be at least num_envs, 6, got 5"):
        Bounds().check_run(6)


def test_a_check_that_names_no_setting_fails_at_once() -> None:
    with pytest.raises(KeyError, match="hidden_sizes"):
        run_checks([check_network], {"network": "mlp"})


def test_shared_types_bring_range_and_description_to_the_schema() -> None:
    gamma = Bounds.model_json_schema()["properties"]["gamma"]
    assert gamma == {
        "default": 0.9,
        "description": "discount factor per env step",
        "maximum": 1.0,
        "minimum": 0.0,
        "title": "Gamma",
        "type": "number",
    }


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("ppo", {"gae_lambda": 1.5}, "ppo.algo_kwargs.gae_lambda must be in [0, 1], got 1.5"),
        ("iql", {"expectile": 1.0}, "iql.algo_kwargs.expectile must be in (0, 1), got 1.0"),
        ("iql", {"held_out": 1.0}, "iql.algo_kwargs.held_out must be in [0, 1), got 1.0"),
        ("sac", {"alpha": 0}, "sac.algo_kwargs.alpha must be > 0 or 'auto', got 0"),
        ("sac", {"max_grad_norm": "1"}, "sac.algo_kwargs.max_grad_norm must be a number, got '1'"),
        ("double_dqn", {"gamma": -1}, "double_dqn.algo_kwargs.gamma must be in [0, 1], got -1"),
        (
            "double_dqn",
            {"network": "simba", "hidden_sizes": [8, 9]},
            "double_dqn.algo_kwargs: network: simba needs hidden_sizes that are all alike, got [8, 9]",
        ),
    ],
)
def test_messages_name_the_setting_the_range_and_the_value(algo: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(algo=algo, env_id="Pendulum-v1", total_timesteps=1, algo_kwargs=settings)
    assert str(caught.value) == message


# --- Datasets --------------------------------------------------------------------------------------------------------


def test_the_dataset_of_settings_is_found_with_or_without_a_prefix() -> None:
    plain = BCHParams(dataset_kind="npz", dataset_path="a.npz", dataset_seed=3, held_out=0.2)
    assert dataset_choice(plain) == DatasetChoice(
        dataset_kind="npz",
        dataset_path=plain.dataset_path,
        dataset_id=None,
        dataset_size=None,
        dataset_seed=3,
        held_out=0.2,
    )
    expert = dataset_choice(
        GAILHParams(expert_dataset_kind="minari", expert_dataset_id="a/b-v0", expert_dataset_size=7)
    )
    assert expert is not None
    assert (expert.dataset_kind, expert.dataset_id, expert.dataset_size) == ("minari", "a/b-v0", 7)
    assert (expert.prefix, expert.held_out) == ("expert_", 0.0)
    assert dataset_choice(DQNHParams()) is None


def test_paths_are_written_as_text() -> None:
    assert BCHParams(dataset_kind="npz", dataset_path="a.npz").model_dump()["dataset_path"] == "a.npz"
    assert IQLOnlineHParams(init_from="runs/x").model_dump(mode="json")["init_from"] == "runs/x"
    assert BCHParams().model_dump()["dataset_path"] is None
