"""Train a population: many seeds and values of settings, in one folder, stacked or one after the other.

The same call after an interruption continues: members that have ended are left alone, the others resumed.
"""

import copy
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rl_training.core.durable_files import write_atomic
from rl_training.errors import ConfigError, TrainingError, UserError, check_argument
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.population import (
    MemberState,
    PopulationConfig,
    PopulationDir,
    Way,
    is_population,
)
from rl_training.experiment.registry import registry
from rl_training.experiment.run_dir import RunInUseError, mean_score, read_result, read_run_config
from rl_training.results.population_summary import write_summary
from rl_training.results.statistics import Summary, summarize
from rl_training.runtime.setup import RunOptions, resolve_device
from rl_training.runtime.stacked_runs import train_stack
from rl_training.runtime.stopping import PauseFrom
from rl_training.runtime.trainer import resume

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True)
class PopulationResult:
    """How a population ended; members are named by their folders."""

    folder: Path
    states: dict[str, MemberState]
    scores: dict[str, float]  # mean return of the final evaluation of each finished member; offline there may be none
    interrupted: bool
    wall_s: float  # of this call

    @property
    def summary(self) -> Summary | None:
        return summarize(list(self.scores.values())) if self.scores else None


def train_population(config: PopulationConfig, options: RunOptions | None = None) -> PopulationResult:
    """Train all members of a population, or those that have not ended yet, in the folder that its settings name."""
    check_argument(
        config,
        PopulationConfig,
        "train_population",
        path="PopulationConfig(base=load_config({}), seeds=(0, 1, 2))",
        other="PopulationConfig(base=config, seeds=(0, 1, 2))",
    )
    population = PopulationDir(config.folder())
    run = _way_of(config, population)
    if run == "stacked":  # refused before anything is written
        _check_stackable(config.base)
    population.create(config, run)
    return resume_population(population.path, options)


def resume_population(path: Path, options: RunOptions | None = None) -> PopulationResult:
    """Continue a population: each member from where it was saved, those of a stack all from one step."""
    if not is_population(path):
        raise ConfigError(f"{path} is not the folder of a population: it holds no population.yaml")
    options, population, started = options or RunOptions(), PopulationDir(path), time.perf_counter()
    stacks, folders = population.stacks(), population.members()
    if stacks is not None:
        for folder in folders:
            _check_stackable(read_run_config(folder))
        interrupted = _run_stacks(population, stacks, options)
    else:
        interrupted = _run_in_turn(population, folders, options)
    population.write_states({})
    write_summary(population)
    results = {folder.name: result for folder in folders if (result := read_result(folder)) is not None}
    scores = {name: mean_score(result) for name, result in results.items() if result["eval"]}
    outcome = PopulationResult(path, population.states(), scores, interrupted, time.perf_counter() - started)
    if outcome.summary is not None:
        write_atomic(
            path / "summary.json", json.dumps({"scores": scores, "summary": asdict(outcome.summary)}, indent=1)
        )
    return outcome


def train_members(
    population: PopulationDir,
    folders: Sequence[Path],
    options: RunOptions,
    *,
    until: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Train those of these members that have not ended; return whether a signal interrupted them.

    `until`: they are saved and wait at the first evaluation from this step on. `stopped`: whether a signal came that no
    member has noticed. A member that cannot be trained fails alone, unless it is part of a stack.
    """
    stacks, wanted = population.stacks(), set(folders)
    if stacks is None:
        parts = [[folder] for folder in folders]
    else:
        parts = [chosen for stack in stacks if (chosen := [path for path in stack if path in wanted])]
    for part in parts:
        if stacks is None:
            interrupted = _run_in_turn(population, part, options, until, fails_alone=True)
        else:
            interrupted = _run_stacks(population, [part], options, until)
        if interrupted or stopped():
            return True
    population.write_states({})
    return False


def is_stackable(config: TrainConfig) -> bool:
    """Return whether members with these settings can be trained as a stack."""
    return config.spec.stackable and (config.spec.loop != "on_policy" or config.execution_backend == "tensor")


def best_way(config: TrainConfig) -> Way:
    """Return how members with these settings are best trained: as a stack on a GPU, if they can be stacked."""
    return "stacked" if is_stackable(config) and resolve_device(config.device).type == "cuda" else "looped"


def _way_of(config: PopulationConfig, population: PopulationDir) -> Way:
    """Return how the members run: as was asked or, with `auto`, as they began and else in the best way."""
    if config.run != "auto":
        return config.run
    return population.way() if is_population(population.path) else best_way(config.base)


def _check_stackable(config: TrainConfig) -> None:
    if config.spec.stackable and not is_stackable(config):
        raise ConfigError(
            f"stacked members of {config.algo} need tensor environments: set execution_backend: tensor "
            "(docs/tensor_environments.md); without --stacked its members run one after the other"
        )
    if not config.spec.stackable:
        able = ", ".join(sorted(name for name, spec in registry().items() if spec.stackable))
        raise ConfigError(
            f"{config.algo} cannot be stacked, only {able}; without --stacked its members run one after the other"
        )


def _run_stacks(
    population: PopulationDir, stacks: Sequence[Sequence[Path]], options: RunOptions, until: int | None = None
) -> bool:
    """Train one stack after the other; return whether a signal interrupted them."""
    states = population.states()
    if len(stacks) > 1:
        log.info("%d stacks, one after the other: members differ in settings that all of a stack share", len(stacks))
    for stack in stacks:
        left = [folder for folder in stack if states[folder.name].state in ("waiting", "running")]
        if left and train_stack(population, left, options, until=until):
            return True
    return False


def _run_in_turn(
    population: PopulationDir,
    folders: Sequence[Path],
    options: RunOptions,
    until: int | None = None,
    *,
    fails_alone: bool = False,
) -> bool:
    """Train one member after the other, each as a single run; return whether a signal interrupted them.

    `fails_alone`: an error of the settings or the environment of a member ends it, not all.
    """
    states = population.states()
    for folder in folders:
        if states[folder.name].state not in ("waiting", "running"):
            continue
        step = states[folder.name].step
        population.write_states({folder.name: MemberState(state="running", step=step)})
        pause = [] if until is None else [PauseFrom(until)]
        own = replace(options, callbacks=[*copy.deepcopy(options.callbacks), *pause])
        try:
            result = resume(folder, own)
            write_summary(population)
            if result.interrupted and result.signal is not None:
                return True
            if result.interrupted:  # it waits for the next rung
                population.write_states({folder.name: MemberState(state="running", step=result.step)})
        except UserError as error:
            diverged = isinstance(error, TrainingError)
            if isinstance(error, RunInUseError) or not (diverged or fails_alone):
                raise
            log.warning("member %s ends: %s", folder.name, error)
            state = MemberState(state="diverged" if diverged else "failed", step=step, reason=str(error))
            population.write_states({folder.name: state})
    return False
