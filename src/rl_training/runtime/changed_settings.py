"""Settings that change when a run is resumed: which may, and what they do to the saved state.

A setting whose change would silently alter the meaning of the saved state is marked `Fixed` in its settings class. For
the others the state itself decides: the algorithm is built with the old and with the new settings. Where the two differ
in the names or shapes of their state, the change is rejected. Where they differ in a value that training has not
changed, such as a learning rate, the new value is taken.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rl_training.core.types import Algorithm, StateDict
from rl_training.errors import ConfigError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import Checkpoint
from rl_training.experiment.state_files import flatten, unflatten
from rl_training.hparams.base import Settings
from rl_training.hparams.fields import Fixed
from rl_training.runtime.setup import PreparedRun

Changed: TypeAlias = dict[str, tuple[Any, Any]]  # the old and the new value of each setting, as `--set` names it

_GROUPS = ("algo_kwargs", "env_kwargs")
_PLACE = "output_dir"  # where the new run folder is created: not a setting of the run


def with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return a validated copy with changed settings; the groups `algo_kwargs` and `env_kwargs` keep the others."""
    changes = {
        name: {**getattr(config, name), **value} if name in _GROUPS else value for name, value in settings.items()
    }
    return config.updated(**changes)


def changed_settings(old: TrainConfig, new: TrainConfig) -> Changed:
    """Return what differs between the settings of a run and those that it shall continue with.

    Raises `ConfigError` for a setting that cannot change, and if nothing changes.
    """
    changed = differing_settings(old, new)
    for shown, values in changed.items():
        name = shown.removeprefix("algo_kwargs.")
        _check_fixed(type(old if name == shown else old.hparams), name, shown, values)
    if not changed:
        raise ConfigError("no setting changes: each has the given value already")
    n_step = getattr(old.hparams, "n_step", 1)
    if "algo_kwargs.gamma" in changed and n_step > 1:
        raise ConfigError(
            f"algo_kwargs.gamma cannot change on resume: the saved replay buffer holds sums of {n_step} rewards"
        )
    return changed


def differing_settings(old: TrainConfig, new: TrainConfig) -> Changed:
    """Return the settings that differ between two configs of a run."""
    changed: Changed = {}
    for prefix, before, after in (("", old, new), ("algo_kwargs.", old.hparams, new.hparams)):
        values, new_values = before.model_dump(mode="json"), after.model_dump(mode="json")
        for name, value in values.items():
            if name not in ("algo_kwargs", _PLACE) and value != new_values.get(name):
                changed[prefix + name] = (value, new_values.get(name))
    return changed


def _check_fixed(model: type[Settings], name: str, shown: str, values: tuple[Any, Any]) -> None:
    for mark in model.model_fields[name].metadata:
        if isinstance(mark, Fixed):
            raise ConfigError(f"{shown} cannot change on resume, from {values[0]!r} to {values[1]!r}: {mark.reason}")


def changed_parts(
    checkpoint: Checkpoint, prepared: PreparedRun, old: TrainConfig, changed: Changed
) -> dict[str, StateDict]:
    """Return the parts of the checkpoint for a run with changed settings; raise `ConfigError` if they do not fit it."""
    parts = {part: checkpoint.load(part) for part in (POLICY, TRAINING, MEMORY)}
    setup, new = prepared.setup, prepared.algorithm
    before = old.spec.build_algorithm(
        replace(
            setup,
            hparams=old.hparams,
            total_timesteps=old.total_timesteps,
            total_updates=old.total_updates,
            network=copy.deepcopy(setup.network),  # an algorithm takes a module's parameters over
        )
    )
    parts[POLICY] = _carry(parts[POLICY], before.policy_state_dict(), new.policy_state_dict(), changed)
    parts[TRAINING]["algorithm"] = _carry(parts[TRAINING]["algorithm"], before.state_dict(), new.state_dict(), changed)
    try:
        new.load_policy_state_dict(parts[POLICY])
        new.load_state_dict(parts[TRAINING]["algorithm"])
        prepared.memory.load_state_dict(parts[MEMORY])
    except UserError as error:
        raise ConfigError(f"{_listed(changed)} cannot change on resume: {error}") from error
    return parts


def _carry(
    saved: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], changed: Changed
) -> StateDict:
    """Return the saved state with the new value of each entry that the settings decide.

    `before`, `after`: the initial state with the old and with the new settings, equal in all that the seed decides.
    """
    (old, _), (new, _), (tensors, values) = flatten(before), flatten(after), flatten(saved)
    _check_shapes(old, new, changed)
    for name, initial in new.items():
        if name.endswith("learning_rate"):  # the schedule continues from it
            tensors[name] = initial
        elif not torch.equal(initial, old[name]):
            if not _is_same(tensors.get(name), old[name]):
                raise ConfigError(
                    f"{_listed(changed)} cannot change on resume: it decides the initial {name}, which training has "
                    "changed since"
                )
            tensors[name] = initial
    return unflatten(tensors, values)


def check_same_state(before: Algorithm, after: Algorithm, changed: Changed) -> None:
    """Raise `ConfigError` where two algorithms differ in the names or shapes of their state."""
    for old, new in (
        (before.policy_state_dict(), after.policy_state_dict()),
        (before.state_dict(), after.state_dict()),
    ):
        _check_shapes(flatten(old)[0], flatten(new)[0], changed)


def _check_shapes(old: Mapping[str, Tensor], new: Mapping[str, Tensor], changed: Changed) -> None:
    if differs := sorted(old.keys() ^ new.keys()):
        raise ConfigError(f"{_listed(changed)} cannot change on resume: the saved state has other parts, {differs[0]}")
    for name, tensor in new.items():
        if tensor.shape != old[name].shape:
            raise ConfigError(
                f"{_listed(changed)} cannot change on resume: the saved {name} has shape {tuple(old[name].shape)}, "
                f"and would need {tuple(tensor.shape)}"
            )


def _is_same(saved: Tensor | None, initial: Tensor) -> bool:
    return saved is not None and torch.equal(saved, initial.cpu())


def _listed(changed: Changed) -> str:
    return " and ".join(changed)
