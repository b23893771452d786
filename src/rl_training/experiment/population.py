"""A population: runs that differ in their seeds and in some settings, with one folder.

runs/population__<algo>__<env>__<digest>/
  population.yaml   what was asked: base settings, seeds, varied settings, and which member has which
  population.json   what became of each member, and the step of its last checkpoint that all members have
  summary.jsonl     per evaluation: statistics over the members
  members/000/      an ordinary run folder per member
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, StrictInt

from rl_training.core.durable_files import read_text, write_atomic
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_settings, read_config_text, set_value
from rl_training.experiment.run_dir import CONFIG, create_run_dir, env_name, read_result

PLAN, STATES, SUMMARY, MEMBERS = "population.yaml", "population.json", "summary.jsonl", "members"
MAX_MEMBERS = 10_000
_MAX_PLAN_BYTES = 2**24

Way = Literal["stacked", "looped"]  # all members in one step, or one member after the other
Outcome = Literal["waiting", "running", "done", "diverged", "failed", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationConfig:
    """The settings of a population: those of all members, and how members differ."""

    base: TrainConfig
    seeds: tuple[int, ...]
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # such as "algo_kwargs.gamma": (0.98, 0.99)
    combine: Literal["zip", "product"] = "product"  # zip: the n-th seed has the n-th value of each setting
    run: Way | Literal["auto"] = "auto"  # auto: stacked on a GPU, where the algorithm can be

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds must be different numbers, at least one, got {list(self.seeds)}")
        for name, values in self.vary.items():
            if not values or len(set(map(repr, values))) < len(values):
                raise ConfigError(f"vary: {name} must have different values, at least one, got {list(values)}")
            if name == "seed":
                raise ConfigError("vary: seed is not varied; give seeds")
        if self.combine == "zip" and any(len(values) != len(self.seeds) for values in self.vary.values()):
            raise ConfigError(
                f"combine: zip needs as many values of each setting as seeds, {len(self.seeds)}, got "
                + ", ".join(f"{len(values)} of {name}" for name, values in self.vary.items())
            )
        if (count := len(self.differences())) > MAX_MEMBERS:
            raise ConfigError(f"a population has at most {MAX_MEMBERS:,} members, got {count:,}")
        self.members()  # its errors name the setting

    def differences(self) -> list[dict[str, Any]]:
        """Return what distinguishes each member: the values of the varied settings and the seed."""
        columns = [*self.vary.values(), self.seeds]
        rows = zip(*columns, strict=True) if self.combine == "zip" else itertools.product(*columns)
        return [dict(zip((*self.vary, "seed"), row, strict=True)) for row in rows]

    def members(self) -> list[TrainConfig]:
        """Return the settings of each member: complete, as those of a single run."""
        members = []
        for changes in self.differences():
            settings = self.base.model_dump()
            for name, value in changes.items():
                set_value(settings, name, value)
            try:
                member = TrainConfig(**settings)
            except ConfigError as error:
                raise ConfigError(f"vary: {error}") from None
            member._origin = self.base.origin
            members.append(member)
        return members

    def digest(self) -> str:
        """Return a hash of the population: the same call continues in the same folder."""
        asked = [self.base.digest(), self.seeds, sorted(self.vary.items()), self.combine, self.run]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:8]

    def folder(self) -> Path:
        name = f"population__{self.base.algo}__{env_name(self.base)}__{self.digest()}"
        return self.base.output_dir.absolute() / name


class MemberState(BaseModel):
    """What became of a member; `step`: of its last checkpoint that all members of its stack have."""

    model_config = ConfigDict(extra="forbid")

    state: Outcome = "waiting"
    step: StrictInt = 0
    reason: str = ""


class PopulationDir:
    """The files of a population."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.summary = path / SUMMARY

    def create(self, config: PopulationConfig, run: Way) -> None:
        """Write what was asked, and the folder of each member, where they do not exist yet."""
        asked = {
            "seeds": list(config.seeds),
            "vary": {name: list(values) for name, values in config.vary.items()},
            "combine": config.combine,
        }
        self.write_plan(config.members(), config.differences(), run=run, base=config.base, asked=asked)
        self.create_members(config.members())

    def write_plan(
        self,
        members: Sequence[TrainConfig],
        differences: Sequence[Mapping[str, Any]],
        *,
        run: Way,
        base: TrainConfig,
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        """Write population.yaml. `differences`: what distinguishes each member."""
        stack_of = {n: stack for stack, group in enumerate(group_by_structure(members)) for n in group}
        plan = {
            **(asked or {}),
            "run": run,
            "members": [
                {"folder": f"{number:03d}", "stack": stack_of[number], **row} for number, row in enumerate(differences)
            ],
            "base": base.model_dump(mode="json"),
        }
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / PLAN, yaml.safe_dump(plan, sort_keys=False))
        except OSError as error:
            raise ConfigError(f"output_dir: the population's folder {self.path} cannot be written: {error}") from None

    def create_members(self, members: Sequence[TrainConfig]) -> None:
        """Create the folder of each member; those that are there stay as they are."""
        for number, member in enumerate(members):
            folder = self.path / MEMBERS / f"{number:03d}"
            if not (folder / CONFIG).is_file():
                create_run_dir(member.resolved(), folder)

    def stacks(self) -> list[list[Path]] | None:
        """Return the folders of each stack, as was planned; None if members run one after the other.

        The plan decides, not the settings of the members: a start that was killed may have filled in some of them.
        """
        stacks: dict[Any, list[Path]] = {}
        for path, row in self.planned():
            stacks.setdefault(row.get("stack"), []).append(path)
        return list(stacks.values()) if self.way() == "stacked" else None

    def way(self) -> Way:
        """Return how the members run, as was planned."""
        way: Way = self._read_plan()["run"]
        return way

    def planned(self) -> list[tuple[Path, Mapping[str, Any]]]:
        """Return the folder of each member and what the plan says of it."""
        rows, folders = self._read_plan()["members"], {path.name: path for path in self.members()}
        if len(folders) != len(rows):
            raise CheckpointError(
                f"{self.path} has the folders of {len(folders)} of its {len(rows)} members; "
                "the command that created it completes them"
            )
        try:
            return [(folders[row["folder"]], row) for row in rows]
        except (LookupError, TypeError) as error:
            raise CheckpointError(f"{self.path / PLAN} is damaged: a member has no folder: {error}") from None

    def _read_plan(self) -> dict[str, Any]:
        file = self.path / PLAN
        plan = parse_settings(read_config_text(file, _MAX_PLAN_BYTES), str(file))
        if plan.get("run") not in ("stacked", "looped") or not isinstance(plan.get("members"), list):
            raise CheckpointError(f"{file} is damaged: it must have run, stacked or looped, and members")
        if not all(isinstance(row, dict) and isinstance(row.get("stack"), int | None) for row in plan["members"]):
            raise CheckpointError(f"{file} is damaged: a member must have a folder and the number of its stack")
        return plan

    def members(self) -> list[Path]:
        """Return the folders of the members, in their order."""
        return sorted(path for path in (self.path / MEMBERS).glob("*") if (path / CONFIG).is_file())

    def states(self) -> dict[str, MemberState]:
        """Return the state of each member by the name of its folder; a member with a result is done."""
        saved: Any = {}
        if (self.path / STATES).is_file():
            try:
                saved = {
                    name: MemberState.model_validate(state)
                    for name, state in json.loads(read_text(self.path / STATES))["members"].items()
                }
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise CheckpointError(f"{self.path / STATES} is damaged: {error}") from None
        states = {path.name: saved.get(path.name, MemberState()) for path in self.members()}
        for path in self.members():
            if (result := read_result(path)) is not None:
                done = {"state": "done", "step": result["step"], "reason": str(result.get("stop_reason", ""))}
                states[path.name] = MemberState.model_validate(done)
        return states

    def write_states(self, changes: Mapping[str, MemberState]) -> None:
        """Replace the states of some members, in one atomic step."""
        states = self.states() | dict(changes)
        record = {"members": {name: state.model_dump() for name, state in sorted(states.items())}}
        write_atomic(self.path / STATES, json.dumps(record, indent=1))


def is_population(path: Path) -> bool:
    return (path / PLAN).is_file() and (path / MEMBERS).is_dir()


def group_by_structure(configs: Sequence[TrainConfig]) -> list[list[int]]:
    """Return the numbers of the members that can be one stack: equal in all settings but those per member."""
    groups: dict[str, list[int]] = {}
    for number, config in enumerate(configs):
        values = config.resolved().model_dump(mode="json", exclude={"seed"})
        for name in config.spec.per_member:
            values["algo_kwargs"].pop(name, None)
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(number)
    return list(groups.values())
