"""`check_tensor_env`: a test kit for tensor environments that users write."""

import contextlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.core.counters import Keys
from rl_training.core.spaces import action_field, observation_field
from rl_training.core.types import State
from rl_training.envs.tensor_env import TensorEnv
from rl_training.errors import EnvError, text_of

_ROWS = 16
_STEPS = 200
_ATTRIBUTES = ("observation_space", "action_space", "max_episode_steps", "first", "step", "observe")
_CLOSE = 1e-5  # share by which a row may differ in another number of rows: kernels round differently


def check_tensor_env(env: TensorEnv, *, num_steps: int = _STEPS) -> None:
    """Play random episodes and raise `EnvError` with the reason for what a tensor environment must not do.

    Refused are: waiting for a value (`item`, `if tensor:`, shapes that depend on values), tensors on a fixed device,
    shapes or dtypes that change or are not those of the spaces, random numbers from a generator, changing the tensors
    of the given state, rows that depend on other rows, and a `step` that resets by itself and so loses the final
    observation.
    """
    missing = [name for name in _ATTRIBUTES if not hasattr(env, name)]
    if missing:
        raise _error(env, f"has no {', '.join(missing)}")
    _check_generators(env)
    _check_episodes(env, num_steps)
    _check_abstractly(env)


def _error(env: object, what: str) -> EnvError:
    return EnvError(f"the tensor environment {type(env).__name__} {what}")


def _keys(rows: int, episode: int = 0, step: int = 0, device: str = "cpu") -> Keys:
    count = torch.arange(rows, device=device)
    return Keys(torch.full_like(count, 1), count, torch.full_like(count, episode), torch.full_like(count, step))


def _some_actions(env: TensorEnv, keys: Keys) -> Tensor:
    """Return random actions of the space, by counters on a lane of their own."""
    space: Any = env.action_space
    field = action_field(space)
    size = max(1, int(np.prod(field.shape)))
    uniform = keys.uniform(1_000, size)
    if field.dtype.kind == "f":
        low, high = (torch.as_tensor(bound.reshape(-1), device=uniform.device) for bound in (space.low, space.high))
        return (low + uniform * (high - low)).reshape(len(uniform), *field.shape)
    choices = torch.as_tensor(np.asarray(getattr(space, "nvec", getattr(space, "n", 2))).reshape(-1))
    return (uniform * choices.to(uniform.device)).long().reshape(len(uniform), *field.shape)


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
        results = [env.step(state, actions, keys) for _ in range(2)]
        again = env.first(keys)
    if mode.used:
        raise _error(env, f"draws from a generator ({mode.used[0]}): random numbers must come from `keys`")
    if (random.getstate(), str(np.random.get_state())) != before:
        raise _error(env, "draws from a global generator of Python or numpy: random numbers must come from `keys`")
    if not _equal(given, state):
        raise _error(env, "changes the tensors of the state that `step` is given: return new ones")
    (first, *_), (second, *_) = results
    if not (_equal(first, second) and _equal(again, state)):
        raise _error(env, "returns another result for the same state, actions and keys")


def _check_episodes(env: TensorEnv, num_steps: int) -> None:
    """Play episodes with random actions, each row starting again when it terminates."""
    episode = torch.zeros(_ROWS, dtype=torch.int64)
    elapsed = torch.zeros_like(episode)
    start = _keys(_ROWS)
    state = env.first(start)
    expected = _signature(state)
    _check_obs(env, state, "first")
    looks_new = {True: [0, 0], False: [0, 0]}  # by termination: rows, and those in the state of a new episode
    for _ in range(num_steps):
        elapsed = elapsed + 1
        keys = Keys(start.seed, start.env, episode, elapsed)
        actions = _some_actions(env, keys)
        after, rewards, terminated = env.step(state, actions, keys)
        _check_step(env, expected, after, rewards, terminated)
        _check_rows(env, state, actions, keys, after)
        nexts = Keys(start.seed, start.env, episode + 1, torch.zeros_like(elapsed))
        fresh = env.first(nexts)
        same = _equal_rows(after, fresh) | _equal_rows(after, env.first(keys))
        for kind, rows in ((True, terminated), (False, ~terminated)):
            looks_new[kind][0] += int(rows.sum())
            looks_new[kind][1] += int((same & rows).sum())
        limit = env.max_episode_steps
        ended = terminated if limit is None else terminated | (elapsed >= limit)
        state = {name: torch.where(_column(ended, value), fresh[name], value) for name, value in after.items()}
        episode, elapsed = episode + ended, torch.where(ended, 0, elapsed)
    (ends, new_at_ends), (others, new_elsewhere) = looks_new[True], looks_new[False]
    if ends and new_at_ends == ends and new_elsewhere < others:
        raise _error(env, "starts a new episode inside of `step`, so that its final observation is lost")


def _check_step(env: TensorEnv, expected: object, after: State, rewards: Tensor, terminated: Tensor) -> None:
    if _signature(after) != expected:
        raise _error(
            env, f"changes the names, shapes or dtypes of its state: {expected}, after a step {_signature(after)}"
        )
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


def _check_rows(env: TensorEnv, state: State, actions: Tensor, keys: Keys, after: State) -> None:
    """Step half of the rows alone."""
    half = slice(_ROWS // 2)
    few = Keys(keys.seed[half], keys.env[half], keys.episode[half], keys.step[half])
    alone, _, _ = env.step({name: value[half] for name, value in state.items()}, actions[half], few)
    for name, value in alone.items():
        if not torch.allclose(value.double(), after[name][half].double(), rtol=_CLOSE, atol=_CLOSE):
            raise _error(env, f"has rows that depend on other rows: {name} differs if half of them step alone")


def _signature(state: State) -> dict[str, str]:
    return {name: _layout(value) for name, value in state.items()}


def _layout(value: Tensor) -> str:
    return f"{value.dtype} {tuple(value.shape)}"


def _equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _equal_rows(one: State, other: State) -> Tensor:
    same = [
        (value == other[name]).flatten(1).all(1) if value.ndim > 1 else value == other[name]
        for name, value in one.items()
    ]
    return torch.stack(same).all(0)


def _column(rows: Tensor, like: Tensor) -> Tensor:
    return rows.view(-1, *(1,) * (like.ndim - 1))
