"""Entry point: `python -m benchmarks COMMAND ...`; `python -m benchmarks COMMAND --help` lists its arguments."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks.command_line import UsageError, unknown
from benchmarks.datasets import DatasetError
from benchmarks.peers import PeerError

# Each command is the module of that name, which has `add_arguments(parser)` and `run(args)`. It is imported when it is
# asked for: some import torch, which the others do not need.
COMMANDS = {
    "scores": "final returns over seeds, ours and the peers'",
    "reproduce": "a row of the scores again: inside or outside the interval of the committed seeds",
    "tuning": "other values of a row's settings, on other seeds than those scored",
    "speed": "environment steps per second, ours and the peers'",
    "replay": "time to add to and sample from replay memory",
    "gpu": "updates per second on a CUDA device",
    "gpu_checks": "stacks and tensor environments on a CUDA device: equal numbers, no waits, exact resume",
    "device_loop": "environment steps per second of PPO with environments on the device, beside JAX",
    "whole_runs": "updates per second of whole training runs on a CUDA device",
    "populations": "updates per second of stacked members, and of single runs in turn",
    "atari": "Atari games from pixels on a CUDA device",
    "env_speed": "environment steps per second of processor time, by environment and execution backend",
    "slow_simulator": "environment steps per second of a simulator that sleeps, by execution backend",
    "dynamics": "time to fit MBPO's models, and how a run spends its time",
    "exactness": "stopped and resumed runs equal uninterrupted ones",
    "kills": "runs killed at random moments lose nothing",
    "population_kills": "a stack of runs killed at random moments loses no member",
    "sweep_kills": "a sweep whose command is killed ends with the same table",
    "tune_kills": "a study killed again and again ends as one that was not",
    "tune_search": "the tuner mends a bad learning rate, compared with the config that has a good one",
    "end_to_end": "the example from a sweep to an exported policy, in full: what it left",
    "launchers": "runs on local, SLURM and Ray workers that are killed end as undisturbed ones",
    "packages": "environments of other packages: works, refused with a remedy, exact resume",
    "fuzz": "damaged and hostile files, bad settings and faulty environments are refused",
    "probe": "planted faults in environments are named, healthy environments cause no alarm",
    "trackers": "MLflow, W&B and Trackio hold exactly what a run recorded, also after kills; what they cost",
    "plot_cost": "what drawing figures of a run costs its speed",
    "versions": "speed of two versions of the library, in turn",
    "compile_times": "how long a first run waits for the compiler",
    "export": "every algorithm as an ONNX file: equal actions, and the time of one",
    "fingerprints": "hashes of short runs, equal before and after a change that must change no result",
    "wheel": "the built wheel in empty environments: installs, trains, evaluates",
    "datasets": "record the datasets of the offline and imitation rows",
    "peers": "create the peers' virtual environments",
    "summarize": "write results/summary.json from the result files",
}


def main(arguments: Sequence[str]) -> int:
    listing = "\n".join(f"  {name:14} {text}" for name, text in COMMANDS.items())
    usage = f"usage: python -m benchmarks COMMAND ...\n\n{listing}"
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown(name, list(COMMANDS), "command")
    command = import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=COMMANDS[name])
    command.add_arguments(parser)
    code: int = command.run(parser.parse_args(rest))
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (PeerError, DatasetError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
