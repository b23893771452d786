"""Updates per second on a GPU: ours in each mode, other libraries where they can be imported, and the bare products.

    python -m benchmarks gpu dqn
    python -m benchmarks gpu sac iql --modes eager,cuda_graph

Sampling and the transfer of the batch are part of the time. All contenders of a case learn from the same number of
random transitions and take turns. `benchmarks/gpu_cases.py` holds the cases.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from benchmarks import command_line
from benchmarks.gpu_cases import CASES, MODES, TRANSITIONS, Case, Seconds, build_updater
from benchmarks.launch import SCRIPTS
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_gpu
from benchmarks.results import Session

PARITY_UPDATES = 2  # that are compared tensor by tensor


def describe_device(device: str) -> dict[str, Any]:
    return {
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0], "gymnasium": gym.__version__},
    }


def differences(reached: Mapping[str, torch.Tensor]) -> dict[str, float]:
    return {mode: float((values - reached["eager"]).abs().max()) for mode, values in reached.items()}


def floor_us(case: Case) -> float:
    """Return the time of an update's matrix products, one after another in a CUDA graph."""
    from floor import layers_of_updates, seconds_of_graph, updates_of

    values = case.hparams.model_dump(mode="json")
    layers = layers_of_updates(case.algo, values, case.obs_size, case.action_size)
    seconds: float = seconds_of_graph([(layer, name) for layer in layers for name in layer.products])
    return 1e6 * seconds / float(updates_of(values))


def measure_parity(name: str, case: Case, session: Session, *, device: str) -> None:
    """Add how far each learner is from the first one after the same updates, in the tensor that differs most.

    The distance is a share of the largest number in the tensor.

    Batches, weights and random numbers are those of the same seed. Compiled cells round differently, which may change
    a draw; captured ones have the kernels of eager.
    """
    states = {}
    for mode, build in case.compared.items():
        learner, sample = build(case, device)
        metrics = [learner.update(sample()).metrics for _ in range(PARITY_UPDATES)]
        named = {**learner.policy_state_dict(), **learner.state_dict(), **metrics[-1]}
        states[mode] = {key: value.double().cpu() for key, value in named.items() if isinstance(value, torch.Tensor)}
    for mode, state in states.items():
        shares = {
            key: float((value - states["eager"][key]).abs().max() / states["eager"][key].abs().max().clamp(min=1e-12))
            for key, value in state.items()
        }
        worst = max(shares, key=lambda key: shares[key])
        found = {"tensor": worst, "largest_relative_difference": shares[worst], "after_updates": PARITY_UPDATES}
        session.add({"measurement": "parity", "case": name, "algo": case.algo, "contender": mode, **found})
        print(f"{name}: {mode} differs from eager by {shares[worst]:.1e} of the largest number in {worst}", flush=True)


def measure_case(
    name: str, case: Case, session: Session, *, target_s: float, repeats: int, device: str, modes: Sequence[str]
) -> None:
    """Add the updates/s of each repeat, and how far each mode's parameters are from eager's after the same updates."""
    head = {"case": name, "algo": case.algo, "hparams": case.hparams.model_dump(mode="json")}
    ours = {mode: build_updater(case, mode, device) for mode in modes}
    timers: dict[str, Seconds] = {mode: seconds for mode, (seconds, _) in ours.items()}
    for seconds in timers.values():
        seconds(case.warm_up)
    for other, build in case.others.items():
        try:
            seconds = build(case, device)
            seconds(case.warm_up)
        except Exception as error:  # not installed, or not working here: other libraries may raise anything
            print(f"{name}: without {other} ({error})", flush=True)
        else:
            timers[other] = seconds
    reached = {mode: parameters() for mode, (_, parameters) in ours.items()}
    # Rounding differences between eager and compiled grow with the updates. Captured equals compiled.
    for mode, difference in differences(reached).items() if "eager" in reached else ():
        found = {"largest_difference_to_eager": difference, "after_updates": case.warm_up}
        session.add({"measurement": "difference", **head, "contender": mode, **found})
    units = {who: seconds(case.unit) for who, seconds in timers.items()}
    counts = {who: max(1, round(target_s / unit)) * case.unit for who, unit in units.items()}  # whole calls
    for repeat in range(repeats):
        for who, seconds in timers.items():
            rate = counts[who] / seconds(counts[who])
            session.add({"measurement": "rate", **head, "contender": who, "repeat": repeat, "updates_per_s": rate})


def measure(
    cases: Mapping[str, Case],
    session: Session,
    *,
    target_s: float = 0.5,
    repeats: int = 5,
    device: str = "cuda",
    modes: Sequence[str] = MODES,
) -> None:
    """Measure all cases. `target_s`: about how long a single timing takes."""
    if str(SCRIPTS) not in sys.path:  # the scripts import each other from their own folder
        sys.path.insert(0, str(SCRIPTS))
    floors: set[str] = set()
    for name, case in cases.items():
        if case.algo not in floors and device != "cpu" and case.has_floor:
            session.add({"measurement": "floor", "algo": case.algo, "us_per_update": floor_us(case)})
            floors.add(case.algo)
        own = [mode for mode in modes if mode in case.modes]
        if case.compared:
            measure_parity(name, case, session, device=device)
        measure_case(name, case, session, target_s=target_s, repeats=repeats, device=device, modes=own)
        rates = summarize_gpu(session.lines)[name]
        medians = ", ".join(f"{who} {rate['median']:,.1f}" for who, rate in rates.items())
        print(f"{name}: {medians}", flush=True)


def run_gpu(family: str, out: Path, modes: Sequence[str]) -> None:
    facts = {**describe_device("cuda"), "transitions": TRANSITIONS, "modes": list(modes), **describe_run()}
    session = Session(out, {"task": family, **facts})
    measure(CASES[family], session, modes=modes)
    for case, rates in summarize_gpu(session.lines).items():
        for who, rate in rates.items():
            span = f"({rate['min']:,.1f} to {rate['max']:,.1f})"
            per_update = 1_000.0 / rate["median"]
            print(f"{case + ' ' + who:20s} {rate['median']:10,.1f} updates/s  {span}  {per_update:,.3g} ms per update")
    print(f"written: {out}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="FAMILY", help=f"of {', '.join(CASES)} (default: dqn)")
    parser.add_argument(
        "--modes",
        type=command_line.parse_names,
        metavar="A,B",
        help="only these of eager, compile and cuda_graph; compile takes the longest to build",
    )
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.names or ["dqn"], list(CASES), "family")
    modes = command_line.check_names(args.modes, MODES, "mode")
    if not torch.cuda.is_available():
        print("error: this benchmark needs a CUDA device, and PyTorch finds none", file=sys.stderr)
        return 2
    for name in names:
        run_gpu(name, command_line.result_folder(args) / "gpu" / f"{name}.jsonl", modes)
    return 0
