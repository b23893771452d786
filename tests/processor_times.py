"""`pytest --processor-times`: the processor time of tests and of the processes that they start."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Mapping
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import pytest

from rl_training.experiment.registry import registry

NUM_LINES = 30


def processor_seconds() -> float:
    """Return the processor time of this process and of its processes that have ended."""
    return sum(getrusage(who).ru_utime + getrusage(who).ru_stime for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def by_file(seconds: Mapping[str, float]) -> defaultdict[str, float]:
    """Add up the seconds of tests, by file."""
    files = defaultdict[str, float](float)
    for test, value in seconds.items():
        files[test.partition("::")[0]] += value
    return files


def by_algorithm(seconds: Mapping[str, float]) -> defaultdict[str, float]:
    """Add up the seconds of tests whose parameters name an algorithm, or whose file does."""
    algorithms = defaultdict[str, float](float)
    for test, value in seconds.items():
        file, _, name = test.partition("::")
        words = {
            *re.split(r"[\[\]\-]", name),
            *re.findall(r"test_(\w+)_(?:update|reference_script|trainer_smoke)", file),
        }
        for algorithm in words & registry().keys():
            algorithms[algorithm] += value
    return algorithms


class ProcessorTimes:
    """Measures each phase of a test where it runs, and prints sums where the results are shown."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._last = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_seconds()
        vars(report)["processor_seconds"] = now - self._last  # workers send it with the report
        self._last = now
        return report

    def pytest_collection_finish(self) -> None:
        self._last = processor_seconds()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"{sum(self.seconds.values()):.0f} s of processor time in tests")
        for title, sums in (
            ("by algorithm", by_algorithm(self.seconds)),
            ("by file", by_file(self.seconds)),
            ("by test", self.seconds),
        ):
            terminalreporter.write_line(f"{title}:")
            for name, value in sorted(sums.items(), key=lambda item: -item[1])[:NUM_LINES]:
                terminalreporter.write_line(f"{value:8.1f} s  {name}")
