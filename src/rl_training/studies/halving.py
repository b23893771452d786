"""Successive halving: all trials of a bracket are trained to a rung, the worse half is dropped, the rest goes on.

The runs of a bracket are one population (`brackets/000`), trained in this process: stacked on a GPU where the algorithm
can be, else one after the other, with the same decisions. A decision follows from the values in the journal alone, so
that a study that was killed at any moment makes the same ones.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.core.counted import counted
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.population import PLAN, MemberState, PopulationDir, Way, group_by_structure
from rl_training.launching.populations import best_way, train_members
from rl_training.results.run_record import RunRecord
from rl_training.runtime.setup import RunOptions
from rl_training.studies.study_progress import StudyProgress
from rl_training.studies.trial_journal import FAILED, TrialJournal
from rl_training.studies.trial_values import final_value, value_from
from rl_training.studies.tune_plan import Plan, rung_steps

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BRACKETS = "brackets"
KEEP = 0.5  # the part of the trials that goes on
_TRIAL_FAILED = "another run of its trial failed"


def steps_of_search(plan: Plan, trials: int) -> int:
    """Return the most steps that the trials of a study take with one seed; with halving, in one bracket."""
    rungs = rung_steps(plan.config) if plan.halving else []
    left, before, steps = trials, 0, 0
    for rung in (*rungs, plan.config.total_timesteps):
        steps += left * (rung - before)
        left, before = math.ceil(KEEP * left), rung
    return steps


def way_of_trials(config: TrainConfig) -> Way:
    """Return how the members of a bracket run."""
    if config.spec.loop == "off_policy" and config.execution_backend != "tensor":
        return "looped"  # the replay buffers of all trials may be more than the host has memory for
    return best_way(config)


def losers(values: dict[int, float]) -> list[int]:
    """Return the trials that are dropped, by their values: the worse half, of equal ones the later."""
    best_first = sorted(values, key=lambda number: (-values[number], number))
    return sorted(best_first[math.ceil(KEEP * len(values)) :])


@dataclass(frozen=True)
class Bracket:
    """Trials that are compared with each other, and the population of their runs."""

    population: PopulationDir
    numbers: list[int]  # of the trials
    folders: dict[int, list[Path]]  # of the runs of each trial

    @classmethod
    def read(cls, path: Path) -> "Bracket":
        population = PopulationDir(path)
        folders: dict[int, list[Path]] = {}
        for folder, row in population.planned():
            folders.setdefault(int(row["trial"]), []).append(folder)
        return cls(population, list(folders), folders)

    def drop(self, number: int, reason: str) -> None:
        """Mark the runs of a trial that have not ended as dropped, in one atomic step."""
        states = self.population.states()
        left = {folder.name: states[folder.name] for folder in self.folders[number]}
        changes = {
            name: MemberState(state="dropped", step=state.step, reason=reason)
            for name, state in left.items()
            if state.state in ("waiting", "running")
        }
        if changes:
            self.population.write_states(changes)


@dataclass
class HalvingSearch:
    """Runs the trials of a study in brackets."""

    folder: Path  # of the study
    plan: Plan
    journal: TrialJournal
    progress: StudyProgress
    options: RunOptions
    seeds: Sequence[int]  # of the runs of a trial
    begin: Callable[[], "FrozenTrial"]  # adds a trial to the journal
    config_of: Callable[["FrozenTrial"], TrainConfig]
    stopped: Callable[[], bool] = lambda: False

    def search(self, trials: int, until: float = math.inf) -> bool:
        """Run brackets until the study has `trials` trials; return whether a signal interrupted it.

        After the time `until` no bracket begins.
        """
        paths = sorted(path for path in (self.folder / BRACKETS).glob("*") if (path / PLAN).is_file())
        brackets = [Bracket.read(path) for path in paths]
        if any(self._run(bracket) for bracket in brackets):
            return True
        planned = {number for bracket in brackets for number in bracket.numbers}
        is_late = time.monotonic() >= until and bool(self.journal.begun)
        while len(self.journal.begun) < trials and not is_late and not self.stopped():
            self.begin()
        new = [trial for trial in self.journal.running if trial.number not in planned]
        return self.stopped() or (bool(new) and self._run(self._plan(len(brackets), new)))

    def _plan(self, number: int, trials: "Sequence[FrozenTrial]") -> Bracket:
        """Write the population of a new bracket: each trial with each seed."""
        path = self.folder / BRACKETS / f"{number:03d}"
        configs, rows = [], []
        for trial in trials:
            for seed in self.seeds:
                configs.append(self.config_of(trial).updated(seed=seed))
                rows.append({"trial": trial.number, "seed": seed})
        run = way_of_trials(configs[0])
        population = PopulationDir(path)
        population.create_members(configs)
        population.write_plan(configs, rows, run=run, base=self.plan.config)  # last: now it is a bracket
        stacks = f" in {counted(len(group_by_structure(configs)), 'stack')}" if run == "stacked" else ""
        self.progress.say(f"bracket {number}: {counted(len(trials), 'trial')}, {counted(len(configs), 'run')}{stacks}")
        return Bracket.read(path)

    def _run(self, bracket: Bracket) -> bool:
        """Train the trials of a bracket that are left, rung by rung; return whether a signal interrupted it."""
        for rung in rung_steps(self.plan.config):
            if self._train(bracket, rung):
                return True
            self._compare(bracket, rung)
        if self._train(bracket, None):
            return True
        for number in self._left(bracket):
            value = final_value([RunRecord(folder) for folder in bracket.folders[number]], self.plan.objective)
            if math.isnan(value):
                self._fail(bracket, number, "it has no score")
            else:
                self.journal.complete(number, value)
                self.progress.say(f"trial {number} ends: {value:,.1f}")
        return False

    def _left(self, bracket: Bracket) -> list[int]:
        return [number for number in bracket.numbers if not self.journal.trials[number].state.is_finished()]

    def _train(self, bracket: Bracket, until: int | None) -> bool:
        """Train the trials that are left to a rung, or to their end; return whether a signal interrupted it."""
        for number in bracket.numbers:
            if FAILED in self.journal.trials[number].user_attrs:
                bracket.drop(number, _TRIAL_FAILED)
        left = self._left(bracket)
        if until is not None:
            left = [number for number in left if until not in self.journal.trials[number].intermediate_values]
        wanted = [folder for number in left for folder in bracket.folders[number]]
        if train_members(bracket.population, wanted, self.options, until=until, stopped=self.stopped):
            return True
        states = bracket.population.states()
        for number in left:
            folders = bracket.folders[number]
            failed = [folder for folder in folders if states[folder.name].state in ("diverged", "failed")]
            if failed:
                self._fail(bracket, number, f"{failed[0].name}: {states[failed[0].name].reason}")
        return False

    def _compare(self, bracket: Bracket, rung: int) -> None:
        """Report the values at a rung and drop the worse half of the trials that reached it."""
        for number in self._left(bracket):
            if rung not in self.journal.trials[number].intermediate_values:
                runs = [RunRecord(folder) for folder in bracket.folders[number]]
                self.journal.report(number, rung, value_from(runs, rung, self.plan.objective))
        reached = {number: self.journal.trials[number].intermediate_values for number in bracket.numbers}
        values = {number: found[rung] for number, found in reached.items() if rung in found}
        dropped, left = losers(values), self._left(bracket)
        for number in dropped:
            if number in left:
                self.journal.prune(number)
            value = f"{values[number]:,.1f} at step {rung:,}"
            bracket.drop(number, f"its value, {value}, is in the worse half of {len(values)} trials")
        if set(dropped) & set(left):
            best = max(values, key=lambda number: (values[number], -number))
            self.progress.say(
                f"step {rung:,}: {len(values) - len(dropped)} of {len(values)} trials go on; best: "
                f"{values[best]:,.1f} of trial {best}"
            )

    def _fail(self, bracket: Bracket, number: int, message: str) -> None:
        self.journal.fail(number, message)
        bracket.drop(number, _TRIAL_FAILED)
        self.progress.say(f"trial {number} ends: failed: {message}")
