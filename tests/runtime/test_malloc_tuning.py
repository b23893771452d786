import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl_training.runtime.malloc_tuning import keep_freed_memory

ROUNDS = """
import resource
import torch
from rl_training.runtime.malloc_tuning import keep_freed_memory

def page_faults_of_rounds():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        kept = [torch.ones(2_000_000) for _ in range(4)]
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
page_faults_of_rounds()
print(page_faults_of_rounds())
"""


@pytest.mark.process
def test_freed_memory_is_used_again_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # given back, it is up to 78,000


def test_the_limits_are_set_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    mallopt, calls = ctypes.CDLL(None).mallopt, []

    def note(name: int, value: int) -> None:
        calls.append((name, value, mallopt(name, value)))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=note))
    keep_freed_memory()
    assert calls == [(-1, 2**29, 1), (-3, 2**25, 1)]  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD; 1: done


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    keep_freed_memory()
