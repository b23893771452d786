"""The command line: results on stdout, one clear message per mistake on stderr, exit codes, and quick answers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any, get_args, get_type_hints

import pytest
import typer
import yaml
from typer.testing import CliRunner

import rl_training.__main__
import rl_training.runtime.trainer
from builders import make_config
from rl_training.cli import app
from rl_training.commands.config import config_app
from rl_training.commands.datasets import dataset_app
from rl_training.commands.doctor import Finding, _options, _processors
from rl_training.commands.evaluate import describe_returns
from rl_training.commands.messages import reports_errors
from rl_training.commands.train import _describe_time
from rl_training.core.extras import EXTRAS
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import write_pointer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs, parse_config
from rl_training.experiment.registry import registry
from rl_training.results.course import describe_course
from rl_training.results.return_text import mean_and_std
from rl_training.runtime.evaluation import EvalEpisode
from tampering import edit_manifest

SHIPPED = "configs/dqn/cartpole.yaml"


def call(*arguments: object, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(word) for word in arguments], input=stdin)


def fails(*arguments: object) -> str:
    """Call with a mistake: exit code 2, nothing on stdout, one message on stderr, which is returned."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config_in.yaml"
    path.write_text(make_config(folder / "runs", **changes).to_yaml(), encoding="utf-8")
    return path


def only_folder(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    assert call("train", "--config", write_config(folder), "--quiet").exit_code == 0
    return only_folder(folder / "runs")


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may damage or continue."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def only_checkpoint(run: Path) -> Path:
    (path,) = (run / "checkpoints").glob("step_*")
    return path


# --- What works ------------------------------------------------------------------------------------------------------


def test_train_ends_with_the_evaluation_and_the_commands_to_go_on(tmp_path: Path) -> None:
    result = call("train", "--config", write_config(tmp_path), "--set", "eval_episodes=3")
    run = only_folder(tmp_path / "runs")
    summary = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    returns = [episode["return"] for episode in json.loads((run / "result.json").read_text())["eval"]]
    assert result.exit_code == 0
    assert summary["evaluation"].strip().startswith(f"{mean_and_std(returns)} (3 episodes")
    assert summary["steps"].strip().startswith("60 (50 gradient steps")
    assert summary["run folder"].strip() == str(run)
    assert summary["evaluate it"].strip() == f"rl-training evaluate {run}"
    assert summary["train on"].strip() == f"rl-training resume {run} --total-timesteps 120"
    assert "dqn on rl_training/Chain-v0" in result.stderr
    assert "dqn on rl_training/Chain-v0" not in result.stdout


def test_train_ends_with_a_curve_of_the_evaluations_and_where_to_see_more(tmp_path: Path) -> None:
    result = call("train", write_config(tmp_path, eval_interval=20, tensorboard=True), "--quiet")
    run = only_folder(tmp_path / "runs")
    summary = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert summary["course"].strip().endswith("(3 evaluations)")
    assert summary["see curves"].strip() == f"tensorboard --logdir {run}"
    assert all(character.isprintable() or character == "\n" for character in result.stdout)


def test_the_speed_of_a_run_does_not_count_compilation() -> None:
    assert _describe_time(1_000, 10.0, 0.0) == "10.0 s (100 steps/s)"
    assert _describe_time(1_000, 100.0, 80.0) == "0:01:40 (80 s to compile, then 50 steps/s)"


def write_records(folder: Path, name: str, records: Sequence[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_course_of_a_run_is_the_mean_return_of_its_evaluations(tmp_path: Path) -> None:
    # Means of two episodes each: 0, 50, 100. The lowest is the lowest block, the highest the highest.
    returns = [(10, -1.0), (10, 1.0), (20, 40.0), (20, 60.0), (30, 100.0), (30, 100.0)]
    write_records(tmp_path, "eval.jsonl", [{"step": s, "episode": 0, "return": r, "length": 1} for s, r in returns])
    write_records(tmp_path, "episodes.jsonl", [])
    assert describe_course(tmp_path, encoding="utf-8") == "▁▅█ from 0.0 to 100.0 (3 evaluations)"
    assert describe_course(tmp_path, encoding="latin-1") == ".+@ from 0.0 to 100.0 (3 evaluations)"


def test_the_course_of_a_run_with_few_evaluations_is_that_of_its_training_episodes(tmp_path: Path) -> None:
    write_records(tmp_path, "eval.jsonl", [{"step": 1_000, "episode": 0, "return": 9.0, "length": 1}])
    write_records(tmp_path, "episodes.jsonl", [{"step": step, "return": step} for step in range(1, 1_001)])
    course = describe_course(tmp_path, encoding="utf-8")
    assert course is not None
    curve, _, rest = course.partition(" ")
    assert len(curve) == 40
    assert sorted(curve) == list(curve)
    assert rest == "from 13.0 to 988.0 (1,000 training episodes)"  # 25 of them per character: 1 to 25, 976 to 1000


def test_a_course_that_changes_nothing_is_flat_and_one_without_episodes_is_none(tmp_path: Path) -> None:
    write_records(tmp_path, "episodes.jsonl", [{"step": step, "return": 3.0} for step in (1, 2, 3)])
    write_records(tmp_path, "eval.jsonl", [{"step": 5, "held_out": {"loss": 1.0}}])
    assert describe_course(tmp_path, encoding="utf-8") == "▁▁▁ from 3.000 to 3.000 (3 training episodes)"
    write_records(tmp_path, "episodes.jsonl", [])
    assert describe_course(tmp_path, encoding="utf-8") is None


def test_options_of_train_go_before_set_and_set_before_the_file(tmp_path: Path) -> None:
    config = write_config(tmp_path, seed=1, total_timesteps=40)
    options = ["--set", "seed=2", "--set", "total_timesteps=30", "--set", "algo_kwargs.gamma=0.5"]
    result = call("train", "-c", config, *options, "--seed", 3, "--output-dir", tmp_path / "else: where", "--quiet")
    saved = load_config(only_folder(tmp_path / "else: where") / "config.yaml")
    assert result.stderr == ""
    assert (saved.seed, saved.total_timesteps, saved.algo_kwargs["gamma"]) == (3, 30, 0.5)


def test_train_takes_the_file_as_its_argument(tmp_path: Path) -> None:
    assert call("train", write_config(tmp_path), "--quiet").exit_code == 0
    assert load_config(only_folder(tmp_path / "runs") / "config.yaml").total_timesteps == 60


def test_train_needs_no_file_if_algorithm_environment_and_length_are_given(tmp_path: Path) -> None:
    what = ["--algo", "dqn", "--env", "rl_training/Chain-v0", "--total-timesteps", "6e1"]
    result = call("train", *what, "--output-dir", tmp_path, "--set", "algo_kwargs.learning_starts=1e1", "--quiet")
    saved = load_config(only_folder(tmp_path) / "config.yaml")
    assert result.exit_code == 0, result.stderr
    assert (saved.algo, saved.env_id, saved.total_timesteps) == ("dqn", "rl_training/Chain-v0", 60)
    assert saved.algo_kwargs["learning_starts"] == 10


def test_algorithm_and_environment_on_the_command_line_go_before_the_file(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert call("train", config, "--algo", "double_dqn", "--env", "rl_training/Identity-v0", "--quiet").exit_code == 0
    saved = load_config(only_folder(tmp_path / "runs") / "config.yaml")
    assert (saved.algo, saved.env_id) == ("double_dqn", "rl_training/Identity-v0")


def write_own_env(folder: Path, module: str) -> str:
    """Write a module that registers an environment; return its id as users write it."""
    env_id = f"{module.title()}-v0"
    text = f"import gymnasium\ngymnasium.register({env_id!r}, entry_point='rl_training.envs.tiny:Chain')\n"
    (folder / f"{module}.py").write_text(text)
    return f"{module}:{env_id}"


OWN_ENV_COMMANDS = [
    ["train", "--algo", "dqn", "--total-timesteps", "20", "--quiet"],
    ["record", "--random", "--steps", "5", "--out", "data.npz", "--quiet"],
]


@pytest.mark.parametrize("command", OWN_ENV_COMMANDS)
def test_a_module_in_the_current_folder_is_imported(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as in the installed script
    result = call(*command, "--env", write_own_env(tmp_path, f"own_{command[0]}"))
    assert result.exit_code == 0, result.stderr
    assert sys.path[-1] == str(tmp_path)  # the last place: a file here hides no installed package


def test_the_current_folder_is_searched_only_for_an_environment_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert call("train", write_config(tmp_path), "--quiet").exit_code == 0
    assert str(tmp_path) not in sys.path


def integer_options() -> dict[str, Any]:
    """Return the options of all commands that are whole numbers, by name."""
    commands = [*app.registered_commands, *dataset_app.registered_commands, *config_app.registered_commands]
    hints = [hint for c in commands for hint in get_type_hints(c.callback, include_extras=True).items()]
    return {name: hint.__metadata__[0] for name, hint in hints if get_args(hint)[:1] in ((int,), (int | None,))}


def test_every_integer_option_takes_an_exponent() -> None:
    options = integer_options()
    assert options.keys() >= {"total_timesteps", "seed", "jobs", "episodes", "steps", "smooth"}
    for text, number in (("1e4", 10_000), ("1_000", 1_000), ("2.0", 2), ("9007199254740993", 2**53 + 1)):
        assert {option.parser(text) for option in options.values()} == {number}


@pytest.mark.parametrize("text", ["0", "1.5", "1e-1", "nan", "inf", "1e400", "many", ""])
def test_an_integer_option_refuses_what_is_no_whole_number(text: str) -> None:
    result = call("train", SHIPPED, "--total-timesteps", text)
    assert result.exit_code == 2
    assert f"must be a whole number >= 1, got '{text}'" in " ".join(result.stderr.replace("│", " ").split())


def test_train_seeds_gives_one_summary_and_does_not_run_a_finished_seed_again(tmp_path: Path) -> None:
    command = ["train", "-c", write_config(tmp_path), "--seeds", "0,2", "--quiet"]
    first = call(*command)
    folder = only_folder(tmp_path / "runs")
    written = {path: path.stat().st_mtime_ns for path in folder.glob("seed*/result.json")}
    again = call(*command)
    assert [line.split("  ")[0] for line in first.stdout.splitlines()] == ["seed 0", "seed 2", "all seeds", "folder"]
    assert "2 seeds" in first.stdout
    assert again.stdout == first.stdout
    assert len(written) == 2
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_vary_trains_a_population_which_the_same_command_or_resume_leaves_as_it_is(tmp_path: Path) -> None:
    vary = "algo_kwargs.gamma=0.9,0.8"
    command = ["train", "-c", write_config(tmp_path), "--seeds", "0,2", "--vary", vary, "--quiet"]
    first = call(*command)
    folder = only_folder(tmp_path / "runs")
    written = {path: path.stat().st_mtime_ns for path in folder.glob("members/*/result.json")}
    names = [line.split("  ")[0] for line in first.stdout.splitlines()]
    assert names == ["member 000", "member 001", "member 002", "member 003", "all members", "folder"]
    assert call(*command).stdout == call("resume", folder, "--quiet").stdout == first.stdout
    assert len(written) == 4
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert "is a population, which continues as it is" in fails("resume", folder, "--total-timesteps", 1000)


def test_evaluate_gives_the_same_episodes_as_the_end_of_training(finished_run: Path) -> None:
    result = call("evaluate", finished_run, "--json")
    record = json.loads(result.stdout)
    assert record["episodes"] == json.loads((finished_run / "result.json").read_text())["eval"]
    assert record["mean"] == fmean(episode["return"] for episode in record["episodes"])
    assert record["min"] <= record["mean"] <= record["max"]


def test_returns_are_shown_with_their_spread_over_episodes() -> None:
    # Mean (1 + 3) / 2 = 2; both are 1 away from it.
    episodes = [EvalEpisode(0, 7, 1.0, 10), EvalEpisode(1, 8, 3.0, 10)]
    assert describe_returns(episodes) == "2.000 ± 1.000 (2 episodes, min 1.000, max 3.000)"
    assert describe_returns(episodes[:1]) == "1.000 ± 0.000 (1 episode, min 1.000, max 1.000)"


def test_evaluate_takes_a_checkpoint_a_seed_and_a_number_of_episodes(finished_run: Path) -> None:
    default = json.loads(call("evaluate", finished_run, "--episodes", 3, "--json").stdout)
    other = json.loads(call("evaluate", only_checkpoint(finished_run), "--episodes", 3, "--seed", 9, "--json").stdout)
    assert len(default["episodes"]) == len(other["episodes"]) == 3
    assert {e["seed"] for e in default["episodes"]}.isdisjoint(e["seed"] for e in other["episodes"])
    assert call("evaluate", finished_run).stdout.startswith("evaluation  ")


def test_evaluate_takes_the_newest_checkpoint_or_the_best(run: Path) -> None:
    assert call("resume", run, "--total-timesteps", 70, "--quiet").exit_code == 0
    write_pointer(run / "checkpoints", "best", "step_000000060")
    assert json.loads(call("evaluate", run, "--json").stdout)["step"] == 70
    assert json.loads(call("evaluate", run, "--json", "--best").stdout)["step"] == 60


def test_long_evaluations_report_their_progress(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.commands.evaluate._PROGRESS_SECONDS", 0.0)
    assert "episode 2/2: return" in call("evaluate", finished_run).stderr
    assert call("evaluate", finished_run, "--quiet").stderr == ""


def test_resume_lengthens_a_run_here_or_in_a_new_folder(run: Path, tmp_path: Path) -> None:
    forked = call("resume", run, "--total-timesteps", 80, "--output-dir", tmp_path / "forks", "--quiet")
    assert "80 (70 gradient steps" in forked.stdout
    assert str(only_folder(tmp_path / "forks")) in forked.stdout
    assert json.loads((run / "result.json").read_text())["step"] == 60
    assert call("resume", run, "--total-timesteps", 70, "--quiet").exit_code == 0
    assert json.loads((run / "result.json").read_text())["step"] == 70


def test_predict_answers_one_observation_a_batch_and_lines_of_stdin(finished_run: Path) -> None:
    start = [1, 0, 0, 0, 0]
    one = json.loads(call("predict", finished_run, "--obs", json.dumps(start)).stdout)
    batch = json.loads(call("predict", finished_run, "--obs", json.dumps([start, start])).stdout)
    lines = call("predict", finished_run, "--obs", "-", stdin=f"{start}\n\n[{start}, {start}]\n").stdout
    assert one in (0, 1)
    assert batch == [one, one]
    assert [json.loads(line) for line in lines.splitlines()] == [one, batch]


def test_list_shows_every_algorithm_and_config() -> None:
    text, record = call("list").stdout, json.loads(call("list", "--json").stdout)
    assert [row["algo"] for row in record["algorithms"]] == list(registry())
    assert record["configs"] == [f"configs/{name}" for name in packaged_configs()]
    for spec in registry().values():
        assert spec.summary in text
        assert f"configs/{spec.reference_config}" in record["configs"]


def test_list_shows_the_score_of_a_config_or_that_it_has_none() -> None:
    text, scores = call("list").stdout, json.loads(call("list", "--json").stdout)["scores"]
    (cartpole,) = scores["configs/dqn/cartpole.yaml"]
    line = next(line for line in text.splitlines() if "configs/dqn/cartpole.yaml" in line)
    assert f"{cartpole['mean']:,.1f} ± " in line
    assert f" on CartPole-v1, {cartpole['steps']:,} steps, seeds 0-{cartpole['seeds'][-1]}" in line
    older = [name for name, found in scores.items() if any("changed_since" in each for each in found)]
    assert [line.split()[0] for line in text.splitlines() if "before a later change" in line] == older
    unscored = [name for name, found in scores.items() if not found]
    assert text.count("not scored") == len(unscored)


@pytest.mark.parametrize("name", registry())
def test_config_show_explains_every_setting_and_is_a_config_itself(name: str, tmp_path: Path) -> None:
    spec = registry()[name]
    config, shown = f"configs/{spec.reference_config}", tmp_path / "shown.yaml"
    shown.write_text(call("config", "show", config, "--set", "algo_kwargs.gamma=0.5").stdout)
    assert load_config(shown) == load_config(config, ["algo_kwargs.gamma=0.5"]).resolved()
    for model in (TrainConfig, spec.hparams):
        for name, field in model.model_fields.items():
            assert f"{name}:" in shown.read_text()
            assert name == "algo_kwargs" or f"# {field.description}" in shown.read_text()


def test_config_schema_knows_ranges_and_settings_of_the_algorithm() -> None:
    one, every = (json.loads(call("config", "schema", *algo).stdout) for algo in (["dqn"], []))
    gamma = one["$defs"]["dqn"]["properties"]["gamma"]
    assert (gamma["minimum"], gamma["maximum"], gamma["default"]) == (0.0, 1.0, 0.99)
    assert one["$defs"]["dqn"]["additionalProperties"] is False
    assert one["properties"]["algo_kwargs"] == {"$ref": "#/$defs/dqn"}
    assert one["properties"]["algo"]["enum"] == ["dqn"]
    assert one["properties"]["num_envs"]["minimum"] == 1
    assert one["required"] == ["env_id", "algo", "total_timesteps"]
    needs_env = {rule["if"]["properties"]["algo"]["const"]: rule["then"]["required"] for rule in every["allOf"]}
    assert (needs_env["dqn"], needs_env["iql"]) == (["env_id"], [])
    assert [rule["if"]["properties"]["algo"]["const"] for rule in every["allOf"]] == list(registry())


def test_doctor_finds_a_working_installation(tmp_path: Path) -> None:
    result = call("doctor", "--output-dir", tmp_path)
    assert result.exit_code == 0, result.stdout
    assert "ok    training     32 env steps, 16 updates" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_each_extra_with_its_versions_or_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    found = {finding.subject: finding for finding in _options()}
    assert list(found) == list(EXTRAS)
    plot = Finding("ok", "plot", f"matplotlib {metadata.version('matplotlib')}")
    missing = 'ale-py not installed; if you need it: pip install "rl-training[atari]"'
    assert (found["plot"], found["atari"]) == (plot, Finding("note", "atari", missing))


def test_doctor_counts_one_thread_in_the_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert next(iter(_processors())).text.endswith(", PyTorch uses 1 thread")


def test_doctor_says_what_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = call("doctor", "--output-dir", tmp_path / "file")
    assert result.exit_code == 1
    assert f"fix   disk         {tmp_path / 'file'} cannot be written to" in result.stdout
    assert "1 to fix" in result.stdout


def test_a_check_of_doctor_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> Sequence[Finding]:
        raise ImportError("libtorch is missing")

    monkeypatch.setattr("rl_training.commands.doctor._processors", broken)
    assert "fix   broken       ImportError: libtorch is missing" in call("doctor", "--output-dir", tmp_path).stdout


# --- Mistakes --------------------------------------------------------------------------------------------------------


def test_settings_that_do_not_go_together_are_named_with_what_would_be_right(tmp_path: Path) -> None:
    message = fails("train", "--config", "configs/ppo/cartpole.yaml", "--output-dir", tmp_path, "--set", "num_envs=7")
    assert "error: ppo.algo_kwargs: minibatch_size must divide the rollout of num_steps * num_envs = 32 * 7" in message
    assert "would do" in message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algo_kwargs.gama=0.9", "error: dqn.algo_kwargs: unknown setting 'gama'; did you mean 'gamma'?"),
        ("learning_rate=1e-3", "error: unknown setting 'learning_rate'; did you mean 'algo_kwargs.learning_rate'?"),
        ("lerning_rate=1e-3", "error: unknown setting 'lerning_rate'; did you mean 'algo_kwargs.learning_rate'?"),
        ("total_timestep=5", "error: unknown setting 'total_timestep'; did you mean 'total_timesteps'?"),
        ("algo_kwargs.batch_size=many", "error: dqn.algo_kwargs.batch_size must be a whole number, got 'many'"),
        ("num_envs=true", "error: num_envs must be a whole number, got True"),
        ("algo_kwargs.gamma=1.3", "error: dqn.algo_kwargs.gamma must be in [0, 1], got 1.3"),
        ("total_timesteps=0", "error: total_timesteps must be >= 1, got 0"),
        ("eval_episodes=0", "error: eval_episodes must be >= 1, got 0"),
        ("algo=dqm", "error: algo: unknown algorithm 'dqm'; did you mean 'dqn'?"),
        ("env_id=CartPol-v1", "error: env_id: unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (
            "env_id=Pendulum-v1",
            "error: dqn needs a discrete action space, but Pendulum-v1 has Box(-2.0, 2.0,",
        ),
        ("env_kwargs.gravty=1", "error: env_kwargs: CartPole-v1 has no setting 'gravty'"),
        ("algo_kwargs.buffer_capacity=1e12", "GiB of memory are available; lower algo_kwargs.buffer_capacity"),
        ("device=cuda:99", "error: device is 'cuda:99', but PyTorch sees"),
        ("device=gpu", 'error: device must be "auto", "cpu", "cuda" or "cuda:N", got \'gpu\''),
        ("gamma", "error: a setting is given as key=value, such as algo_kwargs.gamma=0.98, got 'gamma'"),
        ("seed=[1", "error: seed=[1 is not valid YAML"),
    ],
)
def test_a_bad_setting_is_named_with_what_would_be_right(setting: str, message: str, tmp_path: Path) -> None:
    assert message in fails("train", "--config", SHIPPED, "--output-dir", tmp_path, "--set", setting)


def test_all_mistakes_of_a_file_are_reported_together(tmp_path: Path) -> None:
    config = tmp_path / "two.yaml"
    config.write_text("algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 0\nnum_env: 3\n")
    stderr = fails("train", "--config", config)
    assert "total_timesteps must be >= 1, got 0" in stderr
    assert "unknown setting 'num_env'; did you mean 'num_envs'?" in stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nalgo: dqn\nseed: 2\n", "setting 'seed' is given twice (line 3)"),
        ("algo: dqn\n", "total_timesteps is missing"),
        ("algo: dqn\ntotal_timesteps: 5\n", "env_id is missing: dqn learns in an environment"),
        ("- dqn\n", "must hold settings as `key: value` lines, found list"),
        ("algo: [dqn\n", "is not valid YAML"),
        ("env_kwargs: &a {}\nalgo_kwargs:\n  <<: *a\n", "`<<` (line 3) is not supported: write its settings out"),
        ("", "is empty: it must hold settings as `key: value` lines"),
    ],
)
def test_a_bad_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text(text)
    assert message in fails("train", "--config", config)
    assert message in fails("config", "show", config)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("zzz.yaml", "`rl-training list` shows those that come with the package"),
        ("configs/dqn/cartpol.yaml", f"did you mean {SHIPPED}"),
        ("iqn/cart", "did you mean configs/iqn/cartpole.yaml?"),
    ],
)
def test_a_missing_config_is_answered_with_those_that_come_near(given: str, answer: str) -> None:
    stderr = fails("train", "--config", given)
    assert f"there is no config file '{given}'; {answer}" in stderr


def test_a_config_is_read_from_stdin() -> None:
    text = "algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 5\n"
    shown = call("config", "show", "-", "--set", "seed=3", stdin=text)
    assert parse_config(shown.stdout, "shown").seed == 3
    assert "stdin: setting 'algo' is given twice" in call("train", "-", stdin=f"{text}algo: ppo\n").stderr
    assert "stdin is empty" in call("tune", "-c", "-", stdin="").stderr
    assert "stdin has more than 1,048,576 bytes" in call("config", "show", "-", stdin=text + "#" * 2**20).stderr


def test_what_is_no_config_file_is_named(tmp_path: Path) -> None:
    assert f"'{tmp_path}' is a folder, not a config file" in fails("train", tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert f"'{pipe}' is a pipe or a device, not a file; `-` reads a config from stdin" in fails("train", pipe)


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stderr = fails("train", "--config", write_config(tmp_path), "--output-dir", tmp_path / "file")
    assert f"error: output_dir: the run's folder {tmp_path / 'file'}" in stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "1", "--seeds", "0-2"], "give --seed or --seeds, not both"),
        (["--jobs", "2"], "give --seeds too"),
        (["--stacked"], "--stacked trains several members: give --seeds too"),
        (["--looped"], "--looped trains several members: give --seeds too"),
        (["--vary", "seed=1,2"], "--vary trains several members: give --seeds too"),
        (["--seeds", "0-1", "--stacked", "--jobs", "2"], "leave --jobs and --launcher out"),
        (["--seeds", "0-1", "--vary", "algo_kwargs.gamma"], "--vary is given as KEY=V1,V2"),
        (["--seeds", "0-1", "--vary", "algo_kwargs.gamma=0.9,0.9"], "must have different values"),
        (["--seeds", "4-0"], "seeds must be like"),
        (["other.yaml"], "give FILE or --config FILE, not both"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], message: str) -> None:
    assert message in fails("train", "--config", SHIPPED, *options)


def test_train_without_a_file_says_what_to_give() -> None:
    assert "give a config FILE, or --algo, --env and --total-timesteps; `rl-training list` shows" in fails("train")
    assert "error: total_timesteps is missing: env steps to train for" in fails("train", "--algo", "dqn", "--env", "X")
    assert "error: env_id is missing: dqn learns in an environment" in fails(
        "train", "--algo", "dqn", "--total-timesteps", 5
    )


@pytest.mark.parametrize(
    "arguments", [["train"], ["train", "--config"], ["trian"], ["evaluate", "x", "--episodes", "0"]]
)
def test_usage_errors_end_with_2(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


READERS = [["evaluate"], ["predict", "--obs", "[1, 0, 0, 0, 0]"], ["resume", "--total-timesteps", "70"]]


@pytest.mark.parametrize("command", READERS)
def test_a_missing_checkpoint_is_named(command: list[str], tmp_path: Path) -> None:
    assert f"there is no run or checkpoint at '{tmp_path / 'nothing'}'" in fails(*command, tmp_path / "nothing")
    assert f"{tmp_path} holds no checkpoint" in fails(*command, tmp_path)


@pytest.mark.parametrize("command", READERS)
def test_a_changed_byte_of_the_policy_is_found(command: list[str], run: Path) -> None:
    file = only_checkpoint(run) / "policy.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert f"{file} is damaged: its checksum differs from that in the manifest" in fails(*command, run)


@pytest.mark.parametrize("command", READERS)
def test_a_cut_file_and_a_broken_manifest_are_found(command: list[str], run: Path) -> None:
    file = only_checkpoint(run) / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert "is damaged" in fails(*command, run)
    (only_checkpoint(run) / "manifest.json").write_text('{"schema_version": 1')
    assert "is damaged" in fails(*command, run)
    (only_checkpoint(run) / "manifest.json").write_text('{"other": 1}')
    assert "is not a checkpoint's manifest" in fails(*command, run)


@pytest.mark.parametrize("command", READERS)
def test_a_checkpoint_of_an_algorithm_that_is_not_installed_is_named(command: list[str], run: Path) -> None:
    edit_manifest(only_checkpoint(run), lambda manifest: manifest["config"].update(algo="alphastar"))
    stderr = fails(*command, run)
    assert str(only_checkpoint(run)) in stderr
    assert "unknown algorithm 'alphastar'" in stderr


def test_prediction_does_not_read_the_memory(run: Path) -> None:
    (only_checkpoint(run) / "memory.safetensors").write_bytes(b"not a tensor")
    assert call("predict", run, "--obs", "[1, 0, 0, 0, 0]").exit_code == 0
    assert "memory.safetensors is damaged" in fails("resume", run, "--total-timesteps", 70)


def test_resuming_a_finished_run_is_no_error_and_says_what_to_give(run: Path, tmp_path: Path) -> None:
    before = (run / "result.json").read_bytes()
    result = call("resume", run)
    assert result.exit_code == 0
    assert "is finished: 60 of 60 steps; a larger total_timesteps continues it" in result.stdout
    assert (run / "result.json").read_bytes() == before
    assert "is finished: 60 of 60 steps" in fails("resume", run, "--output-dir", tmp_path / "fork")


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ("[1, 0", "error: --obs: "),
        ("[1, 0]", "error: --obs: an observation has shape (5,), a batch (n, 5); got (2,)"),
        ("[[1, 0, 0, 0, 0], [1]]", "error: --obs: "),
        ('["a", 0, 0, 0, 0]', "error: --obs: an observation must hold numbers, got ['a', 0, 0, 0, 0]"),
        ("[NaN, 0, 0, 0, 0]", "error: --obs: an observation must hold finite numbers"),
        ("[null, 0, 0, 0, 0]", "error: --obs: an observation must hold finite numbers"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(obs: str, message: str, finished_run: Path) -> None:
    assert message in fails("predict", finished_run, "--obs", obs)


def test_predict_names_the_line_of_stdin(finished_run: Path) -> None:
    result = call("predict", finished_run, "--obs", "-", stdin="[1, 0, 0, 0, 0]\n[1]\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 1
    assert "error: line 2 of the input: an observation has shape" in result.stderr


@pytest.mark.parametrize("option", [{"debug": ["--debug"]}, {"env": {"RL_TRAINING_DEBUG": "1"}}])
def test_debug_shows_the_traceback(option: dict[str, Any]) -> None:
    command = ["train", "--config", "nowhere.yaml", *option.get("debug", [])]
    result = CliRunner().invoke(app, command, env=option.get("env"))
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


# --- How it ends -----------------------------------------------------------------------------------------------------


def break_training(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*arguments: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(rl_training.runtime.trainer, "train", broken)


def test_exit_in_the_code_of_the_user_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    break_training(monkeypatch, SystemExit(0))
    result = call("train", "--config", SHIPPED)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: SystemExit(0) was raised in ")


@pytest.mark.process
def test_a_thread_that_an_env_left_does_not_keep_the_process_alive() -> None:
    code = (
        "import sys, threading; threading.Thread(target=threading.Event().wait).start(); sys.argv[1:] = ['--version']; "
        "from rl_training.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, rl_training.__version__)


def test_an_unexpected_error_is_short_and_leaves_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    break_training(monkeypatch, ZeroDivisionError("by surprise"))
    result = call("train", "--config", SHIPPED)
    report = only_folder(tmp_path)
    assert result.exit_code == 1
    assert "error: ZeroDivisionError: by surprise" in result.stderr
    assert "Traceback" not in result.stderr
    assert str(report) in result.stderr
    assert "in broken" in report.read_text()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


def test_errors_whose_message_cannot_be_printed_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    break_training(monkeypatch, UnprintableError())
    result = call("train", "--config", SHIPPED)
    assert (result.exit_code, "error: UnprintableError: (its message cannot" in result.stderr) == (1, True)
    break_training(monkeypatch, ConfigError("half a character: \ud800"))
    assert fails("train", "--config", SHIPPED) == "error: half a character: \\ud800\n"
    break_training(monkeypatch, ZeroDivisionError("half a character: \ud800"))
    assert call("train", "--config", SHIPPED).exit_code == 1


def test_an_interrupt_during_the_imports_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "rl_training.cli", Interrupted())
    with pytest.raises(SystemExit) as ended:
        rl_training.__main__.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")


def test_an_error_of_the_system_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    break_training(monkeypatch, OSError(28, "No space left on device", "/full/disk"))
    assert fails("train", "--config", SHIPPED) == "error: /full/disk: No space left on device\n"


def test_a_second_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    break_training(monkeypatch, KeyboardInterrupt())
    assert call("train", "--config", SHIPPED).exit_code == 130


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rl_training", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.process
@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_run_and_ends_with_75_and_resume_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    config = write_config(tmp_path, total_timesteps=10_000_000, log_interval=20)
    process = start("train", "--config", config)
    wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("runs/*/metrics.jsonl")), process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    run = only_folder(tmp_path / "runs")
    assert process.returncode == 75, stderr
    assert f"rl-training resume {run}" in stdout
    step = json.loads((only_checkpoint(run) / "manifest.json").read_text())["counters"]["step"]
    assert f"signal {number.name}" in stdout
    resumed = call("resume", run, "--total-timesteps", step + 10, "--quiet")
    assert resumed.exit_code == 0, resumed.stderr
    assert f"{step + 10:,} (" in resumed.stdout


def saved_step(run: Path) -> int:
    names = [path.name for path in (run / "checkpoints").glob("step_*")]
    return max((int(name.removeprefix("step_")) for name in names), default=0)


@pytest.mark.process
@pytest.mark.timeout(180)
def test_a_seed_ends_with_its_killed_driver_and_the_same_command_continues(tmp_path: Path) -> None:
    config = write_config(tmp_path, total_timesteps=10_000_000, log_interval=20)
    command = ["train", config, "--seeds", "0", "--jobs", "2"]
    driver = start(*command)
    wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("runs/*/*/metrics.jsonl")), driver)
    driver.kill()
    driver.communicate()
    run = only_folder(tmp_path / "runs") / "seed0"
    driver = start(*command)  # at once: the run is still being saved
    wait_until(lambda: (run / "log.txt").read_text().count("dqn on") == 2, driver)
    step = saved_step(run)
    driver.terminate()
    _, stderr = driver.communicate(timeout=90)
    assert driver.returncode == 75, stderr
    starts = json.loads((run / "metadata.json").read_text())["starts"]
    assert [start["step"] for start in starts] == [0, step]
    assert 0 < step <= saved_step(run)


# --- Quick answers ---------------------------------------------------------------------------------------------------

PROBE = """
import atexit, sys
heavy = lambda: [name for name in ("torch", "gymnasium", "numpy") if name in sys.modules]
atexit.register(lambda: print("imported:", *heavy(), file=sys.stderr))
from rl_training.cli import main
main()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["list"], 0),
        (["config", "show", SHIPPED], 0),
        (["config", "schema"], 0),
        (["train", "--config", SHIPPED, "--set", "gamma=1"], 2),
        (["train", "--config", "nowhere.yaml"], 2),
    ],
)
def test_help_and_config_errors_do_not_import_torch(arguments: list[str], code: int, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1] == "imported:"


def test_no_arguments_show_the_help() -> None:
    output = call().output
    assert all(
        name in output
        for name in ("train", "evaluate", "resume", "predict", "record", "dataset", "list", "config", "doctor")
    )


@pytest.mark.parametrize("command", ["train", "resume", "tune", "sweep", "record", "plot"])
def test_the_help_fits_a_terminal_of_80_columns(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    assert "--help" in shown
    assert [line for line in shown.splitlines() if "…" in line] == []


def test_every_option_has_a_help_text() -> None:
    from typer.main import get_command

    group: Any = get_command(app)
    commands = list(group.commands.values())
    commands += [command for one in commands for command in getattr(one, "commands", {}).values()]
    assert [(c.name, p.name) for c in commands for p in c.params if not getattr(p, "help", None)] == []
    assert all(c.help for c in commands)


def test_the_shipped_config_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert yaml.safe_load(call("config", "show", SHIPPED).stdout)["env_id"] == "CartPole-v1"


@pytest.mark.process
def test_the_installed_script_gives_the_version() -> None:
    script = Path(sys.executable).with_name("rl-training")
    ended = subprocess.run([script, "--version"], capture_output=True, text=True, env=os.environ)
    assert (ended.returncode, ended.stdout) == (0, f"{rl_training.__version__}\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 29.1 TiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000000 bytes"),
    ],
)
def test_running_out_of_memory_is_not_a_bug(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        reports_errors(command)()
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.startswith(f"error: out of memory ({error}); smaller networks")


def test_home_folder_on_the_command_line_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    message = fails("resume", "~/no_such_run")
    assert str(tmp_path / "no_such_run") in message
