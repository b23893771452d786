"""`check_tensor_env`: a test kit for tensor environments that users write."""

import contextlib
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.core.counters import Keys
from rl_training.core.spaces import action_bounds, action_field, observation_field
from rl_training.core.types import State
from rl_training.envs.tensor_env import TensorEnv
from rl_training.errors import EnvError, text_of

_ROWS = 16
_STEPS = 200
_SEARCH = 10  # times as many steps are played to see episodes end
_ENDINGS = 16  # so many are enough
_GROUPS = 256  # of equal keys, by which these steps are taken again
_STARTS = 1_024  # of episodes, to compare their observations with
_STANDARD_ERRORS = 5.0  # by which two samples of one distribution may differ
_ATTRIBUTES = ("observation_space", "action_space", "max_episode_steps", "first", "step", "observe")
_CLOSE = 1e-5  # share by which a row may differ in another number of rows: kernels round differently

log = logging.getLogger("rl_training")


def check_tensor_env(env: TensorEnv, *, num_steps: int = _STEPS) -> None:
    """Play random episodes and raise `EnvError` with the reason for what a tensor environment must not do.

    Refused are: waiting for a value (`item`, `if tensor:`, shapes that depend on values), tensors on a fixed device,
    shapes or dtypes that change or are not those of the spaces, random numbers from a generator, changing the tensors
    of the given state, rows that depend on other rows, and a `step` that resets by itself and so loses the final
    observation. The last of these is tested if random play ends two episodes; otherwise a warning reports it.

    `num_steps`: steps that are tested; up to ten times as many are played to see episodes end.
    """
    missing = [name for name in _ATTRIBUTES if not hasattr(env, name)]
    if missing:
        raise _error(env, f"has no {', '.join(missing)}")
    _check_generators(env)
    _check_first_step(env)
    _check_abstractly(env)
    _check_episodes(env, num_steps)


def _error(env: object, what: str) -> EnvError:
    return EnvError(f"the tensor environment {type(env).__name__} {what}")


def _keys(rows: int, device: str = "cpu") -> Keys:
    count = torch.arange(rows, device=device)
    return Keys(torch.ones_like(count), count, torch.zeros_like(count), torch.zeros_like(count))


def _some_actions(env: TensorEnv, keys: Keys) -> Tensor:
    """Return random actions of the space, by counters on a lane of their own."""
    field = action_field(env.action_space)
    uniform = keys.uniform(1_000, max(1, int(np.prod(field.shape))))
    low, high = (torch.as_tensor(bound.reshape(-1), device=uniform.device) for bound in action_bounds(env.action_space))
    is_box = field.choices is None
    actions = low + uniform * (high - low) if is_box else low + (uniform * (high - low + 1)).long()
    return actions.reshape(len(uniform), *field.shape)


def _check_abstractly(env: TensorEnv) -> None:
    """Run the environment on tensors without values, first on the CPU, then on PyTorch's device for such tensors.

    Reading a value is impossible there, and on the second device a tensor of the CPU does not mix with the others.
    """
    reasons = {
        "cpu": "waits for the value of a tensor (item, if, nonzero, numpy or a mask as an index)",
        "meta": "creates tensors on a fixed device, not on that of the keys or the state",
    }
    for device, reason in reasons.items():
        try:
            with FakeTensorMode() if device == "cpu" else contextlib.nullcontext():
                keys = _keys(_ROWS, device=device)
                state = env.first(keys)
                state, rewards, terminated = env.step(state, _some_actions(env, keys), keys)
                found = [*state.values(), rewards, terminated, env.observe(state)]
        except Exception as cause:
            raise _error(env, f"{reason}: {type(cause).__name__}: {text_of(cause)[:300]}") from cause
        if any(value.device.type != device for value in found):
            raise _error(env, reasons["meta"])


class _NoGenerators(TorchDispatchMode):
    """Notes the operations that draw from a generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.used.append(str(func))
        return func(*args, **(kwargs or {}))


def _check_generators(env: TensorEnv) -> None:
    """Reject random numbers that do not come from the keys: the same call must give the same result."""
    keys, mode = _keys(_ROWS), _NoGenerators()
    before = (random.getstate(), str(np.random.get_state()))
    with mode:
        state = env.first(keys)
        actions = _some_actions(env, keys)
        given = {name: value.clone() for name, value in state.items()}
        starts = [_with_observation(env, one) for one in (state, env.first(keys))]
        steps = [_with_results(*env.step(state, actions, keys)) for _ in range(2)]
    if mode.used:
        raise _error(env, f"draws from a generator ({mode.used[0]}): random numbers must come from `keys`")
    if (random.getstate(), str(np.random.get_state())) != before:
        raise _error(env, "draws from a global generator of Python or numpy: random numbers must come from `keys`")
    if not _equal(given, state):
        raise _error(env, "changes the tensors of the state that `step` or `observe` is given: return new ones")
    if not (_equal(*starts) and _equal(*steps)):
        raise _error(env, "returns another result for the same state, actions and keys")


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps to take again: the states before them, and the actions."""

    state: State
    actions: Tensor

    def select(self, rows: Tensor | slice) -> "_Steps":
        return _Steps({name: value[rows] for name, value in self.state.items()}, self.actions[rows])

    def __len__(self) -> int:
        return len(self.actions)


def _join(parts: list[_Steps]) -> _Steps:
    state = {name: torch.cat([part.state[name] for part in parts]) for name in parts[0].state}
    return _Steps(state, torch.cat([part.actions for part in parts]))


def _check_first_step(env: TensorEnv) -> None:
    keys = _keys(_ROWS)
    state = env.first(keys)
    _check_obs(env, state, "first")
    _check_step(env, state, *env.step(state, _some_actions(env, keys), keys))


def _check_episodes(env: TensorEnv, num_steps: int) -> None:
    """Play episodes with random actions, and take the steps that ended some again."""
    start = _keys(_ROWS)
    _check_same_rows(env, "first", env.first(_half(start)), env.first(start))
    endings: list[_Steps] = []
    others: list[_Steps] = []
    for number, (steps, keys, (after, rewards, terminated)) in enumerate(_play(env, _SEARCH * num_steps)):
        if number < num_steps:
            _check_step(env, steps.state, after, rewards, terminated)
            _check_rows(env, steps, keys, _with_results(_with_observation(env, after), rewards, terminated))
            others.append(steps.select(~terminated))
        elif sum(len(steps) for steps in endings) >= _ENDINGS:
            break
        endings.append(steps.select(terminated))
    _check_endings(env, _join(endings), _join(others))


def _play(env: TensorEnv, num_steps: int) -> Iterator[tuple[_Steps, Keys, tuple[State, Tensor, Tensor]]]:
    """Yield steps and their results; each row starts again when its episode ends."""
    start = _keys(_ROWS)
    episode, elapsed = start.episode, start.step
    held = 1 + 2 * start.env  # steps that a row repeats an action: some tasks hardly ever end by independent actions
    limit = env.max_episode_steps
    state = env.first(start)
    for _ in range(num_steps):
        elapsed = elapsed + 1
        keys = Keys(start.seed, start.env, episode, elapsed)
        actions = _some_actions(env, Keys(start.seed, start.env, episode, elapsed // held))
        with _first_refused(env):
            after, rewards, terminated = env.step(state, actions, keys)
        yield _Steps(state, actions), keys, (after, rewards, terminated)
        ended = terminated if limit is None else terminated | (elapsed >= limit)
        episode, elapsed = episode + ended, torch.where(ended, 0, elapsed)
        fresh = env.first(Keys(start.seed, start.env, episode, torch.zeros_like(elapsed)))
        state = {name: torch.where(_column(ended, value), fresh[name], value) for name, value in after.items()}


@contextlib.contextmanager
def _first_refused(env: TensorEnv) -> Iterator[None]:
    """Raise `EnvError` if the environment calls its own `first` within the block."""

    def refuse(*_: Any) -> NoReturn:
        raise _error(env, "calls `first` inside of `step`: a reset there would lose the final observation")

    own = getattr(env, "__dict__", {})  # a class with slots has none; its endings are compared all the same
    replaced = {name: own[name] for name in ("first",) if name in own}
    own["first"] = refuse
    try:
        yield
    finally:
        del own["first"]
        own.update(replaced)


def _check_endings(env: TensorEnv, endings: _Steps, others: _Steps) -> None:
    """Reject a `step` that resets by itself: steps that end an episode lead to the start of one, others do not."""
    if min(len(endings), len(others)) < 2:
        log.warning(
            "whether `step` of %s keeps the final observation was not tested: %d steps of random play ended an episode "
            "and %d did not; a larger num_steps plays longer",
            type(env).__name__,
            len(endings),
            len(others),
        )
    elif _start_anew(env, endings, ending=True) and not _start_anew(env, others, ending=False):
        raise _error(env, "starts the next episode inside of `step`, so that the final observation is lost")


def _start_anew(env: TensorEnv, steps: _Steps, *, ending: bool) -> bool:
    """Return whether the observations after these steps are those of starts, where the steps change them.

    All steps are taken again with the same keys, then with others, and so on. A start depends on its keys alone, so
    that one observation follows all steps with the same keys, and it varies with the keys as that after `first`.
    """
    steps = steps.select(slice(None, None, 1 + len(steps) // _ENDINGS))
    count, steps = len(steps), _join([steps] * _GROUPS)
    group = torch.arange(_GROUPS).repeat_interleave(count)
    after, _, terminated = env.step(steps.state, steps.actions, Keys(torch.ones_like(group), group, group, group))
    rows = terminated == ending
    before, obs = (_columns(env, state) for state in (steps.state, after))
    changed = (before != obs)[rows].any(0)
    groups = zip(obs[:, changed].split(count), rows.split(count), strict=True)
    found = [values[chosen] for values, chosen in groups if chosen.sum() > 1]
    if not (changed.any() and found and all(_alike(values) for values in found)):
        return False
    starts = _columns(env, env.first(_keys(_STARTS)))[:, changed]
    return _as_far(torch.stack([values[0] for values in found]), starts)


def _columns(env: TensorEnv, state: State) -> Tensor:
    obs = env.observe(state).double()
    return obs.reshape(len(obs), -1)


def _alike(values: Tensor) -> bool:
    return torch.allclose(values, values[:1].expand_as(values), rtol=_CLOSE, atol=_CLOSE)


def _as_far(sample: Tensor, starts: Tensor) -> bool:
    """Return whether a sample is as far from the mean of the starts as these are, in each column and up to chance."""
    distances, usual = ((values - starts.mean(0)).square() for values in (sample, starts))
    errors = usual.std(0) * (1.0 / len(sample) + 1.0 / len(starts)) ** 0.5
    return bool(((distances.mean(0) - usual.mean(0)).abs() <= _STANDARD_ERRORS * errors + _CLOSE).all())


def _check_step(env: TensorEnv, before: State, after: State, rewards: Tensor, terminated: Tensor) -> None:
    layouts = [{name: _layout(value) for name, value in state.items()} for state in (before, after)]
    if layouts[0] != layouts[1]:
        raise _error(env, f"changes the names, shapes or dtypes of its state: {layouts[0]}, after a step {layouts[1]}")
    if rewards.shape != (_ROWS,) or not rewards.is_floating_point():
        raise _error(env, f"must return rewards of shape (rows,) and a float dtype, got {_layout(rewards)}")
    if terminated.shape != (_ROWS,) or terminated.dtype != torch.bool:
        raise _error(env, f"must return terminated of shape (rows,) and dtype bool, got {_layout(terminated)}")
    if not rewards.isfinite().all():
        raise _error(env, "returned a reward that is not finite")
    _check_obs(env, after, "a step")


def _check_obs(env: TensorEnv, state: State, where: str) -> None:
    obs, field = env.observe(state), observation_field(env.observation_space)
    dtype = torch.from_numpy(np.empty(0, env.observation_space.dtype)).dtype
    if tuple(obs.shape) != (_ROWS, *field.shape) or obs.dtype != dtype:
        declared = f"{dtype} {(_ROWS, *field.shape)}"
        raise _error(env, f"observes {_layout(obs)} after {where}, but the observation space declares {declared}")
    outside = [row for row in obs.numpy() if not env.observation_space.contains(row)]
    if outside:
        raise _error(env, f"observes {outside[0].tolist()!s:.200} after {where}, outside of {env.observation_space}")


def _check_rows(env: TensorEnv, steps: _Steps, keys: Keys, together: State) -> None:
    """Step half of the rows alone."""
    few = steps.select(slice(_ROWS // 2))
    after, rewards, terminated = env.step(few.state, few.actions, _half(keys))
    _check_same_rows(env, "step", _with_results(_with_observation(env, after), rewards, terminated), together)


def _check_same_rows(env: TensorEnv, what: str, alone: State, together: State) -> None:
    for name, value in alone.items():
        if not torch.allclose(value.double(), together[name][: len(value)].double(), rtol=_CLOSE, atol=_CLOSE):
            raise _error(env, f"has rows that depend on other rows: {name} differs if {what} gets half of them alone")


def _half(keys: Keys) -> Keys:
    half = slice(_ROWS // 2)
    return Keys(keys.seed[half], keys.env[half], keys.episode[half], keys.step[half])


def _with_observation(env: TensorEnv, state: State) -> State:
    return state | {"the observation": env.observe(state)}


def _with_results(state: State, rewards: Tensor, terminated: Tensor) -> State:
    return state | {"the rewards": rewards, "the terminated flags": terminated}


def _layout(value: Tensor) -> str:
    return f"{value.dtype} {tuple(value.shape)}"


def _equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _column(rows: Tensor, like: Tensor) -> Tensor:
    return rows.view(-1, *(1,) * (like.ndim - 1))
