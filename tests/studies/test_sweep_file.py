"""A sweep file stands for a list of checked configs; a mistake in it is refused before anything runs."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.studies.sweep_file import Combination, read_sweep

SHORT = "set: {total_timesteps: 1_000}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "lr.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def combinations(folder: Path, text: str) -> Sequence[Combination]:
    return read_sweep(write(folder, text)).combinations


def message_of(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_sweep(write(folder, text))
    return str(caught.value)


def test_the_grid_is_the_product_of_configs_and_values(tmp_path: Path) -> None:
    text = """
configs: [dqn/cartpole, ppo/cartpole]
set: {total_timesteps: 50_000, algo_kwargs: {gamma: 0.5}}
grid:
  algo_kwargs.learning_rate: [1e-3, 3e-4]
  env_id: [CartPole-v1, Acrobot-v1]
seeds: 0-4
exclude: [{algo: ppo, algo_kwargs.learning_rate: 1e-3}]
"""
    sweep = read_sweep(write(tmp_path, text))
    assert sweep.seeds == [0, 1, 2, 3, 4]
    assert [combination.label for combination in sweep.combinations] == [
        "dqn CartPole-v1 learning_rate=0.001",
        "dqn Acrobot-v1 learning_rate=0.001",
        "dqn CartPole-v1 learning_rate=0.0003",
        "dqn Acrobot-v1 learning_rate=0.0003",
        "ppo CartPole-v1 learning_rate=0.0003",
        "ppo Acrobot-v1 learning_rate=0.0003",
    ]
    config = sweep.combinations[1].config
    assert (config.algo, config.env_id, config.total_timesteps) == ("dqn", "Acrobot-v1", 50_000)
    hparams = config.hparams.model_dump()
    assert (hparams["learning_rate"], hparams["gamma"]) == (1e-3, 0.5)
    assert hparams["n_step"] == 3  # of the file dqn/cartpole: the group in `set` does not replace it


def test_names_with_a_comma_take_their_values_together(tmp_path: Path) -> None:
    text = 'configs: [dqn/cartpole]\ngrid: {"num_envs, algo_kwargs.batch_size": [[1, 32], [4, 128]]}\n'
    found = [each.config for each in combinations(tmp_path, text)]
    assert [(config.num_envs, config.algo_kwargs["batch_size"]) for config in found] == [(1, 32), (4, 128)]


def test_a_sweep_needs_no_config_file(tmp_path: Path) -> None:
    text = "set: {env_id: CartPole-v1, total_timesteps: 1e3}\ngrid: {algo: [dqn, qr_dqn]}\nseeds: [3, 5]\n"
    sweep = read_sweep(write(tmp_path, text))
    assert [each.config.algo for each in sweep.combinations] == ["dqn", "qr_dqn"]
    assert sweep.seeds == [3, 5]


def test_a_file_without_a_grid_compares_its_configs(tmp_path: Path) -> None:
    found = combinations(tmp_path, SHORT + "configs: [dqn/cartpole, ppo/cartpole]\n")
    assert [each.label for each in found] == ["dqn CartPole-v1", "ppo CartPole-v1"]


def test_configs_of_one_algorithm_are_told_apart_by_their_files(tmp_path: Path) -> None:
    other = tmp_path / "mine.yaml"
    other.write_text("algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 10\n")
    found = combinations(tmp_path, f"configs: [dqn/cartpole, '{other}']\n")
    assert [each.label for each in found] == ["dqn CartPole-v1 (dqn/cartpole)", f"dqn CartPole-v1 ({other})"]


def test_a_combination_is_excluded_by_a_default_too(tmp_path: Path) -> None:
    text = SHORT + "configs: [dqn/cartpole]\ngrid: {algo_kwargs.n_step: [1, 3]}\nexclude: [{algo_kwargs: {n_step: 3}}]"
    assert [each.label for each in combinations(tmp_path, text)] == ["dqn CartPole-v1 n_step=1"]
    text = SHORT + "configs: [dqn/cartpole, ppo/cartpole]\nexclude: [{algo_kwargs.double_q: false}]"
    assert [each.config.algo for each in combinations(tmp_path, text)] == ["ppo"]


def test_a_refused_combination_can_be_excluded(tmp_path: Path) -> None:
    text = SHORT + "configs: [dqn/cartpole, ppo/cartpole]\ngrid: {algo_kwargs.n_step: [1, 3]}\nexclude: [{algo: ppo}]\n"
    assert len(combinations(tmp_path, text)) == 2


def test_refused_combinations_are_listed_with_their_reasons(tmp_path: Path) -> None:
    text = SHORT + "configs: [dqn/cartpole, ppo/cartpole]\ngrid: {algo_kwargs.n_step: [1, 3], num_envs: [1, 2]}\n"
    message = message_of(tmp_path, text)
    assert "4 of 8 combinations are refused, and nothing was run" in message
    assert "ppo.algo_kwargs: unknown setting 'n_step'" in message
    assert message.count("unknown setting") == 1  # a reason is given once, with the combinations it holds for
    assert "ppo CartPole-v1 n_step=1 num_envs=1" in message
    assert "exclude" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("confgs: [dqn/cartpole]", "unknown setting 'confgs'; did you mean 'configs'?"),
        ("configs: [dqn/cartpol]", "there is no config file 'dqn/cartpol'; did you mean configs/dqn/cartpole.yaml?"),
        ("configs: [dqn/cartpole]\ngrid: {algo_kwargs.learning_rat: [1, 2]}", "did you mean 'learning_rate'?"),
        ("configs: [dqn/cartpole]\ngrid: {learning_rate: [1, 2]}", "did you mean 'algo_kwargs.learning_rate'?"),
        ("configs: [dqn/cartpole]\ngrid: {num_envs: []}", "grid.num_envs must be a list of values, got []"),
        ("configs: [dqn/cartpole]\ngrid: {num_envs: 3}", "grid.num_envs must be a list of values, got 3"),
        ('configs: [dqn/cartpole]\ngrid: {"seed": [1, 2]}', "grid: seed is not swept here: list them under seeds"),
        ("configs: [dqn/cartpole]\nset: {output_dir: x}", "set: output_dir cannot be set"),
        ('configs: [dqn/cartpole]\ngrid: {"num_envs,device": [[1, cpu], 2]}', "2 values each, got 2"),
        ("configs: [dqn/cartpole]\nset: {num_envs: 1}\ngrid: {num_envs: [1]}", "num_envs is given in set and in grid"),
        ('configs: [dqn/cartpole]\ngrid: {num_envs: [1], "num_envs,device": [[1, cpu]]}', "num_envs is given twice"),
        ("configs: [dqn/cartpole]\nseeds: 4-0", "seeds must be like"),
        ("configs: [dqn/cartpole]\nexclude: [{algo: pppo}]", "exclude: no combination has algo=pppo"),
        ("configs: [dqn/cartpole]\nexclude: [{alg: ppo}]", "exclude: unknown setting 'alg'; did you mean 'algo'?"),
        ("configs: [dqn/cartpole]\nexclude: [{}]", "exclude: an empty group would exclude everything"),
        ("configs: [dqn/cartpole]\nexclude: [{algo: dqn}]", "every combination is excluded"),
        ("configs: [dqn/cartpole]\ngrid: {num_envs: [1, 1]}", "are the same experiment"),
        ("configs: [iql/pendulum]\nset: {env_id: ''}", "env_id is empty"),
        ("- 3", "must hold settings"),
        ("grid: {num_envs: [1]}", "algo is missing"),
        ("configs: [dqn/cartpole]\nset: {env_id.x: 3}", "set.env_id.x: 'env_id' is a single value"),
        ("configs: dqn/cartpole", "configs must be"),
    ],
)
def test_a_mistake_is_refused_with_what_to_change(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message_of(tmp_path, text)


def test_a_grid_that_is_far_too_large_is_refused_at_once(tmp_path: Path) -> None:
    rows = "".join(f"  algo_kwargs.x{number}: [{', '.join(map(str, range(100)))}]\n" for number in range(9))
    assert "combinations" in message_of(tmp_path, f"configs: [dqn/cartpole]\ngrid:\n{rows}")


def test_the_folder_of_a_combination_is_safe_to_use_in_a_shell(tmp_path: Path) -> None:
    text = "set: {algo: dqn, env_id: '<b>$(touch x);/../', total_timesteps: 10}\n"
    (found,) = combinations(tmp_path, text)
    assert re.fullmatch(r"[\w.=-]+__[0-9a-f]{8}", found.folder_name)
    assert found.folder_name.endswith(f"__{found.digest}")


def test_a_sweep_file_ends_in_yaml_because_its_folder_has_the_name_without(tmp_path: Path) -> None:
    path = tmp_path / "lr"
    path.write_text("configs: [dqn/cartpole]")
    with pytest.raises(ConfigError, match=r"must end in \.yaml"):
        read_sweep(path)
    assert read_sweep(write(tmp_path, SHORT + "configs: [dqn/cartpole]")).folder == tmp_path / "lr"
