"""Entry point: `python -m benchmarks speed dqn ppo`, `scores C1 C23`, `datasets`, `replay`, `exactness`, `gpu`, ..."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.datasets import RECIPES, DatasetError, all_kinds, make_datasets
from benchmarks.launch import KEPT_RUNS
from benchmarks.peers import PeerError, peer_names, peer_python
from benchmarks.replay import CONTENDERS as REPLAY_CONTENDERS
from benchmarks.replay import run_replay
from benchmarks.scores import ROWS, Row, RowRuns, rows_named, run_scores
from benchmarks.speed import TASKS, SpeedTask, run_speed

RESULTS = Path(__file__).resolve().parent / "results"
QUICK_STEPS = 5_000


def parse_seeds(text: str) -> list[int]:
    """Read `0-4`, `0,2,5` or a mix of both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, separator, last = part.partition("-")
        try:
            seeds += range(int(first), int(last or first) + 1) if separator else [int(first)]
        except ValueError:
            raise argparse.ArgumentTypeError(f"seeds are written 0-4 or 0,2,5, got {text!r}") from None
    return seeds


def parse_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Scores and speed, beside other libraries."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--contenders", type=parse_names, metavar="A,B", help="only these contenders")
    shared.add_argument("--steps", type=int, help="env steps per run, instead of the benchmark's own")
    shared.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files (default: %(default)s)")
    shared.add_argument("--quick", action="store_true", help=f"a trial of {QUICK_STEPS} steps at most, in *_quick.json")

    speed = commands.add_parser("speed", parents=[shared], help="env steps/s, contenders in turn on one core")
    speed.add_argument("names", nargs="*", metavar="ALGORITHM", help=f"of {', '.join(TASKS)} (default: all)")
    speed.add_argument("--repeats", type=int, default=3, help="rounds over all contenders (default: %(default)s)")
    speed.add_argument(
        "--acceleration",
        default=None,
        choices=["auto", "eager", "compile"],
        help="how our update step is run (default: auto, with --quick: compile)",
    )
    speed.add_argument(
        "--core", type=int, default=(os.cpu_count() or 1) - 1, help="core to run on (default: %(default)s)"
    )

    replay = commands.add_parser("replay", help="adding to and drawing from memory, contenders in turn on one core")
    replay.add_argument("--contenders", type=parse_names, metavar="A,B", help="only these contenders")
    replay.add_argument("--repeats", type=int, default=5, help="rounds over all contenders (default: %(default)s)")
    replay.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file (default: %(default)s)")
    replay.add_argument(
        "--core", type=int, default=(os.cpu_count() or 1) - 1, help="core to run on (default: %(default)s)"
    )

    scores = commands.add_parser("scores", parents=[shared], help="returns over seeds, ours and the peer's")
    scores.add_argument(
        "names",
        nargs="*",
        metavar="ROW",
        help=f"of {', '.join(ROWS)}, or what several begin with, such as C23 (default: all)",
    )
    scores.add_argument(
        "--seeds", type=parse_seeds, default=None, help="0-4 or 0,2,5 (default: the row's own, with --quick: 0-1)"
    )
    scores.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each (default: %(default)s)")
    scores.add_argument("--device", default="cpu", help="where ours (and d3rlpy) learns (default: %(default)s)")
    scores.add_argument(
        "--matmul-precision",
        choices=("highest", "high", "medium"),
        help="of ours, in files named after it (default: the config's)",
    )

    datasets = commands.add_parser("datasets", help="record what the offline rows learn from; they do it if need be")
    datasets.add_argument("names", nargs="*", metavar="ENV", help=f"of {', '.join(RECIPES)} (default: all)")
    datasets.add_argument("--device", default="cpu", help="where SAC learns (default: %(default)s)")
    datasets.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")

    broken = argparse.ArgumentParser(add_help=False)
    broken.add_argument("--seed", type=int, default=0, help="of the random moments (default: %(default)s)")
    broken.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file (default: %(default)s)")
    exactness = commands.add_parser("exactness", parents=[broken], help="stopped and resumed runs equal unbroken ones")
    exactness.add_argument("--stops", type=int, default=12, help="per kind of run (default: %(default)s)")
    kills = commands.add_parser("kills", parents=[broken], help="runs killed at random moments lose nothing")
    kills.add_argument(
        "--kills", type=int, default=40, help="deaths, at least half while saving (default: %(default)s)"
    )

    gpu = commands.add_parser("gpu", help="on a CUDA device: updates/s of DQN, SAC or IQL in each mode, or Atari games")
    gpu.add_argument(
        "name",
        nargs="?",
        default="dqn",
        choices=["dqn", "sac", "iql", "pong", "breakout"],
        help="(default: %(default)s)",
    )
    gpu.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file (default: %(default)s)")
    gpu.add_argument(
        "--modes",
        type=parse_names,
        metavar="A,B",
        help="sac and iql: only these of eager, compile and cuda_graph (compile takes the longest to build)",
    )
    atari = gpu.add_argument_group("pong and breakout")
    atari.add_argument(
        "--algos", type=parse_names, default=["ppo"], metavar="A,B", help="several run side by side (default: ppo)"
    )
    atari.add_argument(
        "--run", type=Path, help="the runs' place, continued if there are any (default: runs/benchmarks/<game>)"
    )
    atari.add_argument("--seconds", type=float, default=float("inf"), help="stop and save after so long")
    atari.add_argument("--steps", type=int, help="env steps of the whole run, instead of the config's")
    atari.add_argument("--eval-interval", type=int, default=500_000, help="env steps (default: %(default)s)")
    atari.add_argument("--eval-episodes", type=int, default=5, help="per evaluation (default: %(default)s)")
    atari.add_argument("--device", default="cuda", help="(default: %(default)s)")
    atari.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the config, may be repeated"
    )

    dynamics = commands.add_parser("dynamics", help="fits of MBPO's models beside a plain loop, and what a run spends")
    dynamics.add_argument("--repeats", type=int, default=5, help="rounds over all contenders (default: %(default)s)")
    dynamics.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file (default: %(default)s)")
    dynamics.add_argument(
        "--core", type=int, default=(os.cpu_count() or 1) - 1, help="core to run on (default: %(default)s)"
    )

    peers = commands.add_parser("peers", help="make the peers' environments now, instead of when they are needed")
    peers.add_argument("names", nargs="*", metavar="PEER", help=f"of {', '.join(peer_names())} (default: all)")
    return parser


def check_names(names: Sequence[str], known: Sequence[str], kind: str, parser: argparse.ArgumentParser) -> list[str]:
    for name in names:
        if name not in known:
            parser.error(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return list(names or known)


def main() -> int:
    parser = build_parser()
    args = parser.parse_args()
    if args.command == "peers":
        for name in check_names(args.names, peer_names(), "peer", parser):
            print(f"{name}: {peer_python(name)}")
        return 0

    if args.command == "datasets":
        names = check_names(args.names, list(RECIPES), "environment", parser)
        make_datasets(all_kinds(names), device=args.device, jobs=args.jobs)
        return 0

    if args.command == "exactness":
        from benchmarks.exactness import run_exactness  # imports torch, which the others do not need

        return 0 if run_exactness(stops=args.stops, seed=args.seed, out=args.out / "exactness.json") else 1
    if args.command == "kills":
        from benchmarks.kills import run_kills

        return 0 if run_kills(kills=args.kills, seed=args.seed, out=args.out / "kills.json") else 1

    if args.command == "dynamics":
        from benchmarks.dynamics import run_dynamics

        return run_dynamics(repeats=args.repeats, core=args.core, out=args.out / "dynamics.json")

    if args.command == "replay":
        names = check_names(args.contenders or [], list(REPLAY_CONTENDERS), "contender", parser)
        done = run_replay(contenders=names, repeats=args.repeats, core=args.core, out=args.out / "replay.json")
        return 0 if done else 1

    if args.command == "gpu":
        if args.name == "dqn":
            from benchmarks.gpu import run_gpu

            return run_gpu(args.out / "gpu_dqn.json")
        if args.name in ("sac", "iql"):
            from benchmarks import gpu_iql, gpu_sac
            from benchmarks.gpu import MODES
            from benchmarks.gpu_beside import run_family

            family = {"sac": gpu_sac.FAMILY, "iql": gpu_iql.FAMILY}[args.name]
            modes = check_names(args.modes or (), MODES, "mode", parser)
            return run_family(family, args.out / f"gpu_{args.name}.json", modes)
        from benchmarks.atari import AtariSetting, run_atari, run_side_by_side

        folder = args.run or KEPT_RUNS / args.name
        if len(args.algos) > 1:
            return run_side_by_side(args.algos, sys.argv[2:], folder)
        setting = AtariSetting(
            run=folder / args.algos[0],
            algo=args.algos[0],
            game=args.name,
            seconds=args.seconds,
            steps=args.steps,
            eval_interval=args.eval_interval,
            eval_episodes=args.eval_episodes,
            device=args.device,
            overrides=args.set,
        )
        return run_atari(setting, args.out / setting.result_name)

    def steps_of(benchmark: SpeedTask | Row) -> int:
        return args.steps or (min(QUICK_STEPS, benchmark.steps) if args.quick else benchmark.steps)

    suffix = "_quick" if args.quick else ""
    well = True
    if args.command == "speed":
        for name in check_names(args.names, list(TASKS), "algorithm", parser):
            contenders = check_names(args.contenders or (), list(TASKS[name].contenders), "contender", parser)
            well &= run_speed(
                name,
                contenders=contenders,
                repeats=args.repeats,
                steps=steps_of(TASKS[name]),
                acceleration=args.acceleration or ("compile" if args.quick else "auto"),
                core=args.core,
                out=args.out / f"speed_{name}{suffix}.json",
            )
    else:
        names = [row for name in args.names for row in rows_named(name) or [name]]
        suffix = f"_{args.matmul_precision}{suffix}" if args.matmul_precision else suffix
        wanted = [
            RowRuns(
                name=name,
                contenders=check_names(args.contenders or (), list(ROWS[name].contenders), "contender", parser),
                seeds=args.seeds or range(2 if args.quick else ROWS[name].seeds),
                steps=steps_of(ROWS[name]),
                out=args.out / f"scores_{name}{suffix}.json",
                matmul_precision=args.matmul_precision,
            )
            for name in check_names(names, list(ROWS), "row", parser)
        ]
        well = run_scores(wanted, jobs=args.jobs, device=args.device)
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (PeerError, DatasetError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
