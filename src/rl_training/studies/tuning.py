"""Tune settings: run trials on several seeds, prune poor ones, and score the best again on fresh seeds.

Trials are ordinary run folders, which a pool of workers trains; workers know nothing of the study. One process
coordinates: it reads the evaluations of the runs and keeps the trials in a journal. All that it knows is on disk, so
that the same study continues after `kill -9` at any moment.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rl_training.datasets.metadata import ALLOW
from rl_training.errors import ConfigError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import CONFIG, RunInUseError, create_run_dir, locked
from rl_training.launching.pool import LaunchOptions, Pool, open_pool
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import find_runs
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.signals import signals_handled
from rl_training.studies.halving import HalvingSearch
from rl_training.studies.search_space import config_with
from rl_training.studies.study_files import trial_rows, write_best, write_study_report, write_table
from rl_training.studies.study_progress import StudyProgress
from rl_training.studies.trial_journal import FAILED, TrialJournal
from rl_training.studies.trial_values import final_value, shared_values
from rl_training.studies.tune_plan import JOURNAL, Plan
from rl_training.studies.verdict import Candidate, Verdict, decide

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FIRST_SEED, FIRST_FRESH_SEED, FRESH_SEEDS = 1_000, 2_000, 10
RESCORED = 3  # best trials that are run again, beside the given config
_MAX_REFUSED = 100  # in a row
_MAX_FAILED = 5  # trials, if there are no others
_WARM_UP = 4  # the part of a run before which no trial is pruned is one over this
_POLL_SECONDS = 0.1


@dataclass
class _RunningTrial:
    number: int
    runs: list[RunRecord]
    seen: object = None  # the sizes of its files when they were last read

    @property
    def folders(self) -> list[Path]:
        return [run.path for run in self.runs]


@dataclass
class Tuner:
    """The coordinator of a study: asks for trials, runs them, reports their evaluations and decides."""

    folder: Path
    plan: Plan
    pool: Pool
    jobs: int
    progress: StudyProgress
    stopped: Callable[[], bool] = lambda: False  # whether a signal has come
    _trials: dict[int, _RunningTrial] = field(default_factory=dict)
    # The runs that have not ended, and whether their end is awaited.
    _submitted: dict[Path, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = self.plan.config.total_timesteps
        self.journal = TrialJournal(self.folder / JOURNAL, self.plan.space, warm_up_steps=steps // _WARM_UP)

    # --- Trials ------------------------------------------------------------------------------------------------------

    def halving(self, launch: LaunchOptions) -> HalvingSearch:
        """Return the search in brackets, whose runs are trained in this process."""
        return HalvingSearch(
            folder=self.folder,
            plan=self.plan,
            journal=self.journal,
            progress=self.progress,
            options=RunOptions(
                show_progress=not launch.quiet,
                allow_entry_points=ALLOW in launch.flags,
                allow_code="--allow-code" in launch.flags,
            ),
            seeds=range(FIRST_SEED, FIRST_SEED + self.plan.seeds),
            begin=self._begin,
            config_of=self.config_of,
            stopped=self.stopped,
        )

    def search(self, trials: int, until: float = math.inf) -> bool:
        """Run trials until the study has `trials` of them; return whether a signal interrupted it.

        After the time `until` no more begin.
        """
        for frozen in self.journal.running:
            self._start(frozen)
        while not self.stopped():
            begun = len(self.journal.begun)
            wants_more = begun < trials and (time.monotonic() < until or begun == 0)
            if wants_more and len(self._submitted) < self.jobs:
                self._start(self._begin())
                continue
            if not (self._trials or wants_more):
                return False
            failures = self._wait()
            for trial in list(self._trials.values()):
                failed = next((folder for folder in trial.folders if folder in failures), None)
                if failed is None:
                    self._look_at(trial)
                else:
                    self._fail(trial, f"{failed.name}: {failures[failed]}")
        return True

    def _begin(self) -> "FrozenTrial":
        """Begin a new trial; settings that do not fit together are recorded, and others are asked for."""
        self._check_failures()
        message = ""
        for _ in range(_MAX_REFUSED):
            params = self.journal.propose()
            try:
                config_with(self.plan.config, self.plan.space, params)
            except ConfigError as error:
                message = str(error)
                self.journal.refuse(params, message)
            else:
                return self.journal.begin(params)
        raise ConfigError(f"{_MAX_REFUSED} proposals in a row were refused, the last one because {message}")

    def _start(self, trial: "FrozenTrial") -> None:
        seeds = range(FIRST_SEED, FIRST_SEED + self.plan.seeds)
        folders = self._make_runs("trials", trial, seeds)
        self._trials[trial.number] = _RunningTrial(trial.number, [RunRecord(folder) for folder in folders])
        self.progress.say(f"trial {trial.number} begins: {self._describe(trial)}")
        for folder in folders:
            self._submit(folder)

    def _look_at(self, trial: _RunningTrial) -> None:
        """Report the evaluations that all seeds have reached; end the trial if it is poor, or if all have finished.

        The steps are looked at in order, and the last one never prunes, so that the outcome does not depend on when
        the files are read.
        """
        files = [folder / name for folder in trial.folders for name in ("eval.jsonl", "result.json")]
        sizes = [file.stat().st_size if file.is_file() else -1 for file in files]
        if sizes == trial.seen:
            return
        trial.seen, runs = sizes, [run.read_again() for run in trial.runs]
        for step, value in shared_values(runs, self.plan.objective).items():
            if step >= self.plan.config.total_timesteps:
                break
            if self.journal.report(trial.number, step, value) and self.plan.prune:
                self.journal.prune(trial.number)
                self._end(trial, f"pruned at step {step:,} with {value:,.1f}")
                return
        if all(run.result is not None for run in runs):
            value = final_value(runs, self.plan.objective)
            if math.isnan(value):
                self._fail(trial, "it has no score")
                return
            self.journal.complete(trial.number, value)
            self._end(trial, f"{value:,.1f}")

    def _fail(self, trial: _RunningTrial, message: str) -> None:
        self.journal.fail(trial.number, message)
        self._end(trial, f"failed: {message}")

    def _end(self, trial: _RunningTrial, how: str) -> None:
        """Forget a trial that the journal holds as ended; those of its runs that are not finished save and stop."""
        del self._trials[trial.number]
        for folder in trial.folders:
            if folder in self._submitted:
                self._submitted[folder] = False
                if RunRecord(folder).result is None:  # else its process is about to end
                    self.pool.stop(folder)
        best = self.journal.ranked[:1]
        of_all = f"; best: {best[0].value:,.1f} of trial {best[0].number}" if best else ""
        self.progress.say(f"trial {trial.number} ends: {how}{of_all}")

    def _check_failures(self) -> None:
        """Raise `TrainingError` if none of the first trials could be run: the others would fail, too."""
        begun = self.journal.begun
        messages = [trial.user_attrs[FAILED] for trial in begun if FAILED in trial.user_attrs]
        if len(messages) == len(begun) >= _MAX_FAILED:
            raise TrainingError(f"all {len(begun)} trials failed; the last one: {messages[-1]}")

    def _describe(self, trial: "FrozenTrial") -> str:
        if trial.number == 0:
            return "the given config"
        settings = {each.name: each.setting(trial.params[each.name]) for each in self.plan.space}
        return ", ".join(f"{name.removeprefix('algo_kwargs.')}={value}" for name, value in settings.items())

    def config_of(self, trial: "FrozenTrial") -> TrainConfig:
        return config_with(self.plan.config, self.plan.space, trial.params)

    # --- Fresh seeds -------------------------------------------------------------------------------------------------

    def rescore(self) -> list[Candidate]:
        """Run the given config and the best trials on fresh seeds; the given config is the first of the result."""
        seeds = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + FRESH_SEEDS)
        chosen = self._chosen()
        folders = {trial.number: self._make_runs("rescore", trial, seeds) for trial in chosen}
        for of_one_seed in zip(*folders.values(), strict=True):
            for folder in of_one_seed:
                self._submit(folder)
        names = ", ".join(f"trial {trial.number}" for trial in chosen[1:])
        self.progress.say(f"on {FRESH_SEEDS} fresh seeds: the given config{', ' * bool(names)}{names}")
        failures: dict[Path, str] = {}
        while self._submitted and not self.stopped():
            failures |= self._wait()
        return [self._candidate(trial, folders[trial.number], failures) for trial in chosen]

    def _chosen(self) -> "list[FrozenTrial]":
        """Return the trial of the given config and the best others, each config once."""
        chosen = [self.journal.trials[0]]
        digests = {self.plan.config.digest()}
        for trial in self.journal.ranked:
            digest = self.config_of(trial).digest()
            if digest not in digests and len(chosen) <= RESCORED:
                digests.add(digest)
                chosen.append(trial)
        return chosen

    def _candidate(self, trial: "FrozenTrial", folders: Sequence[Path], failures: dict[Path, str]) -> Candidate:
        failure = next((f"{folder.name}: {failures[folder]}" for folder in folders if folder in failures), "")
        scores = [run.score for run in map(RunRecord, folders) if run.result is not None and run.score is not None]
        tuned = trial.values[0] if trial.state.name == "COMPLETE" else None
        return Candidate(trial.number, tuned, scores, failure)

    def write_files(self, candidates: Sequence[Candidate], verdict: Verdict | None) -> None:
        """Write the table of trials and, with a verdict, the best config and the report."""
        trials = self.journal.trials
        rows = trial_rows(trials, self.plan, candidates)
        write_table(self.folder, rows)
        if verdict is not None:
            how = (
                f"trials: {len(self.journal.begun)}; seeds of each: {self.plan.seeds} from {FIRST_SEED} on; "
                f"objective: {self.plan.objective}; fresh seeds: {FRESH_SEEDS} from {FIRST_FRESH_SEED} on"
            )
            scores = verdict.describe(self.plan.seeds)
            write_best(self.folder, self.config_of(trials[verdict.best.number]), [*scores, verdict.sentence, how])
            groups = {each.name: find_runs(self._part("rescore", each.number)) for each in candidates}
            write_study_report(self.folder, groups, rows, verdict.sentence, [*scores, how])

    # --- Runs --------------------------------------------------------------------------------------------------------

    def _make_runs(self, part: str, trial: "FrozenTrial", seeds: Sequence[int]) -> list[Path]:
        """Create the run folders of a trial; those that are there stay as they are."""
        config, folders = self.config_of(trial), []
        for seed in seeds:
            folder = self._part(part, trial.number) / f"seed{seed}"
            if not (folder / CONFIG).is_file():
                create_run_dir(config.updated(seed=seed).resolved(), folder)
            folders.append(folder)
        return folders

    def _part(self, part: str, number: int) -> Path:
        return self.folder / part / f"{number:04d}"

    def _submit(self, folder: Path) -> None:
        if RunRecord(folder).result is None:
            self._submitted[folder] = True
            self.pool.submit(folder)

    def _wait(self) -> dict[Path, str]:
        """Wait a moment; return the runs that have failed since, with their messages."""
        self.progress.show(self.pool.running())
        time.sleep(_POLL_SECONDS)
        failures = {}
        for ended in self.pool.ended():
            is_wanted = self._submitted.pop(ended.folder, False)
            if is_wanted and RunRecord(ended.folder).result is None:
                if ended.status == "interrupted":
                    self._submit(ended.folder)
                else:
                    failures[ended.folder] = ended.message or "it ended without a result"
        return failures


@dataclass(frozen=True)
class Outcome:
    """How a call of `tune` ended."""

    verdict: Verdict | None  # None: interrupted before the fresh seeds were run
    trials: int


def run_study(
    folder: Path,
    plan: Plan,
    launch: LaunchOptions,
    *,
    trials: int,
    hours: float = math.inf,
    make_pool: Callable[[LaunchOptions], Pool] | None = None,
) -> Outcome:
    """Run the study of a folder until it has `trials` trials, score the best on fresh seeds and write its files.

    The same call continues a study that was interrupted. After `hours` no more trials begin.
    """
    folder = folder.absolute()
    received: list[int] = []
    candidates: list[Candidate] = []
    with (
        _only_coordinator(folder),
        signals_handled(lambda number, frame: received.append(number)),
        StudyProgress(folder, Console(stderr=True, quiet=launch.quiet)) as progress,
        contextlib.closing((make_pool or open_pool)(launch)) as pool,
    ):
        tuner = Tuner(folder, plan, pool, launch.jobs, progress, stopped=lambda: bool(received))
        search = tuner.halving(launch).search if plan.halving else tuner.search
        interrupted = search(trials, time.monotonic() + 3_600.0 * hours)
        if not interrupted:
            candidates = tuner.rescore()
        interrupted = interrupted or bool(received)
        verdict = None if interrupted else decide(candidates)
        tuner.write_files([] if interrupted else candidates, verdict)
    if verdict is None and not interrupted:
        raise TrainingError(f"no config ran on all fresh seeds: {candidates[0].failure}")
    return Outcome(verdict, len(tuner.journal.begun))


@contextlib.contextmanager
def _only_coordinator(folder: Path) -> Iterator[None]:
    try:
        with locked(folder):
            yield
    except RunInUseError:
        raise ConfigError(f"{folder} is in use: another process tunes in it now") from None
