"""Evaluate an offline algorithm on held-out data: the only way if there is no environment."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol, cast

import torch

from rl_training.core.spaces import transition_fields
from rl_training.core.state_checks import load_algorithm, loading
from rl_training.core.types import Batch, Metrics
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import Checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.resuming import run_dir_of
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import config_for_acting
from rl_training.runtime.setup import RunOptions, prepare_run

_ROWS_AT_ONCE = 8_192


class OfflineEvaluated(Protocol):
    """An algorithm that can be evaluated on held-out transitions."""

    @property
    def device(self) -> torch.device: ...

    def evaluate_offline(self, batch: Batch) -> Metrics:
        """Return means over the rows of a batch, which is on the device of the algorithm."""
        ...


class OfflineEvaluation(Callback):
    """Writes a line to eval.jsonl at every evaluation, and adds the same numbers to the metrics."""

    def __init__(self, dataset: TransitionDataset) -> None:
        self._dataset = dataset

    def on_step(self, run: Run) -> None:
        if run.crossed(run.config.eval_interval) or run.step >= run.config.total_timesteps:
            found = evaluate_offline(cast(OfflineEvaluated, run.algorithm), self._dataset)
            run.folder.log("eval").write({"step": run.step, "held_out": found})
            run.folder.log("eval").flush()
            run.last_metrics |= {f"held_out_{name}": torch.tensor(value) for name, value in found.items()}


def evaluate_offline(algorithm: OfflineEvaluated, dataset: TransitionDataset) -> dict[str, float]:
    """Return the means over all rows of the algorithm's metrics."""
    sums: dict[str, float] = defaultdict(float)
    for batch in _batches(dataset, algorithm.device):
        for name, mean in algorithm.evaluate_offline(batch).items():
            sums[name] += float(mean) * len(batch["rewards"])
    return {name: total / len(dataset) for name, total in sums.items()}


def evaluate_checkpoint_offline(checkpoint: Checkpoint, options: RunOptions) -> dict[str, float]:
    """Evaluate a saved run without an environment on its held-out data; its dataset must be available again."""
    prepared = prepare_run(config_for_acting(checkpoint.config), options, None, folder=run_dir_of(checkpoint))
    policy, training, memory = (checkpoint.load(part) for part in (POLICY, TRAINING, MEMORY))
    with loading(checkpoint.path):
        prepared.memory.load_state_dict(memory)
        load_algorithm(prepared.algorithm, policy, training["algorithm"])
    assert prepared.setup.held_out is not None  # settings without it are rejected
    return evaluate_offline(cast(OfflineEvaluated, prepared.algorithm), prepared.setup.held_out)


def _batches(dataset: TransitionDataset, device: torch.device) -> Iterator[Batch]:
    for start in range(0, len(dataset), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        yield {
            name: torch.from_numpy(getattr(dataset, name)[rows].copy()).to(device)
            for name in transition_fields(dataset.spaces)
        }


def held_out_evaluation(run: Run) -> list[Callback]:
    """Return the callbacks of an offline run: an evaluation, if some of its data are held out."""
    return offline_evaluation_callbacks(cast(DatasetMemory, run.memory))


def offline_evaluation_callbacks(memory: DatasetMemory) -> list[Callback]:
    return [OfflineEvaluation(memory.held_out)] if memory.held_out is not None else []
