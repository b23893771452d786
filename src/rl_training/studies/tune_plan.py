"""What a study searches and how: written into its folder before its first trial, and read when it continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rl_training.core.durable_files import write_atomic
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_yaml, read_config_text
from rl_training.experiment.run_dir import env_name, read_written_config, write_config
from rl_training.studies.search_space import Space, as_record, from_record, search_space

Objective = Literal["final", "area"]
SPACE, GIVEN, JOURNAL = "space.yaml", "given.yaml", "study.journal"
MAX_SEEDS = 10_000
RUNGS = (0.1, 0.3)  # parts of a run after which halving compares trials
_HEAD = "# What `rl-training tune` searches here. A study keeps it: other choices need a new folder.\n"


@dataclass(frozen=True)
class Plan:
    """The given config, the settings that are searched around it, and how a trial is valued."""

    config: TrainConfig
    space: Space
    seeds: int = 3  # runs of a trial
    objective: Objective = "final"
    prune: bool = True
    halving: bool = False  # trials in brackets, of which the worse half is dropped at each rung

    def __post_init__(self) -> None:
        if not self.config.env_id:
            raise ConfigError("env_id is empty: trials are compared by the returns of their evaluations in it")
        if not 1 <= self.seeds <= MAX_SEEDS:
            raise ConfigError(f"seeds: a trial has 1 to {MAX_SEEDS:,} runs, got {self.seeds:,}")
        if not self.space:
            raise ConfigError(
                f"{self.config.algo} has no settings that are searched by default: name some with --param"
            )
        if self.config.eval_interval == 0 and self.prune:
            raise ConfigError("eval_interval is 0: nothing could be pruned; set it, or --no-prune")
        if self.config.eval_interval == 0 and self.objective == "area":
            raise ConfigError("eval_interval is 0: --objective area needs evaluations during training; set it")
        if self.halving:
            if not self.prune:
                raise ConfigError("--halving drops trials, but --no-prune runs each to its end: choose one")
            rung_steps(self.config)

    @property
    def record(self) -> dict[str, Any]:
        return {
            "config": self.config.digest(),
            "seeds": self.seeds,
            "objective": self.objective,
            "prune": self.prune,
            **({"halving": True} if self.halving else {}),
            "space": as_record(self.space),
        }


def rung_steps(config: TrainConfig) -> list[int]:
    """Return the steps at which halving compares trials: evaluations before the end of a run."""
    interval, total = config.eval_interval, config.total_timesteps
    if interval == 0 or interval >= total:
        raise ConfigError(
            "--halving compares evaluations during training; set eval_interval below the "
            f"{total:,} steps of a run, got {interval:,}"
        )
    steps = {max(1, round(part * total / interval)) * interval for part in RUNGS}
    return sorted(step for step in steps if step < total)


def study_folder(config: TrainConfig) -> Path:
    """Return the folder of the study of a config, if none is given."""
    return Path("tune") / f"{config.algo}__{env_name(config)}__{config.digest()}"


def make_plan(config: TrainConfig, params: Sequence[str] = (), **choices: Any) -> Plan:
    """Return a new plan; those of `choices` that are None have their default."""
    given = {name: value for name, value in choices.items() if value is not None}
    return Plan(config, search_space(config, params), **given)


def write_plan(folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder / GIVEN, plan.config.resolved())
    write_atomic(folder / SPACE, _HEAD + yaml.safe_dump(plan.record, sort_keys=False))  # last: now it is a study


def read_plan(folder: Path) -> Plan:
    """Read the plan of a study; raise `ConfigError` if there is none, or a damaged one."""
    file = folder / SPACE
    if not file.is_file():
        raise ConfigError(f"{folder} is not the folder of a study: it holds no {SPACE}")
    record = parse_yaml(read_config_text(file), str(file))
    config = read_written_config(folder / GIVEN)
    try:
        plan = Plan(
            config,
            from_record(config, record["space"]),
            int(record["seeds"]),
            _objective(record["objective"]),
            bool(record["prune"]),
            bool(record.get("halving", False)),
        )
        found = str(record["config"])
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(f"{file} is damaged: {error}") from error
    _check_digest(folder, found, config)
    return plan


def continue_plan(folder: Path, *, config: TrainConfig | None, params: Sequence[str], **choices: Any) -> Plan:
    """Read the plan of a study that continues; raise `ConfigError` if it is asked for something else now."""
    plan = read_plan(folder)
    if config is not None:
        _check_digest(folder, plan.config.digest(), config)
    for name, value in choices.items():
        if value is not None and value != getattr(plan, name):
            raise ConfigError(f"{folder} was begun with {name} {getattr(plan, name)}, not {value}: give a new folder")
    if params and search_space(plan.config, params) != plan.space:
        raise ConfigError(f"{folder} searches other settings than --param names (see {SPACE}): give a new folder")
    return plan


def _objective(text: Any) -> Objective:
    if text not in ("final", "area"):
        raise ValueError(f"objective must be final or area, got {text!r}")
    return text  # type: ignore[no-any-return]


def _check_digest(folder: Path, made_for: str, config: TrainConfig) -> None:
    now = config.digest()
    if made_for != now:
        raise ConfigError(
            f"{folder / JOURNAL} was made for another config (digest {made_for}, now {now}): give a new folder or the "
            "old config"
        )
