"""TensorBoard: a view of metrics.jsonl and eval.jsonl, with the config and the hyperparameters."""

import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger("rl_training")


class TensorBoard(Callback):
    """Shows every record of the logs once, also after a death and a resume. Stands after those that write the logs."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None
        self._new_records: list[Mapping[str, Any]] = []

    def on_start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder.tensorboard
        is_new = not any(folder.glob("events.*"))
        # Hides what an earlier process wrote from this step on; what the logs have of it is written again below.
        self._writer = SummaryWriter(str(folder), purge_step=run.step)
        with self._without_errors():
            if is_new or run.step == 0:
                _write_settings(self._writer, run.config)
            for name in ("metrics", "eval"):
                records = read_json_lines(run.folder.log(name).path)
                self._new_records += [record for record in records if is_new or record["step"] >= run.step]
                run.folder.log(name).on_write = self._new_records.append
        self.on_step(run)

    def on_step(self, run: Run) -> None:
        if self._new_records and self._writer is not None:
            with self._without_errors():
                for tag, value, step in scalars(self._new_records):
                    self._writer.add_scalar(tag, value, step)
            self._new_records.clear()

    def on_end(self, run: Run) -> None:
        self.on_step(run)
        if self._writer is not None:
            with self._without_errors():
                self._writer.close()

    @contextlib.contextmanager
    def _without_errors(self) -> Iterator[None]:
        """Stop writing at an error of the system: the logs have everything, and this is only a view of them."""
        try:
            yield
        except OSError as error:
            log.warning("TensorBoard's files cannot be written any more: %s", error)
            self._writer = None


def scalars(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, float, int]]:
    """Return tag, value and step of what TensorBoard shows of records of metrics.jsonl and eval.jsonl."""
    found: list[tuple[str, float, int]] = []
    evaluations: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        step = record["step"]
        if "metrics" in record:
            # A name with a group is that of a callback (`run.log`).
            named = {name if "/" in name else f"train/{name}": x for name, x in record["metrics"].items()}
            found += [(tag, value, step) for tag, value in named.items()]
            if "steps_per_s" in record:
                found.append(("speed/steps_per_s", record["steps_per_s"], step))
        elif "held_out" in record:
            found += [(f"eval/{name}", value, step) for name, value in record["held_out"].items()]
        else:
            evaluations[step].append(record)
    for step, episodes in evaluations.items():
        returns, lengths = ([episode[key] for episode in episodes] for key in ("return", "length"))
        found.append(("eval/return_mean", float(np.mean(returns)), step))
        found.append(("eval/return_std", float(np.std(returns)), step))
        found.append(("eval/length_mean", float(np.mean(lengths)), step))
    return found


def _write_settings(writer: "SummaryWriter", config: TrainConfig) -> None:
    """Write the config as text and its values as hyperparameters, by which TensorBoard compares runs."""
    from torch.utils.tensorboard.summary import hparams

    writer.add_text("config", f"```\n{config.to_yaml()}```", 0)
    values = config.model_dump(mode="json")
    values |= values.pop("algo_kwargs")
    plain = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in values.items()
    }
    # Not `add_hparams`, which starts a second run and needs the final score.
    for summary in hparams(plain, {"eval/return_mean": 0.0}):
        writer._get_file_writer().add_summary(summary)
