"""Action masks from environments: which choices are valid at an observation."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.spaces import mask_size


class MaskReader:
    """Reads `info["action_mask"]` and rejects a mask that allows no choice."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.size = mask_size(space)
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.array([self.size])
        self._starts = np.cumsum(sizes) - sizes  # the first flag of each choice
        which = "one of each choice" if len(sizes) > 1 else "one of them"
        self._expected = f"expected: {self.size} flags, at least {which} true"  # a part of the error message

    def read(self, info: Mapping[str, Any]) -> np.ndarray:
        """Return the flags, (size,) bool.

        Raises `ValueError`, whose message names what was found and what is expected.
        """
        found = info.get("action_mask")
        try:
            # Gymnasium's own form for MultiDiscrete is a tuple of arrays, one per choice.
            mask = np.concatenate(found).astype(np.bool_) if isinstance(found, tuple) else np.asarray(found, np.bool_)
        except ValueError:  # rows of unequal lengths
            mask = np.empty(0, np.bool_)
        if mask.shape == (self.size,) and np.logical_or.reduceat(mask, self._starts).all():
            return mask
        all_false = mask.shape == (self.size,) and not mask.any()
        what = "no action mask" if found is None else f"the {'all-false ' if all_false else ''}action mask {found}"
        raise ValueError(f"{what} ({self._expected})")
