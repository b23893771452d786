"""`Run`: everything that changes during training, in one place, with its state."""

import json
import logging
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any

from numpy.typing import ArrayLike
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError
from torch import Tensor

from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces
from rl_training.core.state_checks import MAX_COUNT, load_algorithm
from rl_training.core.types import Algorithm, Memory, StateDict
from rl_training.datasets.metadata import metadata_to_text
from rl_training.envs.factory import EnvFactory
from rl_training.errors import CheckpointError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING, first_problem
from rl_training.experiment.run_dir import RunDir
from rl_training.runtime.collector import Collector, Episode
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.predicting import Observations, make_player

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback

RECENT_EPISODES = 100
_LOG_NAME = re.compile(r"[\w.-]+(/[\w.-]+)+", re.ASCII)
_OWN_GROUPS = {"train", "eval", "speed"}  # of TensorBoard

log = logging.getLogger("rl_training")


def _checked_metric(value: Tensor) -> Tensor:
    if value.ndim or not value.is_floating_point():
        raise ValueError(f"a metric must be a single number, got shape {tuple(value.shape)} of {value.dtype}")
    return value


class SavedValues(BaseModel):
    """The plain values in the part of a checkpoint for further training, as they must be."""

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True, allow_inf_nan=False)

    last_metrics: dict[str, Annotated[Tensor, AfterValidator(_checked_metric)]] | None = None
    best_return: StrictFloat | StrictInt | None
    num_episodes: StrictInt = Field(ge=0, lt=MAX_COUNT)
    recent: list[tuple[StrictInt, StrictInt, StrictInt, StrictInt, StrictFloat, StrictInt]]
    logged: list[tuple[StrictStr, StrictFloat]] | None = None
    callbacks: list[tuple[StrictStr, dict[str, Any]]] | None = None
    log_positions: dict[str, Annotated[StrictInt, Field(ge=0)]]

    @classmethod
    def read(cls, training: Mapping[str, Any]) -> "SavedValues":
        try:
            return cls.model_validate(training)
        except ValidationError as error:
            raise CheckpointError(f"a saved value does not fit: {first_problem(error)}") from None


@dataclass(kw_only=True)
class Run:
    """One training run. Callbacks read it, and end it by setting `stop_reason`."""

    config: TrainConfig
    streams: Streams
    folder: RunDir
    env_factory: EnvFactory | None  # None: offline without an environment to evaluate in
    algorithm: Algorithm
    memory: Memory
    collector: Collector | DeviceCollector | NoCollector
    spaces: Spaces
    step: int = 0  # env steps taken; gradient steps if offline
    previous_step: int = 0  # before the latest round of steps
    gradient_step: int = 0
    learned: bool = True  # whether the updates that are due after `step` were made
    mid_step: bool = False  # True during the updates of a step, when the state belongs to no step
    stop_reason: str = ""
    interrupted: bool = False  # by a signal, before the end of the run
    signal: Signals | None = None  # the signal that asked the run to end
    best_return: float | None = None
    best_step: int | None = None  # of the evaluation with this return
    last_metrics: dict[str, Tensor] = field(default_factory=dict)
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    num_episodes: int = 0
    callbacks: Sequence["Callback"] = ()  # those of the user
    logged: dict[str, float] = field(default_factory=dict)  # by `log`, since the latest record of metrics
    _wall_before: float = 0.0
    _wall_start: float = field(default_factory=time.perf_counter)

    @property
    def unit(self) -> str:
        """What `step` counts, for messages."""
        return "gradient step" if self.config.spec.loop == "offline" else "env step"

    @property
    def wall_s(self) -> float:
        """Seconds of training, including those before a resume."""
        return self._wall_before + time.perf_counter() - self._wall_start

    def crossed(self, interval: int) -> bool:
        """Return whether the latest round of steps reached or passed a multiple of `interval` (0: never)."""
        return interval > 0 and self.step // interval > self.previous_step // interval

    def log(self, name: str, value: float) -> None:
        """Add a number to the next record of metrics.jsonl and TensorBoard; a later value replaces it until then.

        `name`: with a group, such as "my/accuracy", so that it differs from the names of the library.
        """
        if not _LOG_NAME.fullmatch(name):
            raise ValueError(f"run.log: the name must have a group, such as 'my/accuracy', got {name!r}")
        if name.partition("/")[0] in _OWN_GROUPS:
            raise ValueError(f"run.log: {name!r} is in a group of the library; use another, such as 'my/accuracy'")
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"run.log({name!r}): the value must be a finite number, got {number}")
        self.logged[name] = number

    def predict(self, obs: Observations, action_mask: ArrayLike | None = None) -> Any:
        """Return the action of the current policy, without exploration, as `agent.predict` does."""
        return make_player(self.algorithm, self.spaces, self.config.spec)(obs, action_mask)

    def counters(self) -> dict[str, Any]:
        spaces = {"spaces": metadata_to_text(self.spaces, "")} if self.env_factory is None else {}
        return {
            **spaces,
            "step": self.step,
            "previous_step": self.previous_step,
            "gradient_step": self.gradient_step,
            "learned": self.learned,
            "wall_s": self.wall_s,
            "replayable": self.collector.replayable,
            "best_step": self.best_step,
            "stop_reason": "" if self.interrupted else self.stop_reason,
        }

    def parts(self) -> dict[str, StateDict]:
        """Return the parts of a checkpoint: for acting, for further training, and the memory."""
        training = {
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "last_metrics": self.last_metrics,
            "num_episodes": self.num_episodes,
            "recent": [[e.step, e.env, e.episode, e.seed, e.ret, e.length] for e in self.recent],
            **self.evaluation_state(),
        }
        return {POLICY: self.algorithm.policy_state_dict(), TRAINING: training, MEMORY: self.memory.state_dict()}

    def evaluation_state(self) -> StateDict:
        """Return the values of the part for further training that an evaluation changes; syncs the logs to disk."""
        return {
            "best_return": self.best_return,
            "log_positions": self.folder.positions(),
            "logged": [[name, value] for name, value in self.logged.items()],
            "callbacks": self.callback_states(),
        }

    def callback_states(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the states of the callbacks that have one; raise `CheckpointError` for one that cannot be saved."""
        states = [(_name(callback), state) for callback in self.callbacks if (state := callback.state_dict())]
        for name, state in states:
            try:
                as_loaded = json.loads(json.dumps(state, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise CheckpointError(f"the state of {name} cannot be saved: {error}, in {state}") from None
            if as_loaded != state:
                raise CheckpointError(f"the state of {name} would be loaded as {as_loaded}, but is {state}")
        return states

    def load(self, counters: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the state of a checkpoint; the log files were truncated when the folder was opened."""
        training = parts[TRAINING]
        values = SavedValues.read(training)
        load_algorithm(self.algorithm, parts[POLICY], training["algorithm"])
        self.memory.load_state_dict(parts[MEMORY])
        self.collector.load_state_dict(training["collector"])
        self.last_metrics = dict(values.last_metrics or {})
        self.best_return = values.best_return
        self.num_episodes = values.num_episodes
        self.recent.extend(Episode(*episode) for episode in values.recent)
        self.logged = dict(values.logged or [])
        self._load_callbacks(values.callbacks or [])
        self.step = int(counters["step"])
        self.previous_step = int(counters.get("previous_step", self.step))  # up to 0.2.0 it was not saved
        self.gradient_step = int(counters["gradient_step"])
        self.learned = bool(counters.get("learned", True))
        self.best_step = counters.get("best_step")
        self._wall_before = float(counters["wall_s"])
        self._wall_start = time.perf_counter()

    def _load_callbacks(self, saved: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Load the states of the callbacks; those of one class are matched in their order."""
        states: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for name, state in saved:
            states[name].append(state)
        for callback in self.callbacks:
            if states[_name(callback)]:
                callback.load_state_dict(states[_name(callback)].pop(0))
        for name in (name for name, left in states.items() if left):
            log.warning("the run had a callback %s, whose state is saved, but continues without it", name)


def _name(callback: "Callback") -> str:
    return type(callback).__qualname__
