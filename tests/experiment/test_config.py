"""A config is read exactly, and a mistake in it is reported with the setting, the value and the fix."""

import re
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import (
    PACKAGED_CONFIGS,
    check_plain,
    find_config_file,
    load_config,
    packaged_configs,
)
from rl_training.experiment.registry import registry
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.schedules import q_learning_updates

MINIMAL = "algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 1000\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, *lines: str) -> TrainConfig:
    return load_config(write(folder, MINIMAL + "".join(f"{line}\n" for line in lines)))


def make(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "dqn", "env_id": "CartPole-v1", "total_timesteps": 1_000, **changes})


def message_of(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(**changes)
    return str(caught.value)


# --- YAML's traps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"), [("3e-4", 3e-4), ("1e-2", 0.01), ("2.5E-4", 2.5e-4), (".5", 0.5), ("1", 1.0), ("1e+0", 1.0)]
)
def test_numbers_with_an_exponent_are_numbers(tmp_path: Path, text: str, expected: float) -> None:
    config = load(tmp_path, f"algo_kwargs: {{learning_rate: {text}}}")
    assert config.hparams.model_dump()["learning_rate"] == expected


@pytest.mark.parametrize("text", ["1e5", "1.0e5", "100_000", "100000", "1e+5"])
def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, f"eval_interval: {text}", f"algo_kwargs: {{buffer_capacity: {text}}}")
    values = (config.eval_interval, config.hparams.model_dump()["buffer_capacity"])
    assert values == (100_000, 100_000)
    assert all(type(value) is int for value in values)


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml: setting 'seed' is given twice \(line 5\)"):
        load(tmp_path, "seed: 1", "seed: 2")
    with pytest.raises(ConfigError, match="setting 'gamma' is given twice"):
        load(tmp_path, "algo_kwargs:", "  gamma: 0.9", "  gamma: 0.99")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_envs: true", "num_envs must be a whole number, got True"),
        ("num_envs: 1.5", "num_envs must be a whole number, got 1.5"),
        ("num_envs: .nan", "num_envs must be a whole number, got nan"),
        ("num_envs: .inf", "num_envs must be a whole number, got inf"),
        ("num_envs: '4'", "num_envs must be a whole number, got '4'"),
        ("num_envs: four", "num_envs must be a whole number, got 'four'"),
        ("num_envs: null", "num_envs must be a whole number, got None"),
        ("num_envs: [4]", "num_envs must be a whole number, got [4]"),
        ("num_envs: 0", "num_envs must be >= 1, got 0"),
        ("seed: -1", "seed must be >= 0, got -1"),
        ("worker_timeout: '60'", "worker_timeout must be a number, got '60'"),
        ("worker_timeout: true", "worker_timeout must be a number, got True"),
        ("worker_timeout: 0", "worker_timeout must be > 0, got 0"),
        ("stop_return: true", "stop_return must be a number, got True"),
        ("stop_return: '475'", "stop_return must be a number, got '475'"),
        ("stop_return: .nan", "stop_return must be a finite number, got nan"),
        ("tensorboard: 1", "tensorboard must be true or false, got 1"),
        ("tensorboard: 'no'", "tensorboard must be true or false, got 'no'"),
        (
            "execution_backend: local",
            "execution_backend must be 'local_sync', 'local_async', 'envpool', 'ray', 'tensor' or 'vector', got",
        ),
        ("acceleration: jit", "acceleration must be 'auto', 'eager', 'compile' or 'cuda_graph', got 'jit'"),
        ("device: gpu", 'device must be "auto", "cpu", "cuda" or "cuda:N", got \'gpu\''),
        ("algo_kwargs: 3", "algo_kwargs must be a group of settings, got 3"),
        ("eval_episodes: 0", "eval_episodes must be >= 1, got 0"),
        ("algo_kwargs: {gamma: 1.3}", "dqn.algo_kwargs.gamma must be in [0, 1], got 1.3"),
        ("algo_kwargs: {gamma: -0.1}", "dqn.algo_kwargs.gamma must be in [0, 1], got -0.1"),
        ("algo_kwargs: {gamma: .nan}", "dqn.algo_kwargs.gamma must be in [0, 1], got nan"),
        ("algo_kwargs: {gamma: '0.9'}", "dqn.algo_kwargs.gamma must be a number, got '0.9'"),
        ("algo_kwargs: {gamma: yes}", "dqn.algo_kwargs.gamma must be a number, got True"),
        ("algo_kwargs: {learning_rate: 0}", "dqn.algo_kwargs.learning_rate must be > 0, got 0"),
        ("algo_kwargs: {learning_rate: .inf}", "dqn.algo_kwargs.learning_rate must be > 0, got inf"),
        ("algo_kwargs: {batch_size: 0}", "dqn.algo_kwargs.batch_size must be >= 1, got 0"),
        ("algo_kwargs: {learning_starts: -1}", "dqn.algo_kwargs.learning_starts must be >= 0, got -1"),
        ("algo_kwargs: {gradient_steps: 0}", "dqn.algo_kwargs: gradient_steps must be -1 or >= 1, got 0"),
        ("algo_kwargs: {gradient_steps: -2}", "dqn.algo_kwargs.gradient_steps must be >= -1, got -2"),
        ("algo_kwargs: {hidden_sizes: [64, 0]}", "dqn.algo_kwargs.hidden_sizes.1 must be >= 1, got 0"),
        ("device: 3", "device must be a text, got 3"),
        ("wrappers: a:B", "wrappers must be a list, got 'a:B'"),
        ("algo_kwargs: {hidden_sizes: 64}", "dqn.algo_kwargs.hidden_sizes must be a list, got 64"),
        ("algo_kwargs: {double_q: 1}", "dqn.algo_kwargs.double_q must be true or false, got 1"),
        ("algo_kwargs: {loss: l1}", "dqn.algo_kwargs.loss must be 'huber' or 'mse', got 'l1'"),
    ],
)
def test_a_wrong_value_is_answered_with_its_name_the_rule_and_what_was_found(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, line)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("c51_dqn", {"v_min": 5, "v_max": 5}, ": v_max must be greater than v_min, 5, got 5"),
        ("c51_dqn", {"v_max": -20.5}, ": v_max must be greater than v_min, -10, got -20.5"),
        ("rainbow_dqn", {"v_min": 3, "v_max": 1}, ": v_max must be greater than v_min, 3, got 1"),
        ("c51_dqn", {"v_max": float("inf")}, ".v_max must be a finite number, got inf"),
        ("c51_dqn", {"v_min": "low"}, ".v_min must be a number, got 'low'"),
        ("c51_dqn", {"num_atoms": 1}, ".num_atoms must be >= 2, got 1"),
        ("rainbow_dqn", {"num_atoms": 0}, ".num_atoms must be >= 2, got 0"),
        ("qr_dqn", {"num_quantiles": 1}, ".num_quantiles must be >= 2, got 1"),
        ("iqn", {"num_quantiles": 1}, ".num_quantiles must be >= 2, got 1"),
        ("iqn", {"num_tau_samples": 1}, ".num_tau_samples must be >= 2, got 1"),
        ("iqn", {"embedding_dim": 0}, ".embedding_dim must be >= 1, got 0"),
        ("fqf", {"num_quantiles": 1}, ".num_quantiles must be >= 2, got 1"),
        ("fqf", {"num_quantiles": 2.5}, ".num_quantiles must be a whole number, got 2.5"),
        ("qr_dqn", {"kappa": -0.1}, ".kappa must be >= 0, got -0.1"),
        ("iqn", {"kappa": -1}, ".kappa must be >= 0, got -1"),
        ("fqf", {"kappa": -1}, ".kappa must be >= 0, got -1"),
        ("fqf", {"entropy_coef": -1}, ".entropy_coef must be >= 0, got -1"),
        ("fqf", {"fraction_learning_rate": 0}, ".fraction_learning_rate must be > 0, got 0"),
        ("prioritized_dqn", {"prioritized_alpha": -0.5}, ".prioritized_alpha must be >= 0, got -0.5"),
        ("rainbow_dqn", {"prioritized_alpha": -0.5}, ".prioritized_alpha must be >= 0, got -0.5"),
        ("dqn", {"prioritized_beta_start": 1.5}, ".prioritized_beta_start must be in [0, 1], got 1.5"),
        ("dqn", {"prioritized_beta_end": -0.1}, ".prioritized_beta_end must be in [0, 1], got -0.1"),
        ("n_step_dqn", {"n_step": 0}, ".n_step must be >= 1, got 0"),
        ("n_step_dqn", {"buffer_capacity": 2}, ": buffer_capacity must be at least n_step, 3, got 2"),
        ("rainbow_dqn", {"buffer_capacity": 9, "n_step": 10}, ": buffer_capacity must be at least n_step, 10, got 9"),
        ("noisy_dqn", {"noisy_sigma": 0}, ".noisy_sigma must be > 0, got 0"),
        ("noisy_dqn", {"noisy": "yes"}, ".noisy must be true or false, got 'yes'"),
        ("dqn", {"evaluation_epsilon": 1.5}, ".evaluation_epsilon must be in [0, 1], got 1.5"),
        ("dqn", {"memory": "disk"}, ".memory must be 'ram' or 'mmap', got 'disk'"),
        ("qr_dqn", {"num_atoms": 51}, ": unknown setting 'num_atoms'; "),
        ("iqn", {"num_quantile": 8}, ": unknown setting 'num_quantile'; did you mean 'num_quantiles'?"),
    ],
)
def test_a_wrong_setting_of_the_dqn_family_is_answered_in_the_same_way(
    algo: str, settings: dict[str, Any], message: str
) -> None:
    answer = message_of(algo=algo, algo_kwargs=settings)
    expected = f"{algo}.algo_kwargs{message}"
    assert answer == expected or (expected.endswith("; ") and answer.startswith(expected))


def test_all_mistakes_are_reported_at_once() -> None:
    message = message_of(num_envs=0, seed=-1)
    assert message.splitlines() == ["seed must be >= 0, got -1", "num_envs must be >= 1, got 0"]


# --- Keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_env: 4", "unknown setting 'num_env'; did you mean 'num_envs'?"),
        ("total_timestep: 4", "unknown setting 'total_timestep'; did you mean 'total_timesteps'?"),
        ("xyz: 4", "unknown setting 'xyz'; known: acceleration, algo, algo_kwargs, "),
        ("7: 4", "unknown setting '7'; known: "),
        (
            "algo_kwargs: {batchsize: 4}",
            "dqn.algo_kwargs: unknown setting 'batchsize'; did you mean 'batch_size'?",
        ),
        ("algo_kwargs: {xyz: 4}", "dqn.algo_kwargs: unknown setting 'xyz'; known: act_with_target, adam_eps, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_probably_meant(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, line)
    assert str(caught.value).startswith(message)


def test_missing_settings_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(algo="dqn")
    assert str(caught.value).startswith("total_timesteps is missing: env steps to train for")
    with pytest.raises(ConfigError) as caught:
        TrainConfig(algo="dqn", total_timesteps=1)  # only offline algorithms do without
    assert str(caught.value) == "env_id is missing: dqn learns in an environment"


def test_an_unknown_algorithm_is_refused_with_the_one_probably_meant() -> None:
    assert message_of(algo="dqm") == "algo: unknown algorithm 'dqm'; did you mean 'dqn'?"
    assert message_of(algo="DQN") == "algo: unknown algorithm 'DQN'; did you mean 'dqn'?"
    assert message_of(algo="QRDQN") == "algo: unknown algorithm 'QRDQN'; did you mean 'qr_dqn'?"
    assert message_of(algo="xyz").startswith("algo: unknown algorithm 'xyz'; known: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: it must hold settings as `key: value` lines"),
        ("# algo: dqn\n", "is empty: it must hold settings as `key: value` lines"),
        ("- dqn\n", "must hold settings as `key: value` lines, found list"),
        ("algo: [\n", "is not valid YAML"),
        ("algo: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
        ("? [a, b]\n: 1\n", "is not valid YAML"),
        ("{a: 1}: 2\n", "is not valid YAML"),
    ],
)
def test_a_file_that_is_not_a_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path)


def test_a_group_without_lines_has_no_settings(tmp_path: Path) -> None:
    lines = "algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 10\n"
    groups = "algo_kwargs:\n  # gamma: 0.98\nenv_kwargs:\nwrappers:\n"
    assert load_config(write(tmp_path, lines + groups)) == load_config(write(tmp_path, lines))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


# --- Overrides -------------------------------------------------------------------------------------------------------


def test_overrides_win_over_the_file_and_are_read_as_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "algo_kwargs: {gamma: 0.9, batch_size: 32}\n")
    overrides = [
        "algo_kwargs.gamma=0.98",
        "algo_kwargs.learning_rate=3e-4",
        "algo_kwargs.hidden_sizes=[8, 8]",
        "env_kwargs.max_episode_steps=7",
        "seed=3",
        "seed=4",
        "stop_return=null",
    ]
    config = load_config(path, overrides)
    assert config.algo_kwargs == {"gamma": 0.98, "batch_size": 32, "learning_rate": 3e-4, "hidden_sizes": [8, 8]}
    assert config.env_kwargs == {"max_episode_steps": 7}
    assert config.seed == 4
    assert config.stop_return is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "a setting is given as key=value, such as algo_kwargs.gamma=0.98, got 'seed'"),
        ("=3", "a setting is given as key=value"),
        ("seed.x=3", "seed.x=3: 'seed' is a single value, not a group of settings"),
        ("seed=[", "seed=[ is not valid YAML"),
        ("algo_kwargs.gama=0.9", "dqn.algo_kwargs: unknown setting 'gama'; did you mean 'gamma'?"),
        ("sed=1", "unknown setting 'sed'; did you mean 'seed'?"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(write(tmp_path, MINIMAL + "seed: 1\n"), [override])


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", packaged_configs())
def test_every_shipped_config_loads(name: str) -> None:
    config = load_config(f"configs/{name}")
    assert config.algo == Path(name).parent.name
    assert isinstance(config.hparams, config.spec.hparams)


@pytest.mark.parametrize(
    "path", ["configs/dqn/cartpole.yaml", "dqn/cartpole.yaml", "dqn/cartpole", "configs/dqn/cartpole"]
)
def test_shipped_configs_are_found_from_any_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config_file(path) == PACKAGED_CONFIGS / "dqn" / "cartpole.yaml"


def test_a_file_in_the_working_folder_goes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "configs" / "dqn" / "cartpole.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(MINIMAL + "seed: 77\n")
    assert load_config("configs/dqn/cartpole.yaml").seed == 77


def test_a_missing_file_is_answered_with_shipped_ones_that_come_near() -> None:
    with pytest.raises(ConfigError, match=r"no config file 'configs/dqn/cart\.yaml'; .*configs/dqn/cartpole\.yaml"):
        load_config("configs/dqn/cart.yaml")


# --- Values ----------------------------------------------------------------------------------------------------------


def test_configs_and_hparams_are_frozen() -> None:
    config = make()
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.hparams.gamma = 0.5  # type: ignore[attr-defined]


def test_a_resolved_config_names_every_setting_and_survives_a_file(tmp_path: Path) -> None:
    config = make(algo_kwargs={"gamma": 0.9}, output_dir=tmp_path / "out")
    resolved = config.resolved()
    assert set(resolved.algo_kwargs) == set(DQNHParams.model_fields)
    assert resolved.hparams == config.hparams == DQNHParams(gamma=0.9)
    again = load_config(write(tmp_path, resolved.to_yaml()))
    assert again == resolved
    assert set(yaml.safe_load(resolved.to_yaml())) == set(TrainConfig.model_fields)


finite = st.floats(1e-12, 1.0)


@given(gamma=finite, learning_rate=finite, hidden=st.lists(st.integers(1, 512), max_size=3), seed=st.integers(0, 2**64))
def test_any_values_survive_a_file_exactly(gamma: float, learning_rate: float, hidden: list[int], seed: int) -> None:
    kwargs = {"gamma": gamma, "learning_rate": learning_rate, "hidden_sizes": hidden}
    config = make(seed=seed, algo_kwargs=kwargs).resolved()
    assert TrainConfig(**yaml.safe_load(config.to_yaml())).hparams == config.hparams
    assert TrainConfig(**yaml.safe_load(config.to_yaml())) == config


def test_the_digest_differs_between_experiments_but_not_between_seeds_and_folders() -> None:
    digest = make().digest()
    assert re.fullmatch("[0-9a-f]{8}", digest)
    assert digest == make(seed=5, output_dir="elsewhere").digest()
    assert digest == make(algo_kwargs={"gamma": DQNHParams().gamma}).digest()  # the default, written out
    others = [make(algo_kwargs={"gamma": 0.5}), make(num_envs=2), make(env_id="Acrobot-v1"), make(total_timesteps=7)]
    assert len({digest, *(config.digest() for config in others)}) == 5


def test_an_update_is_checked_like_the_original() -> None:
    config = make()
    assert config.updated(seed=9).seed == 9
    assert config.seed == 0
    with pytest.raises(ConfigError, match="num_envs must be >= 1, got 0"):
        config.updated(num_envs=0)


@pytest.mark.parametrize("name", registry())
def test_every_setting_is_described(name: str) -> None:
    fields = {**TrainConfig.model_fields, **registry()[name].hparams.model_fields}
    assert all(field.description for field in fields.values())


# --- Updates owed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frequency", "gradient_steps", "starts", "step", "expected"),
    [
        (1, 1, 0, 0, 0),
        (1, 1, 10, 10, 0),
        (1, 1, 10, 11, 1),
        (4, 1, 10, 13, 0),
        (4, 1, 10, 14, 1),
        (4, 3, 10, 18, 6),
        (4, -1, 10, 18, 8),  # -1: as many as env steps
        (4, -1, 10, 21, 8),
    ],
)
def test_updates_owed_by_hand(frequency: int, gradient_steps: int, starts: int, step: int, expected: int) -> None:
    hparams = DQNHParams(train_frequency=frequency, gradient_steps=gradient_steps, learning_starts=starts)
    assert q_learning_updates(hparams, step) == expected


def test_home_folder_is_expanded_in_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    kwargs = {"dataset_path": "~/data.npz", "dataset_kind": "npz"}
    config = TrainConfig(algo="bc", total_timesteps=10, output_dir="~/runs", algo_kwargs=kwargs)
    assert config.output_dir == Path("/home/ada/runs")
    assert config.resolved().algo_kwargs["dataset_path"] == "/home/ada/data.npz"
    assert TrainConfig(algo="bc", total_timesteps=10, output_dir="~nobody-has-this-name/x", algo_kwargs=kwargs)


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Python's own limit; the compiler of PyTorch raises it for the rest of the process."""
    raised = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(raised)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: " + "9" * 5_000, "cannot be read: .*digits"),
        ("seed: 0x" + "f" * 5_000, "seed is an integer of 20,000 bits"),
        ("env_kwargs: " + "[" * 5_000, "nested too deeply"),
        ("env_kwargs: {a: !!binary aGVsbG8=}", "env_kwargs.a must be a number, a text, a list or a group, got a bytes"),
        ("env_kwargs: &x {a: *x}", "nested over 50 deep"),
        (
            "env_kwargs: {a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1], b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a], "
            "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b], d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c], "
            "e: [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]}",
            "more than 100,000 values",
        ),
        ("env_kwargs: {? " + "a" * 1_001 + " : 1}", "a name of 1,001 characters"),
        ("env_kwargs: {a: &a " + "a" * 200_000 + ", b: [" + "*a, " * 100 + "]}", "more than 16,777,216 characters"),
        ("seed: " + "1:" * 10_000 + "1", "a number of 20,001 characters"),
        ("seed: " + "1:" * 300 + "1.5", "cannot be read: OverflowError"),
        ("seed: !!bool maybe", "cannot be read: KeyError"),
        ("seed: !!float ''", "cannot be read: IndexError"),
        ("seed: !!timestamp today", "cannot be read: AttributeError"),
    ],
    ids=[
        *("decimal", "hexadecimal", "deep", "bytes", "endless", "many", "long name", "repeated"),
        *("base 60", "base 60 with a point", "no bool", "no float", "no date"),
    ],
)
@pytest.mark.usefixtures("usual_recursion_limit")
def test_values_that_no_setting_can_have_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 10\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_names_above_many_settings_are_not_copied_for_each(tmp_path: Path) -> None:
    # 50 names of 1,000 characters, above 90,000 values: 4.5 GB if each value had its whole name.
    settings: dict[str, Any] = {f"{number}": 0 for number in range(90_000)}
    for _ in range(49):
        settings = {"a" * 1_000: settings}
    tracemalloc.start()
    check_plain(settings)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_a_date_is_a_text(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 10\nenv_kwargs: {day: 2026-11-16}\n")
    assert load_config(file).env_kwargs == {"day": "2026-11-16"}
