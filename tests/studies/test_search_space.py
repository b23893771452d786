"""The search space: marked settings or named ones, around the given values, as real settings."""

import pytest
import yaml

from builders import small_hparams
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_yaml
from rl_training.experiment.registry import registry
from rl_training.hparams.fields import Search
from rl_training.studies.search_space import as_record, config_with, from_record, search_space


def make_config(**algo_kwargs: object) -> TrainConfig:
    return TrainConfig(algo="dqn", env_id="CartPole-v1", total_timesteps=100, algo_kwargs=algo_kwargs)


def test_without_names_all_marked_settings_are_searched() -> None:
    names = [dimension.name for dimension in search_space(make_config())]
    marked = [
        f"algo_kwargs.{name}"
        for name, info in registry()["dqn"].hparams.model_fields.items()
        if any(isinstance(mark, Search) for mark in info.metadata)
    ]
    assert names == marked


def test_only_named_settings_are_searched_by_short_or_full_name() -> None:
    space = search_space(make_config(), ["gamma", "algo_kwargs.learning_rate", "num_envs=4,8", "double_q", "loss"])
    assert [dimension.name for dimension in space] == [
        "algo_kwargs.gamma",
        "algo_kwargs.learning_rate",
        "num_envs",
        "algo_kwargs.double_q",
        "algo_kwargs.loss",
    ]
    assert space[2].search.choices == (1, 4, 8)  # the given value is among them
    assert space[3].search.choices == (False, True)
    assert space[4].search.choices == ("huber", "mse")


def test_a_range_is_widened_to_hold_the_given_value() -> None:
    (rate,) = search_space(make_config(learning_rate=0.1), ["learning_rate"])
    assert (rate.search.low, rate.search.high) == (1e-5, 0.1)


def test_one_minus_the_discount_is_searched_but_the_config_holds_the_discount() -> None:
    config = make_config(gamma=0.98)
    space = search_space(config, ["gamma"])
    assert space[0].stored_given == pytest.approx(0.02)
    assert config_with(config, space, {"algo_kwargs.gamma": space[0].stored_given}).hparams == config.hparams
    assert config_with(config, space, {"algo_kwargs.gamma": 0.0031416}).algo_kwargs["gamma"] == 0.9969


def test_lists_are_stored_as_text_and_become_lists_again() -> None:
    config = make_config()
    space = search_space(config, ["hidden_sizes=[64, 64],[32]"])
    assert space[0].distribution().choices == ("[256, 256]", "[64, 64]", "[32]")  # type: ignore[attr-defined]
    assert config_with(config, space, {"algo_kwargs.hidden_sizes": "[32]"}).algo_kwargs == {"hidden_sizes": [32]}


@pytest.mark.parametrize("algo", registry())
def test_the_space_of_every_algorithm_survives_a_file_and_holds_the_given_config(algo: str) -> None:
    config = TrainConfig(algo=algo, env_id="CartPole-v1", total_timesteps=100, algo_kwargs=small_hparams(algo))
    space = search_space(config)
    text = yaml.safe_dump(as_record(space), sort_keys=False)
    assert from_record(config, parse_yaml(text, "space.yaml")) == space
    given = {dimension.name: dimension.stored_given for dimension in space}
    assert config_with(config, space, given).digest() == config.digest()


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("learning_rat", "dqn has no setting 'learning_rat' to tune; did you mean 'learning_rate'?"),
        ("seed=1,2", "dqn has no setting 'seed' to tune"),
        ("batch_size=8,-1", "--param batch_size: -1 is rejected: must be greater than or equal to 1"),
        ("batch_size=", "--param batch_size= needs choices"),
        ("buffer_capacity", "algo_kwargs.buffer_capacity has no range to search: give choices"),
        ("gamma", "algo_kwargs.gamma is 1.0, which lies on no scale to search: give choices"),
    ],
)
def test_what_cannot_be_searched_is_rejected(param: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        search_space(make_config(gamma=1.0), [param])
    assert str(error.value).startswith(message)


def test_a_setting_named_twice_is_rejected() -> None:
    with pytest.raises(ConfigError, match="names a setting twice"):
        search_space(make_config(), ["gamma", "algo_kwargs.gamma=0.9,0.99"])
