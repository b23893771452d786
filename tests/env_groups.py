"""What tests of groups of environments in other processes share."""

from pathlib import Path

import numpy as np

from rl_training.envs.vector import EnvGroup

# A fault of `Misbehaving`, what the error says, and what the report in the crash folder holds.
CRASHES = [
    ("raise", "raised ValueError: misbehaving on purpose", "_maybe_fault"),
    ("exit", "ended its process with exit code 3", "left no traceback"),
    ("kill", r"was ended by SIGKILL \(often: out of memory\), exit code -9,", "left no traceback"),
    ("segfault", "was ended by SIGSEGV, exit code -11,", "_maybe_fault"),
    ("shape", r"returned an observation of shape \(1,\), but its observation space .* declares shape \(3,\)", ""),
]


def is_running(pid: int) -> bool:
    """Return whether the process still runs; one that only waits to be collected by its parent does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def assert_same_results(sync: EnvGroup, other: EnvGroup, num_steps: int = 150) -> int:
    """Assert that two groups with the same environments return the same, bit for bit; return the number of resets."""
    assert other.observation_space == sync.observation_space
    assert other.action_space == sync.action_space
    indices, num_resets = list(range(sync.num_envs)), 0
    seeds = [3 + index for index in indices]
    sync.action_space.seed(0)
    for step in range(num_steps):
        if indices:
            num_resets += len(indices)
            expected, expected_infos = sync.reset(indices, seeds)
            found, found_infos = other.reset(indices, seeds)
            assert expected.tobytes() == found.tobytes()
            assert expected_infos == found_infos
        actions = np.stack([sync.action_space.sample() for _ in range(sync.num_envs)])
        one, another = sync.step(actions), other.step(actions)
        for name in ("obs", "rewards", "terminated", "truncated"):
            mine, theirs = getattr(one, name), getattr(another, name)
            assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        assert one.infos == another.infos  # FrozenLake has some: {"prob": 1/3}
        indices = one.ended
        seeds = [100 * step + index for index in indices]
    return num_resets
