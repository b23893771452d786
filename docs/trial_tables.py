"""Tables of what was tried out: resuming, other packages, launchers, Pythons, the tuner, a whole workflow."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from result_cells import RESULTS, Entry, file_link, read_lines, rows, steps_text, summary


def exactness_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    exact, fuzz = summary()["exactness"], summary()["fuzz"]
    resumes = f"{exact['resumes']} resumes in {exact['cases']} cases"
    yield from rows(
        ["check", "made", "result"],
        [
            f"{file_link(RESULTS / 'exactness.jsonl', folder)}: stop and resume",
            resumes,
            f"{exact['differences']} differences",
        ],
        *(
            [
                f"{file_link(RESULTS / f'{name}.jsonl', folder)}: SIGKILL, {device}",
                f"{kills['kills']} kills",
                f"{kills['runs_lost']} runs lost, {kills['runs_that_differ']} that differ",
            ]
            for name, device in (("kills", "CPU"), ("kills_cuda", "GPU"))
            for kills in [summary()[name]]
        ),
        [
            f"{file_link(RESULTS / 'fuzz.jsonl', folder)}: damaged and hostile files, bad settings, faulty envs",
            f"{fuzz['cases']:,} cases",
            f"{fuzz['wrong']} wrong outcomes",
        ],
    )


def packages_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """List the environments of other packages, with the seeds of a learning run in one row."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(RESULTS / "packages.jsonl"):
        cases.setdefault(line["case"], []).append(line)
    yield from rows(
        ["package", "environment", "algorithm", "outcome", "resume said", "resume was"],
        *(_package_cells(lines) for lines in cases.values()),
    )


def _package_cells(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    first = lines[0]
    outcome = first["outcome"]
    if outcome == "learns":
        returns = ", ".join(f"{line['return']:.3f}" for line in lines)
        outcome = f"learns: return {returns} after {steps_text(first['steps'])} steps (seeds 0-{len(lines) - 1})"
    elif outcome == "refused":
        outcome = f"refused: {first['message'].rpartition('could not be built: ')[2].partition('(in ')[0].strip()}"
    elif "remedy" in first:
        (remedy,) = (name for name, value in first["remedy"].items() if value)
        outcome = f"refused; works with `{remedy}`"
    exact = {True: "exact", False: "not exact", None: ""}[first.get("resume_exact")]
    return [
        first["package"],
        f"`{first['env_id']}`",
        f"`{first['algo']}`",
        outcome,
        claim(first.get("resume_said", ""), first.get("resume_said_later", "")),
        exact,
    ]


def claim(said: str, later: str) -> str:
    """Shorten what `metadata.json` said before training and after a resume: `exact, 8 of 8 trials`."""
    trials = re.search(r"\d+ of \d+ trials", said)
    head = f"{said.partition(':')[0]}{f', {trials[0]}' if trials else ''}"
    return head if said.startswith("exact") == later.startswith("exact") else f"{head}; later: {later}"


def launchers_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what became of six runs per launcher whose workers were killed."""
    yield from rows(
        ["launcher", "runs that ended", "workers killed", "training processes killed", "starts of runs", "differences"],
        *(
            [
                f"`{line['launcher']}`",
                f"{line['finished']} of {line['runs']}",
                str(line["kills"].get("worker", 0)),
                str(line["kills"].get("trainer", 0)),
                str(line["starts"]),
                str(len(line["differences"])),
            ]
            for line in read_lines(RESULTS / "launchers.jsonl")
        ),
    )


def pythons_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show with which Pythons the built wheel was installed into an empty environment and used."""
    yield from rows(
        ["Python", "wheel in an empty environment", "PyTorch", "Gymnasium", "NumPy"],
        *(
            [python, found["outcome"], *(found.get(name, "") for name in ("torch", "gymnasium", "numpy"))]
            for python, found in summary()["wheel"].items()
        ),
    )


def end_to_end_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what the newest full run of examples/end_to_end.py left."""
    (line,) = read_lines(RESULTS / "end_to_end.jsonl")
    yield from rows(
        ["step", "result"],
        [
            "sweep",
            f"{line['finished']} of {line['runs']} runs finished after {line['kills']} kills, {line['starts']} starts",
        ],
        *(
            [f"score of `{row['algo']}` on {row['env_id']}", f"{float(row['mean']):.1f} ± {float(row['std']):.1f}"]
            for row in line["scores"]
        ),
        ["report", f"{line['report_bytes'] / 1e6:.1f} MB with {line['films']} films"],
        [f"study of `{line['tuned']['algo']}`", f"{line['trials']} trials; {line['verdict'][-2]}"],
        ["exported policy", f"{line['policy']['pairs']} pairs equal, largest error {line['policy']['max_error']:.0e}"],
    )


def tune_search_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what the tuner found from a learning rate of 0.1: interquartile means over ten fresh seeds."""

    def iqm(found: Entry, start: str) -> str:
        low, high = found[f"{start}interval"]
        return f"{found[f'{start}iqm']:,.1f} [{low:,.1f}, {high:,.1f}]"

    yield from rows(
        ["task", "env steps of a run", "trials", "config found", "config with the default learning rate"],
        *(
            [task, f"{found['steps']:,}", str(found["trials"]), iqm(found, ""), iqm(found, "reference_")]
            for task, found in summary()["tune_search"].items()
        ),
    )
