"""Environment steps per second of PPO on the tensor CartPole, all on the device, beside the same work in JAX.

    python -m benchmarks device_loop                       # one CUDA device, 4,096 environments and other sizes
    python -m benchmarks device_loop --sizes 4096,256x32   # 4,096 environments; 32 members with 256 each
    python -m benchmarks device_loop --sizes 4096 --profile
    python -m benchmarks device_loop --device cpu --sizes 16 --iterations 5 --modes eager

Each contender runs in a process of its own: first with an empty cache of compiled programs (cold), then again (warm).
Ours is `train` with logs on. JAX runs if it can be imported.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import command_line
from benchmarks.launch import SCRIPTS
from benchmarks.machine import describe_run
from benchmarks.results import Session

SIZES = "4096,256x32,256,1024,16384"  # environments, or environments x members
STEPS, MINIBATCHES, EPOCHS = 128, 4, 4


def run_script(script: str, setting: dict[str, Any], cache: str, *options: str, timeout: float) -> dict[str, Any]:
    """Run a contender; return its result, or the reason why there is none."""
    environ = os.environ | {"RL_TRAINING_CACHE": cache, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, str(SCRIPTS / script), json.dumps(setting), *options]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {timeout:.0f} s"}
    found: dict[str, Any] = {"process_s": round(time.perf_counter() - started, 2)}
    if options:
        print(done.stdout + (done.stderr[-3_000:] if done.returncode else ""), flush=True)
    if done.returncode:
        return found | {"error": done.stderr.strip()[-1_500:]}
    if options:
        return found
    found.update(json.loads(done.stdout.strip().splitlines()[-1]))
    return found


def variants(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the settings to measure."""
    found = []
    for size in args.sizes:
        for mode in args.modes:
            envs, _, members = size.partition("x")
            setting = {
                "envs": int(envs),
                **({"members": int(members)} if members else {}),
                "steps": STEPS,
                "minibatches": MINIBATCHES,
                "epochs": EPOCHS,
                "device": args.device,
            }
            found.append(setting | {"iterations": args.iterations, "acceleration": mode})
    if args.more:
        found.append(found[0] | {"normalize": "returns"})
        found.append(found[0] | {"deterministic": False})
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes", type=command_line.parse_names, default=SIZES.split(","), metavar="ENVS[xMEMBERS],..."
    )
    parser.add_argument("--modes", type=command_line.parse_names, default=["auto"], help="values of acceleration")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for each process")
    parser.add_argument(
        "--more", action="store_true", help="also with scaled rewards, and without deterministic kernels"
    )
    parser.add_argument("--profile", action="store_true", help="print time and kernels of each phase, measure nothing")
    parser.add_argument("--only", choices=("ours", "jax"), default=None)
    command_line.add_out(parser)


def show(who: str, setting: dict[str, Any], found: dict[str, Any]) -> None:
    extra = {
        name: setting[name] for name in ("members", "normalize", "deterministic", "acceleration") if name in setting
    }
    if "error" in found:
        print(f"{who} {setting['envs']} {extra}: {found['error'][-600:]}", flush=True)
    else:
        rate, ms, ready = found["steps_per_s"], found["ms_per_iteration"], found["ready_s"]
        print(f"{who} {setting['envs']} {extra}: {rate:,.0f} steps/s, {ms:.2f} ms, ready {ready:.1f} s", flush=True)


def run(args: argparse.Namespace) -> int:
    session = Session(command_line.result_folder(args) / "device_loop.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as cache:
        for number, setting in enumerate(variants(args)):
            if args.profile:
                run_script("device_ours.py", setting, cache, "--profile", timeout=args.timeout)
                continue
            for temperature in ("cold", "warm") if number == 0 else ("shared cache",):
                if args.only != "jax":
                    found = run_script("device_ours.py", setting, cache, timeout=args.timeout)
                    session.add({"contender": "ours", "cache": temperature, "setting": setting, **found})
                    show(f"ours ({temperature})", setting, found)
            same_work = setting.get("normalize") is None and setting.get("deterministic") is None
            if args.only != "ours" and same_work and importlib.util.find_spec("jax") is not None:
                found = run_script("device_jax.py", setting, cache, timeout=args.timeout)
                session.add({"contender": "jax", "cache": "none", "setting": setting, **found})
                show("jax", setting, found)
    return 0
