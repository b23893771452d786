"""One row per algorithm; CLI, API, validation, schema, docs and conformance tests are derived from the rows.

Importing this module imports neither torch nor gymnasium: builders are named as "module:function" and resolved
when a run starts.
"""

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from rl_training.errors import ConfigError
from rl_training.hparams.base import HParams
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.ppo import PPOHParams

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm, Memory, Setup

ENTRY_POINT_GROUP = "rl_training.algorithms"

ActionKind = Literal["discrete", "box", "multidiscrete", "multibinary"]
ObservationKind = Literal["vector", "image", "discrete", "dict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec:
    """All that the library knows about an algorithm."""

    name: str
    class_name: str
    summary: str
    paper: str
    loop: Literal["off_policy", "on_policy", "offline"]
    actions: frozenset[ActionKind]
    observations: frozenset[ObservationKind]
    hparams: type[HParams]
    action_masks: bool = False  # whether it keeps to the actions that an env's masks allow
    build: str  # "module:function", Setup -> Algorithm
    memory: str  # "module:function", Setup -> Memory
    reference_config: str

    def build_algorithm(self, setup: "Setup[Any]") -> "Algorithm":
        return _resolve(self.build)(setup)  # type: ignore[no-any-return]

    def build_memory(self, setup: "Setup[Any]") -> "Memory":
        return _resolve(self.memory)(setup)  # type: ignore[no-any-return]


def _resolve(reference: str) -> Callable[..., Any]:
    module, _, attribute = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


_ALL_OBSERVATIONS: frozenset[ObservationKind] = frozenset({"vector", "image", "discrete", "dict"})

_ROWS = (
    AlgorithmSpec(
        name="dqn",
        class_name="DQN",
        summary="deep Q-learning with replay and a target network",
        paper="Mnih et al. 2015, Human-level control through deep reinforcement learning",
        loop="off_policy",
        actions=frozenset({"discrete"}),
        observations=_ALL_OBSERVATIONS,
        hparams=DQNHParams,
        build="rl_training.algorithms.dqn:build_dqn",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        reference_config="dqn/cartpole.yaml",
    ),
    AlgorithmSpec(
        name="ppo",
        class_name="PPO",
        summary="proximal policy optimization: clipped policy gradient on rollouts",
        paper="Schulman et al. 2017, Proximal policy optimization algorithms",
        loop="on_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=_ALL_OBSERVATIONS,
        hparams=PPOHParams,
        action_masks=True,
        build="rl_training.algorithms.ppo:build_ppo",
        memory="rl_training.data.rollout_buffer:build_rollout_buffer",
        reference_config="ppo/cartpole.yaml",
    ),
)


@cache
def registry() -> dict[str, AlgorithmSpec]:
    """Give every row by name: ours, then those of installed packages (entry points `rl_training.algorithms`)."""
    rows = {spec.name: spec for spec in _ROWS}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            spec = entry_point.load()
        except Exception as error:  # a package of someone else's: whatever it raises
            raise ConfigError(f"entry point {entry_point.value!r} cannot be loaded: {error}") from error
        if not isinstance(spec, AlgorithmSpec):
            raise ConfigError(
                f"entry point {entry_point.name!r} of group {ENTRY_POINT_GROUP!r} must be an AlgorithmSpec, "
                f"got {type(spec).__name__}"
            )
        if spec.name in rows:
            raise ConfigError(f"entry point {entry_point.value!r}: an algorithm named {spec.name!r} exists already")
        if spec.class_name in {row.class_name for row in rows.values()}:
            raise ConfigError(
                f"entry point {entry_point.value!r}: an algorithm with the class {spec.class_name} exists already"
            )
        rows[spec.name] = spec
    return rows


def find_spec(name: str) -> AlgorithmSpec:
    rows = registry()
    if name not in rows:
        close = difflib.get_close_matches(name, rows, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(rows))}"
        raise ConfigError(f"algo: unknown algorithm {name!r}; {hint}")
    return rows[name]
