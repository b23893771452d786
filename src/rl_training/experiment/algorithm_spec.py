"""What the library knows about an algorithm: one row of the registry.

Importing this module imports neither torch nor gymnasium: builders are named as "module:function" and resolved
when a run starts.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rl_training.core.kinds import ActionKind, ObservationKind
from rl_training.errors import ConfigError
from rl_training.hparams.base import HParams

if TYPE_CHECKING:
    from rl_training.core.setup import Setup
    from rl_training.core.types import Algorithm, GreedyPolicy, Memory
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.run import Run
    from rl_training.runtime.setup import PreparedRun, RunOptions

ACTOR_CRITIC_UPDATES_TO_COMPILE = 5_000  # SAC with the defaults: 6.6 ms instead of 11.4; offline updates are as large
ALL_OBSERVATIONS: frozenset[ObservationKind] = frozenset({"vector", "image", "discrete", "dict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec:
    """All that the library knows about an algorithm."""

    name: str
    class_name: str
    summary: str
    paper: str
    family: str = ""  # the algorithm whose `train_<algo>` also trains this one; empty: only its own does
    loop: Literal["off_policy", "on_policy", "offline"]
    actions: frozenset[ActionKind]
    observations: frozenset[ObservationKind]
    hparams: type[HParams]
    action_masks: bool = False  # whether it keeps to the actions that an env's masks allow
    stochastic: bool = False  # whether its policy is a distribution from which actions can be sampled
    build: str  # "module:function", Setup -> Algorithm
    memory: str  # "module:function", Setup -> Memory
    updates_until: Callable[
        [Any, int], int
    ]  # (hparams, step) -> updates owed since the run began (hparams/schedules.py)
    updates_at_once: bool = False  # whether one call of `update` makes all the updates that are due
    # Compiling takes 10 to 20 s once; an update of small networks then takes 0.2 ms instead of 1.2 (2-core EPYC, DQN
    # with 120x84 units, batch 128), so that the second run of this length is faster for it, if not the first.
    min_updates_to_compile: int = 10_000
    device_loop: bool = False  # whether it can learn on the device from tensor environments (`on_device`)
    # Whether the members of a population can be trained as one stack; on-policy, with tensor environments only.
    stackable: bool = False
    # Settings that may differ between the members of a stack, where the step reads them from its state
    # (learners/member_settings.py).
    per_member: frozenset[str] = frozenset()
    intervals: tuple[str, ...] = ()  # settings: steps between what an algorithm's callbacks do; offline, of gradients
    begin: str | None = None  # "module:function", (PreparedRun, RunOptions): prepares a new run before its first step
    callbacks: str | None = None  # "module:function", Run -> callbacks that its runs need in addition to the loop
    policy_module: str | None = None  # "module:function", Algorithm -> GreedyPolicy; None: it cannot be exported
    reference_config: str

    @property
    def entry_point(self) -> str:
        return f"train_{self.name}"

    @property
    def class_doc(self) -> str:
        """The docstring of the algorithm's class in the API: what it is, the paper, an example."""
        return f"""{self.summary[:1].upper()}{self.summary[1:]}.

{self.paper}.

Example:

    agent = {self.class_name}("configs/{self.reference_config}")
    agent.learn()
    agent.evaluate()
"""

    @property
    def entry_point_doc(self) -> str:
        """The docstring of the algorithm's `train_<algo>`."""
        family = " or another algorithm of its family" if self.family == self.name else ""
        return f"Train {self.class_name}{family} from a config, in a new run folder."

    def trains(self, other: "AlgorithmSpec") -> bool:
        """Return whether this row's entry point trains `other`: itself or a member of its family."""
        return self.name in (other.name, other.family)

    def build_algorithm(self, setup: "Setup[Any]") -> "Algorithm":
        return _resolve(self.build)(setup)  # type: ignore[no-any-return]

    def build_memory(self, setup: "Setup[Any]") -> "Memory":
        return _resolve(self.memory)(setup)  # type: ignore[no-any-return]

    def begin_run(self, prepared: "PreparedRun", options: "RunOptions") -> None:
        if self.begin:
            _resolve(self.begin)(prepared, options)

    def build_policy_module(self, algorithm: "Algorithm") -> "GreedyPolicy":
        """Return the policy without exploration as a module that shares the parameters of the algorithm."""
        if self.policy_module is None:
            raise ConfigError(
                f"{self.name} cannot be exported: its row of the registry names no policy_module (docs/extending.md)"
            )
        return _resolve(self.policy_module)(algorithm)  # type: ignore[no-any-return]

    def build_callbacks(self, run: "Run") -> "list[Callback]":
        return _resolve(self.callbacks)(run) if self.callbacks else []


def _resolve(reference: str) -> Callable[..., Any]:
    module, _, attribute = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function
