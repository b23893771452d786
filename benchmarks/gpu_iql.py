"""IQL's updates per second on a GPU: ten per call, as a run makes them, and one.

    python -m benchmarks gpu iql    (or `python -m benchmarks.gpu_iql OUT.json`)

d3rlpy's IQL is timed where it can be imported, as it is by default, without its
compiled CUDA graphs (`compile_graph`), which have not been timed. `plain` is an eager loop without a library.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import TRANSITIONS, Case, Seconds
from benchmarks.gpu_beside import SPACES, Family, repeated, run_family
from benchmarks.speed import write_random_rows
from rl_training.hparams.offline import IQLHParams
from rl_training.runtime.loops import OFFLINE_UPDATES_AT_ONCE


def contender(build: Callable[..., Any], case: Case, device: str) -> Seconds:
    """Give the timer of a contender's learner, on as many random transitions of the same sizes."""
    from harness import Setting, TrainingEnvs

    hparams = case.hparams.model_dump(mode="json")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "random.npz"
        write_random_rows(file, TRANSITIONS)
        setting = Setting(
            mode="speed", env_id="HalfCheetah-v5", steps=50_000, hparams=hparams, device=device, dataset=str(file)
        )
        learner = build(setting, TrainingEnvs(setting))
    return repeated(learner.update, case, device)


def d3rlpy_iql(case: Case, device: str) -> Seconds:
    from d3rlpy_iql import D3RLPyLearner

    return contender(D3RLPyLearner, case, device)


def plain_iql(case: Case, device: str) -> Seconds:
    from plain_iql import PlainLearner

    return contender(PlainLearner, case, device)


IQL = Case(algo="iql", spaces=SPACES, hparams=IQLHParams(), others={"d3rlpy": d3rlpy_iql, "plain": plain_iql})
FAMILY = Family(
    cases={f"iql_{OFFLINE_UPDATES_AT_ONCE}": replace(IQL, at_once=OFFLINE_UPDATES_AT_ONCE), "iql_1": IQL},
    reference="d3rlpy",
)


if __name__ == "__main__":
    sys.exit(run_family(FAMILY, Path(sys.argv[1])))
