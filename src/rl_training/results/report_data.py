"""The raw numbers of a report: a block of JSON inside the page, which is read back as it was written.

read_report(Path("report.html"))["runs"]
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rl_training.core.durable_files import read_text, sha256
from rl_training.core.version import __version__
from rl_training.errors import ConfigError
from rl_training.results.run_record import RunRecord

FILES = ("config.yaml", "eval.jsonl", "result.json")  # whose checksums the report holds
_FORMAT = 1
_DATA_ID = "data"
_MAX_BYTES = 1_000_000_000  # of a report that is read back
_COLUMNS = ("run", "group", "algo", "env_id", "seed", "status", "record", "step", "value")


def checksums(run: RunRecord) -> dict[str, str]:
    return {name: sha256(run.path / name) for name in FILES if (run.path / name).is_file()}


def data_block(created: str, runs: Sequence[tuple[str, str, RunRecord]], *, with_training: bool) -> str:
    """Return the raw numbers as a block that browsers neither show nor run.

    `runs`: the name of each run in the page, its group, and the run; `with_training`: also training metrics.
    """
    records = [
        {
            "run": name,
            "group": group,
            "algo": run.algo,
            "env_id": run.env_id,
            "seed": run.seed,
            "status": run.status,
            "sha256": checksums(run),
            "records": {
                record: {"steps": list(values), "values": list(values.values())}
                for record, values in run.records.items()
                if with_training or record.startswith("eval/")
            },
        }
        for name, group, run in runs
    ]
    data = {"format": _FORMAT, "rl-training": __version__, "created": created, "runs": records}
    text = json.dumps(data, separators=(",", ":"))
    # Both would change where the block ends: `</script>` and `<!--`.
    text = text.replace("</", "<\\/").replace("<!", "<\\u0021")
    return f'<script type="application/json" id="{_DATA_ID}">{text}</script>'


class _DataFinder(HTMLParser):
    """Collects the text of the block with the raw numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script" and ("id", _DATA_ID) in attrs

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.parts.append(data)


def read_report(path: Path) -> dict[str, Any]:
    """Return the raw numbers of a report."""
    finder = _DataFinder()
    try:
        finder.feed(read_text(path, _MAX_BYTES))
        data: dict[str, Any] = json.loads("".join(finder.parts))
        if data["format"] != _FORMAT or not all(map(_is_run, data["runs"])):
            raise ValueError
    except FileNotFoundError:
        raise ConfigError(f"there is no report {str(path)!r}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{path} is not a report of rl-training {__version__}, or it is damaged") from None
    return data


def _is_run(run: Mapping[str, Any]) -> bool:
    """Return whether the raw numbers of a run are whole; raises if they have another form."""
    records = [(len(numbers["steps"]), len(numbers["values"])) for numbers in run["records"].values()]
    named = all(isinstance(run[name], str | int) for name in _COLUMNS[:6])
    return named and isinstance(run["sha256"], dict) and all(steps == values for steps, values in records)


def report_as_csv(path: Path) -> str:
    """Return the raw numbers of a report as CSV: one line per recorded number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in read_report(path)["runs"]:
        head = [run[name] for name in _COLUMNS[:6]]
        for record, numbers in run["records"].items():
            for step, value in zip(numbers["steps"], numbers["values"], strict=True):
                writer.writerow([*head, record, step, value])
    return text.getvalue()
