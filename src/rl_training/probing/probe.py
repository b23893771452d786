"""Probe an environment: play it at random, repeat episodes, try actions, and report what looks broken."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
from gymnasium import spaces

from rl_training.envs.hang_watch import hangs_end
from rl_training.envs.slot import Env
from rl_training.probing.actions import check_action_space, check_actions
from rl_training.probing.endings import check_endings
from rl_training.probing.findings import BrokenEnvError, Finding
from rl_training.probing.observations import check_observations
from rl_training.probing.play import play_randomly
from rl_training.probing.rewards import check_rewards
from rl_training.probing.seeding import check_seeding
from rl_training.probing.watched_env import WatchedEnv

NOT_REPEATABLE = {"seed_ignored", "steps_not_seeded", "reset_leaks"}
# A fault shows in several checks: name of a finding -> findings that it explains, which are left out.
EXPLAINS = {
    "observation_scale": {"observation_out_of_bounds"},
    "observation_delayed": {"observation_incomplete", "action_delayed"},
    "observation_constant": {"action_no_effect", "action_delayed"},
    "observation_incomplete": {"action_delayed"},
    "reward_cumulative": {"reward_sign"},
    "time_limit_as_termination": {"reward_sign"},
}


def probe_env(make_env: Callable[[], Env], *, seconds: float = 20.0, call_timeout: float = 10.0) -> list[Finding]:
    """Return what looks broken in the environments that `make_env` makes, the worst first; empty: nothing.

    `seconds` limits random play and the trials of actions, each to a half. A call that takes longer than
    `call_timeout` seconds counts as hung (in the main thread; elsewhere calls are not watched).
    """
    with hangs_end(call_timeout), contextlib.ExitStack() as open_envs:

        def make() -> WatchedEnv:
            env = WatchedEnv(make_env)
            open_envs.callback(env.close)
            return env

        try:
            findings = list(_findings(make, seconds / 2))
        except BrokenEnvError as broken:
            findings = [broken.finding]
    explained = {name for finding in findings for name in EXPLAINS.get(finding.name, ())}
    left = [finding for finding in findings if finding.name not in explained]
    return sorted(left, key=lambda finding: finding.verdict != "fix")


def _findings(make: Callable[[], WatchedEnv], seconds: float) -> Iterator[Finding]:
    env = make()
    unbounded = list(check_action_space(env.action_space))
    yield from unbounded
    if unbounded:
        return
    episodes = play_randomly(env, seconds=seconds)
    yield from env.findings.values()
    yield from check_observations(episodes, is_float=_is_vector(env.observation_space))
    yield from check_endings(episodes, env.time_limit)
    yield from check_rewards(episodes)
    of_seeds = list(check_seeding(make, env, episodes))
    yield from of_seeds
    if not NOT_REPEATABLE & {finding.name for finding in of_seeds}:
        yield from check_actions(env, episodes, seconds=seconds)


def _is_vector(space: object) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
