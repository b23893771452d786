"""The processor time of tests is added up by file and by algorithm."""

import pytest

from processor_times import ProcessorTimes, by_algorithm, by_file, processor_seconds

SECONDS = {
    "tests/test_sac_update.py::test_an_update": 1.0,
    "tests/test_sac_update.py::test_another[td3-box]": 2.0,
    "tests/algorithms/test_conformance.py::test_acts[sac]": 4.0,
    "tests/test_docs.py::test_links": 8.0,
}


def test_seconds_are_added_up_by_file() -> None:
    assert by_file(SECONDS) == {
        "tests/test_sac_update.py": 3.0,
        "tests/algorithms/test_conformance.py": 4.0,
        "tests/test_docs.py": 8.0,
    }


def test_a_test_counts_for_the_algorithm_of_its_file_and_for_those_of_its_parameters() -> None:
    assert by_algorithm(SECONDS) == {"sac": 1.0 + 2.0 + 4.0, "td3": 2.0}


def test_each_phase_is_charged_with_the_time_since_the_one_before() -> None:
    times = ProcessorTimes()
    start = processor_seconds()
    while processor_seconds() < start + 0.02:
        pass
    for _ in range(2):
        phase = times.pytest_runtest_makereport()
        next(phase)
        report = pytest.TestReport("a test", ("", 0, ""), {}, "passed", None, "call")
        with pytest.raises(StopIteration) as end:
            phase.send(report)
        assert end.value.value is report
        times.pytest_runtest_logreport(report)
    assert 0.02 <= times.seconds["a test"] < 0.04  # the second phase took nearly none
