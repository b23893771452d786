"""Checks over several settings: plain functions whose parameters are named after the settings they look at."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from rl_training.hparams.fields import NetworkName, Sizes

Check: TypeAlias = Callable[..., None]  # raises ValueError, and names the settings itself


def run_checks(checks: Iterable[Check], values: Mapping[str, Any]) -> None:
    """Call every check with the values that its parameters name."""
    for check in checks:
        check(**{name: values[name] for name in inspect.signature(check).parameters})


def check_network(network: NetworkName, hidden_sizes: Sizes) -> None:
    _check_blocks(network, "hidden_sizes", hidden_sizes)


def check_critic_network(network: NetworkName, critic_hidden_sizes: Sizes | None) -> None:
    if critic_hidden_sizes is not None:
        _check_blocks(network, "critic_hidden_sizes", critic_hidden_sizes)


def _check_blocks(network: NetworkName, setting: str, sizes: Sizes) -> None:
    if network == "simba" and len(set(sizes)) != 1:
        raise ValueError(f"network: simba needs {setting} that are all alike, got {list(sizes)}")


def check_replay(buffer_capacity: int, n_step: int) -> None:
    if buffer_capacity < n_step:
        raise ValueError(f"buffer_capacity must be at least n_step, {n_step}, got {buffer_capacity}")


def check_hindsight(her: str, n_step: int, prioritized: bool) -> None:
    """Refuse what would not be right for a row whose goal changes each time it is sampled."""
    if her == "none":
        return
    if n_step > 1:
        raise ValueError(f"her: {her} needs n_step 1, got {n_step}: stored sums of rewards cannot be relabelled")
    if prioritized:
        raise ValueError(
            f"her: {her} needs prioritized: false: a priority belongs to a row with its goal, and each sample has "
            "another goal"
        )


def check_goal_rewards(her: str, clip_rewards: bool) -> None:
    if her != "none" and clip_rewards:
        raise ValueError(f"her: {her} computes rewards again, as the environment returns them; unset clip_rewards")


def check_target_range(clip_targets: bool, gamma: float) -> None:
    if clip_targets and gamma >= 1.0:
        raise ValueError(f"clip_targets needs a gamma below 1, got {gamma:g}: the targets have no lower bound")


def check_rollout(num_steps: int, minibatch_size: int, normalize_advantages: bool, num_envs: int) -> None:
    rows = num_steps * num_envs
    if normalize_advantages and min(rows, minibatch_size) < 2:
        raise ValueError(
            f"normalize_advantages needs minibatches of at least 2 rows, got minibatch_size {minibatch_size} of {rows}"
        )
    if rows % minibatch_size:
        divisors = [size for size in range(2 if normalize_advantages else 1, rows + 1) if rows % size == 0]
        closest = min(divisors, key=lambda size: abs(size - minibatch_size))
        raise ValueError(
            f"minibatch_size must divide the rollout of num_steps * num_envs = {num_steps} * {num_envs} = "
            f"{rows} rows, got {minibatch_size}; {closest} would do"
        )


def check_minibatches(num_steps: int, minibatch_size: int, num_envs: int) -> None:
    check_rollout(num_steps, minibatch_size, normalize_advantages=False, num_envs=num_envs)


def check_sequences(
    num_steps: int, minibatch_size: int, unroll_length: int | None, normalize_advantages: bool, num_envs: int
) -> None:
    check_rollout(num_steps, minibatch_size, normalize_advantages, num_envs)
    length = unroll_length or num_steps
    if num_steps % length:
        raise ValueError(f"unroll_length must divide num_steps, {num_steps}, got {length}")
    if minibatch_size % length:
        raise ValueError(
            f"minibatch_size must be a multiple of unroll_length (null: num_steps), {length}, got {minibatch_size}: "
            "a minibatch consists of whole sequences"
        )


def check_dynamics(num_ensembles: int, num_elites: int) -> None:
    if num_elites > num_ensembles:
        raise ValueError(f"num_elites must be at most num_ensembles, {num_ensembles}, got {num_elites}")


def check_evaluable(dataset_kind: str | None, held_out: float | None, has_env: bool) -> None:
    """Refuse a run without an environment that needs one to make its dataset or to be evaluated."""
    if has_env:
        return
    if dataset_kind == "random":
        raise ValueError("dataset_kind random needs an environment to act in, but env_id is empty")
    if held_out == 0.0:
        raise ValueError(
            "held_out must be in (0, 1) if env_id is empty, got 0: without an environment only held-out data "
            "can evaluate the policy"
        )
