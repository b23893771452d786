"""What a vector environment can do with single rows, which its class does not say: it is tried out."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.envs.dict_obs import sample_action
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.vector_row import AnyVectorEnv, info_of

TRIALS, TRIAL_STEPS = 10, 10  # to find out what a class can do


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a vector environment can do with single rows."""

    resets: bool  # `options={"reset_mask": ...}` resets some rows and leaves the others alone
    seeds: bool  # each row has a seed of its own


def find_abilities(vector: AnyVectorEnv) -> Abilities:
    """Try out what a vector environment can do: not all classes do what they are asked, and some ignore it silently."""
    seeds: Any = list(range(vector.num_envs))  # VectorEnv declares one number; those of Gymnasium take a list
    with ENV_CALLS:
        try:
            first = _play(vector, seeds)
            second = _play(vector, [vector.num_envs, *seeds[1:]])
            seeds_rows = all(_same_other_rows(*pair) for pair in zip(first, second, strict=False))
        except Exception:
            seeds_rows = False
        for trial in range(TRIALS):
            start, *_, before = _play(vector, trial, trial)
            if not _same_other_rows(start, before):
                break
        else:  # all rows are where a reset would put them: a reset of all would not show
            return Abilities(resets=False, seeds=seeds_rows)
        ENV_CALLS.next()
        try:
            after = vector.reset(options={"reset_mask": np.arange(vector.num_envs) == 0})[0]
            resets_rows = _same_other_rows(before, after)
        except Exception:
            resets_rows = False
    return Abilities(resets=resets_rows, seeds=seeds_rows)


def _play(vector: AnyVectorEnv, seed: Any, trial: int = 0) -> list[Any]:
    """Return the observations of a reset and of some steps, up to the end of an episode; `trial` selects the actions.

    The actions of a row do not depend on the other rows.
    """
    spaces = [copy.deepcopy(vector.single_action_space) for _ in range(vector.num_envs)]
    for index, space in enumerate(spaces):
        space.seed(trial * len(spaces) + index)
    ENV_CALLS.next()
    batch, infos = vector.reset(seed=seed)
    found = [copy.deepcopy(batch)]
    for _ in range(TRIAL_STEPS):
        actions = np.stack([sample_action(space, info_of(infos, index)) for index, space in enumerate(spaces)])
        ENV_CALLS.next()
        batch, _, terminated, truncated, infos = vector.step(actions.astype(vector.action_space.dtype))
        found.append(copy.deepcopy(batch))
        if np.any(terminated) or np.any(truncated):
            break
    return found


def _same_other_rows(one: Any, other: Any) -> bool:
    """Return whether two batches agree in all rows but the first."""
    if isinstance(one, Mapping):
        return all(_same_other_rows(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(_same_other_rows(*parts) for parts in zip(one, other, strict=True))
    return np.array_equal(np.asarray(one)[1:], np.asarray(other)[1:])
