"""The trials of a study: Optuna proposes their settings and keeps them in one append-only file.

One process writes the file: that which holds the lock of the study folder. A trial is added in one record, with all
its settings, so that a process that is killed leaves whole trials only. What is proposed for a trial depends on the
trials before it and on its number alone: a study that was killed and continued proposes the same.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.core.durable_files import open_file, open_log
from rl_training.core.extras import require
from rl_training.errors import ConfigError
from rl_training.studies.search_space import Space

if TYPE_CHECKING:
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial

_STUDY = "tune"
_STARTUP_TRIALS = 10  # drawn at random before the sampler learns from them
_PRUNER = {"n_startup_trials": 8, "n_min_trials": 4}
REFUSED = "refused"  # attribute of a trial whose settings do not fit together: the message
FAILED = "failed"  # attribute of a trial of which a run failed: the message


class TrialJournal:
    """The trials of one study, numbered from 0; trial 0 is the given config."""

    def __init__(self, file: Path, space: Space, *, warm_up_steps: int) -> None:
        """Open the file, or create it. `warm_up_steps`: steps of a run before which no trial is pruned."""
        optuna = require("optuna", extra="tune", what="rl-training tune")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        with _damage_reported(file):
            self._distributions = {dimension.name: dimension.distribution() for dimension in space}
            self._study = optuna.create_study(
                storage=_open_storage(file),
                study_name=_STUDY,
                direction="maximize",
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(),  # not used: see `propose`
                pruner=optuna.pruners.MedianPruner(**_PRUNER, n_warmup_steps=warm_up_steps),
            )
            others = [trial for trial in self.trials if trial.distributions != self._distributions]
        if others:
            raise ConfigError(f"{file} holds trials of other settings or ranges than now: give a new folder")

    @property
    def trials(self) -> "list[FrozenTrial]":
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials

    @property
    def running(self) -> "list[FrozenTrial]":
        return [trial for trial in self.trials if not trial.state.is_finished()]

    @property
    def begun(self) -> "list[FrozenTrial]":
        """The trials that were run: all but those with settings that do not fit together."""
        return [trial for trial in self.trials if REFUSED not in trial.user_attrs]

    @property
    def ranked(self) -> "list[FrozenTrial]":
        """The trials that ran to their end, best first."""
        from optuna.trial import TrialState

        complete = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return sorted(complete, key=lambda trial: -trial.values[0])

    def propose(self) -> dict[str, Any]:
        """Return the settings of the next trial, as the journal holds them."""
        import optuna

        number = len(self.trials)
        if number == 0:
            return {dimension.name: dimension.stored_given for dimension in self._space}
        seed = int(np.random.SeedSequence(number).generate_state(1)[0])  # the first draws of seeds 1, 2, 3 are alike
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS)
        copy = optuna.create_study(direction="maximize", sampler=sampler)
        copy.add_trials(self.trials)
        return copy.ask(self._distributions).params

    def begin(self, params: Mapping[str, Any]) -> "FrozenTrial":
        """Add a trial that is run from now on."""
        from optuna.trial import TrialState

        return self._add(params, TrialState.RUNNING)

    def refuse(self, params: Mapping[str, Any], message: str) -> None:
        """Add a trial that cannot be run."""
        from optuna.trial import TrialState

        self._add(params, TrialState.FAIL, **{REFUSED: message})

    def report(self, number: int, step: int, value: float) -> bool:
        """Record the value of a trial at a step; return whether the trial is to be pruned there."""
        from optuna.trial import Trial

        frozen = self.trials[number]
        if step not in frozen.intermediate_values:
            Trial(self._study, frozen._trial_id).report(value, step)
            frozen = self.trials[number]
        return frozen.last_step == step and self._study.pruner.prune(self._study, frozen)

    def complete(self, number: int, value: float) -> None:
        self._study.tell(number, value)

    def prune(self, number: int) -> None:
        from optuna.trial import TrialState

        self._study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, message: str) -> None:
        from optuna.trial import Trial, TrialState

        Trial(self._study, self.trials[number]._trial_id).set_user_attr(FAILED, message)
        self._study.tell(number, state=TrialState.FAIL)

    def _add(self, params: Mapping[str, Any], state: Any, **attributes: str) -> "FrozenTrial":
        from optuna.trial import create_trial

        self._study.add_trial(
            create_trial(
                state=state, params=dict(params), distributions=self._distributions, user_attrs=dict(attributes)
            )
        )
        return self.trials[-1]


def _open_storage(file: Path) -> "JournalStorage":
    """Open the file after what a killed process may have left: half a line, and Optuna's own lock."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file = file.absolute()  # Optuna's lock is a link to it
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
    with open_log(file) as log, open_file(file) as written:  # raises for a link: what it leads to is not changed
        os.truncate(log.fileno(), written.read().rfind(b"\n") + 1)
    return JournalStorage(JournalFileBackend(str(file)))


@contextmanager
def _damage_reported(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file} cannot be used: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise ConfigError(f"{file} is damaged: {type(error).__name__}: {error}") from error
