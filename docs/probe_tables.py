"""The table of planted faults and healthy environments that `rl-training probe` was tried on."""

from collections.abc import Iterator
from pathlib import Path

from result_cells import RESULTS, read_lines, rows


def probe_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what a probe reports for each planted fault and each healthy environment."""
    lines = read_lines(RESULTS / "probe.jsonl")
    faults = [line for line in lines if "fault" in line]
    healthy = [line for line in lines if "fault" not in line]
    yield from rows(
        ["planted", "in", "named rightly", "findings"],
        *(
            [line["fault"], f"`{line['env_id']}`", "yes" if line["named"] else "**no**", _findings(line)]
            for line in faults
        ),
        *(
            ["nothing", f"`{line['env_id']}`", "false alarm" if line["alarm"] else "", _findings(line)]
            for line in healthy
        ),
    )
    named = sum(line["named"] for line in faults)
    alarms = sum(line["alarm"] for line in healthy)
    seconds = sum(line["processor_seconds"] for line in lines)
    yield ""
    yield f"{named} of {len(faults)} faults named, {alarms} false alarms in {len(healthy)} healthy environments;"
    yield f"{seconds:.0f} s of processor time in all."


def _findings(line: dict[str, list[list[str]]]) -> str:
    return ", ".join(f"{verdict} `{name}`" for verdict, name in line["findings"]) or "none"
