"""Which planted faults `rl-training probe` names, and whether it raises an alarm in healthy environments.

    python -m benchmarks probe

A fault counts as named if its name is the first finding that the environment without the fault does not have, too.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.command_line import add_out, result_folder
from benchmarks.machine import describe_run
from benchmarks.probe_faults import FAULTS, HEALTHY
from benchmarks.results import Line, Session
from rl_training.envs.factory import RegisteredEnv
from rl_training.probing.probe import probe_env

CALL_TIMEOUT = 3.0  # seconds; one fault is a step that never returns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    session = Session(result_folder(args) / "probe.jsonl", describe_run())
    start = time.perf_counter()
    normal: dict[str, set[str]] = {}
    for env_id in HEALTHY:
        line = examine(RegisteredEnv(env_id))
        normal[env_id] = {name for _, name in line["findings"]}
        alarm = any(verdict == "fix" for verdict, _ in line["findings"])
        session.add({"env_id": env_id, **line, "alarm": alarm})
        print(f"  {env_id}: {line['findings']}", flush=True)
    for fault, planted in FAULTS.items():
        line = examine(planted)
        named = is_named(planted.name, line, normal[planted.env_id])
        session.add({"fault": fault, "env_id": planted.env_id, "expected": planted.name, **line, "named": named})
        print(f"  {fault}: {'named' if named else 'not named'}, {line['findings']}", flush=True)
    return report(session.lines, time.perf_counter() - start)


def examine(make_env: Callable[[], Any]) -> Line:
    start, processor_start = time.perf_counter(), time.process_time()
    findings = probe_env(make_env, call_timeout=CALL_TIMEOUT)
    return {
        "findings": [(finding.verdict, finding.name) for finding in findings],
        "seconds": round(time.perf_counter() - start, 2),
        "processor_seconds": round(time.process_time() - processor_start, 2),
    }


def is_named(expected: str, line: Line, normal: set[str]) -> bool:
    """Return whether the first finding that the healthy environment does not have is the expected one."""
    new = [name for _, name in line["findings"] if name not in normal]
    return new[:1] == [expected]


def report(lines: list[Line], seconds: float) -> int:
    named = [line["named"] for line in lines if "fault" in line]
    alarms = [line["env_id"] for line in lines if line.get("alarm")]
    print(f"{sum(named)} of {len(named)} faults named, false alarms: {alarms or 'none'}, {seconds:.0f} s")
    return 0 if sum(named) >= 25 / 30 * len(named) and not alarms else 1
