import subprocess
import sys

ROUNDS = """
import resource
import torch
from rl_training.runtime.memory import keep_freed_memory

def faults_of_a_round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        kept = [torch.ones(2_000_000) for _ in range(4)]
        del kept
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10

faults_of_a_round()
print(faults_of_a_round())
keep_freed_memory()
faults_of_a_round()
print(faults_of_a_round())
"""


def test_freed_memory_is_used_again_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 1_000
    assert kept < 10
