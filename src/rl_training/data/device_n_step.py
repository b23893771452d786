"""N-step returns on the device: as many rows go into the replay buffer as environments step, n - 1 steps later.

    R = r_t + gamma r_{t+1} + ... + gamma^(m-1) r_{t+m-1},   next_obs = s_{t+m},   discounts = gamma^m

with m = n_step, or fewer where the episode ends earlier, as in n_step.py. A window is summed when its last step is
known, also if its episode ended before: no shape depends on a value.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_training.core.types import Batch, Metrics, State

_WINDOW, _SUMMED = "window.", "summed."  # starts of names in the state of `advance`


class DeviceWindows:
    """The last `n_step` steps of each environment, oldest first, and the transitions that the newest completed."""

    def __init__(self, n_step: int, gamma: float, incoming: Mapping[str, Tensor], axes: Sequence[int]) -> None:
        """`incoming`: one step of all environments, by field, with `truncated`. `axes`: of the members of a stack."""
        self._n_step, self._gamma = n_step, gamma
        self.steps = {
            name: values.new_zeros((*axes, n_step, *values.shape[len(axes) :])) for name, values in incoming.items()
        }
        rewards = incoming["rewards"]
        self.count = torch.zeros(tuple(axes), dtype=torch.int64, device=rewards.device)  # steps so far
        self.summed = {name: torch.zeros_like(values) for name, values in incoming.items() if name != "truncated"}
        self.summed["discounts"] = torch.zeros_like(rewards)

    def advance(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Add one step to the windows, and sum up the oldest of each: a pure step."""
        return advance(state, batch, self._gamma)

    @property
    def state(self) -> State:
        """What `advance` changes."""
        return {_WINDOW + name: values for name, values in self.steps.items()} | {
            _SUMMED + name: values for name, values in self.summed.items()
        }

    @property
    def is_full(self) -> Tensor:
        """Whether `summed` holds transitions, (members,) or 0-d; not before n_step steps."""
        return self.count >= self._n_step

    @property
    def changed(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        return {**self.steps, "count": self.count}

    def use(self, stack: "DeviceWindows", number: int) -> None:
        """Hold the tensors of a member of a stack in place of its own."""
        self.steps = {name: values[number] for name, values in stack.steps.items()}
        self.count = stack.count[number]


def advance(state: State, batch: Batch, gamma: float) -> tuple[State, Metrics]:
    """Return the windows with one more step, and the sums over those that have begun n steps ago."""
    steps = {name: torch.cat((state[_WINDOW + name][1:], values[None])) for name, values in batch.items()}
    goes_on = torch.ones_like(steps["terminated"][0])
    last = {name: values[0] for name, values in steps.items() if name in ("terminated", "next_obs")}
    returns = torch.zeros_like(steps["rewards"][0], dtype=torch.float64)
    discounts = torch.ones_like(returns)
    for number, rewards in enumerate(steps["rewards"]):
        returns = returns + torch.where(goes_on, gamma**number * rewards.double(), 0.0)
        discounts = torch.where(goes_on, gamma ** (number + 1), discounts)
        for name, values in last.items():
            new = steps[name][number]
            last[name] = torch.where(goes_on.view(-1, *(1,) * (new.ndim - 1)), new, values)
        goes_on = goes_on & ~(steps["terminated"][number] | steps["truncated"][number])
    summed = {
        "obs": steps["obs"][0],
        "actions": steps["actions"][0],
        "rewards": returns.float(),
        "discounts": discounts.float(),
        **last,
    }
    return {_WINDOW + name: values for name, values in steps.items()} | {
        _SUMMED + name: values for name, values in summed.items()
    }, {}
