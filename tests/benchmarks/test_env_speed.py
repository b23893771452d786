"""The speed of environments alone: what is counted, and the summary."""

import subprocess
import sys
import time

import pytest
from benchmarks.env_speed import CASES, measure, processor_time, summarize_env_speed


def test_steps_per_second_are_measured_over_resets() -> None:
    assert measure("CartPole-v1", "local_sync", num_envs=2, num_steps=100) > 100


@pytest.mark.process
def test_the_time_of_processes_that_run_is_counted() -> None:
    program = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"
    before, own = processor_time(), time.process_time()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used, used_here = processor_time() - before, time.process_time() - own
        assert child.poll() is None
        child.communicate()
    assert used - used_here > 0.25


def test_the_summary_has_median_and_range() -> None:
    lines = [{"env_id": "a", "backend": "local_sync", "steps_per_s": value} for value in (3.0, 1.0, 2.0)]
    assert summarize_env_speed(lines) == {"a": {"local_sync": {"median": 2.0, "min": 1.0, "max": 3.0}}}


def test_every_case_is_measured_in_this_process() -> None:
    assert all("local_sync" in backends for _, backends in CASES.values())
