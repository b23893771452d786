"""SAC's and REDQ's updates per second on a GPU, with 1 or 20 of them per call.

    python -m benchmarks gpu sac    (or `python -m benchmarks.gpu_sac OUT.json`)

stable-baselines3's SAC is timed where it can be imported; `plain` is an eager loop without a library.
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.gpu import TRANSITIONS, Case, Seconds, random_transitions, timed
from benchmarks.gpu_beside import SPACES, Family, OnlySpaces, repeated, run_family
from rl_training.hparams.actor_critic import REDQHParams, SACHParams


def sb3_sac(case: Case, device: str) -> Seconds:
    """Give the timer of stable-baselines3's SAC, on the same transitions."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    hparams = case.hparams
    model = SAC(
        "MlpPolicy", OnlySpaces(), buffer_size=TRANSITIONS, batch_size=hparams.batch_size, device=device, seed=0
    )
    model.set_logger(Logger(None, []))
    rows = random_transitions(case.spaces)
    for obs, next_obs, action, reward, terminated in zip(*rows.values(), strict=True):
        model.replay_buffer.add(obs, next_obs, action, reward, np.array([terminated]), [{}])
    return timed(lambda: model.train(case.at_once, hparams.batch_size), device, case.at_once)


def plain_sac(case: Case, device: str) -> Seconds:
    """Give the timer of SAC as one plain eager loop, on the same transitions."""
    from harness import Setting
    from plain_sac import PlainLearner

    hparams = case.hparams.model_dump(mode="json")
    setting = Setting(mode="speed", env_id="HalfCheetah-v5", steps=0, hparams=hparams, device=device)
    learner = PlainLearner(setting, SimpleNamespace(envs=[OnlySpaces()]))
    rows = random_transitions(case.spaces)
    for obs, next_obs, action, reward, terminated in zip(*rows.values(), strict=True):
        learner.buffer.add(obs, action, reward, next_obs, terminated)
    return repeated(learner.update, case, device)


SAC = Case(
    algo="sac",
    spaces=SPACES,
    hparams=SACHParams(buffer_capacity=TRANSITIONS),
    others={"sb3": sb3_sac, "plain": plain_sac},
)
FAMILY = Family(
    cases={
        "sac_1": SAC,
        "sac_20": replace(SAC, at_once=20),
        "redq_20": Case(algo="redq", spaces=SPACES, hparams=REDQHParams(buffer_capacity=TRANSITIONS), at_once=20),
    },
    reference="sb3",
)


if __name__ == "__main__":
    sys.exit(run_family(FAMILY, Path(sys.argv[1])))
