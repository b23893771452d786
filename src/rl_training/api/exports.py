"""What `from rl_training import ...` offers: a few names from the table below, and those of the registry's rows.

Every algorithm has a class, `rl_training.DQN`, and an entry point, `rl_training.train_dqn`. Nothing is imported until a
name is asked for, so that `rl-training --help` does not import torch.
"""

import difflib
import importlib
from typing import Any

from rl_training.experiment.registry import registry

CLASSES, ENTRY_POINTS = "rl_training.api.algorithms", "rl_training.runtime.entry_points"

# Names by the module that defines them.
MODULES = {
    CLASSES: ("ManagedAlgorithm",),
    "rl_training.data.recurrent_replay_buffer": ("RecurrentReplayBuffer",),
    "rl_training.data.replay_buffer": ("ReplayBuffer",),
    "rl_training.data.rollout_buffer": ("RolloutBuffer",),
    "rl_training.datasets.transition_dataset": ("TransitionDataset",),
    "rl_training.experiment.config": ("TrainConfig",),
    "rl_training.experiment.config_files": ("load_config",),
    "rl_training.experiment.population": ("PopulationConfig",),
    "rl_training.launching.populations": ("PopulationResult", "resume_population", "train_population"),
    "rl_training.runtime.callbacks": ("Callback",),
    "rl_training.runtime.dataset_loading": ("load_transition_dataset",),
    "rl_training.runtime.evaluation": ("EvalEpisode",),
    "rl_training.runtime.result": ("TrainResult",),
    "rl_training.runtime.run": ("Run",),
    "rl_training.runtime.setup": ("RunOptions",),
    "rl_training.runtime.stopping": ("EarlyStopping", "StopOnPlateau"),
    "rl_training.runtime.trainer": ("resume", "train"),
}


def homes() -> dict[str, str]:
    """Return the module of every public name."""
    rows = registry().values()
    return {
        **{row.class_name: CLASSES for row in rows},
        **{row.entry_point: ENTRY_POINTS for row in rows},
        **{name: module for module, names in MODULES.items() for name in names},
    }


def load_name(name: str) -> Any:
    """Import a public name; `AttributeError` for another one suggests the closest."""
    found = {} if name.startswith("_") else homes()
    if name in found:
        return getattr(importlib.import_module(found[name]), name)
    close = difflib.get_close_matches(name, found, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module 'rl_training' has no attribute {name!r}{hint}")
