"""Summaries of measurements: speed, replay memory, GPU updates, model fits, exact resume and crash safety."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.launch import TWO_THREADS
from benchmarks.results import Line, named
from benchmarks.spread import spread

FIGURES = ("steps_per_s", "steady_steps_per_s", "learn_s", "compile_s", "share_of_core")
OURS = "ours"


def summarize_speed(lines: Sequence[Line], reference: str) -> dict[str, Any]:
    """Summarise each figure per contender, and its ratio to the reference's run of the same repeat and threads."""
    runs = named(lines, measurement="run")
    others = {
        (run["repeat"], run["threads"]): run for run in runs if run["contender"].removesuffix(TWO_THREADS) == reference
    }
    summary: dict[str, Any] = {}
    for name in dict.fromkeys(run["contender"] for run in runs):
        own = named(runs, contender=name)
        figures = {figure: asdict(spread([run[figure] for run in own])) for figure in FIGURES}
        pairs = [(run, others.get((run["repeat"], run["threads"]))) for run in own]
        for figure in ("steps_per_s", "steady_steps_per_s"):
            ratios = [run[figure] / other[figure] for run, other in pairs if other]
            if ratios:
                figures[f"{figure}_over_{reference}"] = asdict(spread(ratios))
        summary[name] = {"threads": own[0]["threads"], "repeats": len(own), **figures}
    for line in named(lines, measurement="profile"):
        summary.setdefault(line["contender"], {})["time_per_step_us"] = line["time_per_step_us"]
    for line in named(lines, measurement="floor"):
        figures = {name: line[name] for name in ("us_per_update", "our_update_us", "share_of_our_update")}
        summary["matrix products alone"] = figures
    return summary


def summarize_replay(lines: Sequence[Line]) -> dict[str, Any]:
    """Summarise per case, operation and contender the time of a call, and its ratio to ours in the same repeat."""
    lines = [line for line in lines if "failed" not in line]
    ours = {(line["case_name"], line["repeat"]): line for line in named(lines, contender=OURS)}
    summary: dict[str, Any] = {}
    for first in lines:
        case, name = first["case_name"], first["contender"]
        own = named(lines, case_name=case, contender=name)
        for operation in first["times"]:
            figures = summary.setdefault(case, {}).setdefault(operation, {})
            if name in figures:
                continue
            cpu = [line["times"][operation]["cpu_us"] for line in own]
            partners = [ours.get((case, line["repeat"])) for line in own]
            ratios = [
                us / partner["times"][operation]["cpu_us"] for us, partner in zip(cpu, partners, strict=True) if partner
            ]
            figures[name] = {
                "cpu_us": asdict(spread(cpu)),
                "wall_us": asdict(spread([line["times"][operation]["wall_us"] for line in own])),
                "over_ours": asdict(spread(ratios)) if ratios else None,
            }
    return summary


def summarize_gpu(lines: Sequence[Line]) -> dict[str, Any]:
    """Summarise per case the updates/s of each contender, the ratios to eager and to a peer, and the floor's share."""
    runs = named(lines, measurement="rate")
    floors = {line["algo"]: line["us_per_update"] for line in named(lines, measurement="floor")}
    summary: dict[str, Any] = {}
    for case in dict.fromkeys(run["case"] for run in runs):
        own = named(runs, case=case)
        rates = {
            name: [run["updates_per_s"] for run in named(own, contender=name)]
            for name in dict.fromkeys(run["contender"] for run in own)
        }
        references = {name: median(rates[name]) for name in ("eager", "sb3", "d3rlpy") if name in rates}
        floor = floors.get(own[0]["algo"])
        summary[case] = {
            name: {
                **asdict(spread(values)),
                **{f"over_{other}": median(values) / rate for other, rate in references.items()},
                **({"floor_share": 1e-6 * floor * median(values)} if floor else {}),
            }
            for name, values in rates.items()
        }
    return summary


def summarize_dynamics(lines: Sequence[Line]) -> dict[str, Any]:
    """Summarise per device the seconds of a fit, how much longer the plain loop takes, and the shares of a run."""
    summary: dict[str, Any] = {}
    for device in dict.fromkeys(line["device"] for line in lines):
        fits = named(lines, device=device, measurement="fit")
        clock = "wall_s" if device == "cuda" else "cpu_s"  # the work of a GPU is no CPU time
        seconds = {
            name: spread([fit[clock] for fit in named(fits, contender=name)])
            for name in dict.fromkeys(fit["contender"] for fit in fits)
        }
        summary[device] = {
            name: {**asdict(each), "loop_over_this": seconds["loop"].median / each.median}
            for name, each in seconds.items()
        }
        for line in named(lines, device=device, measurement="run"):
            summary[device]["run"] = {name: line[name] for name in ("env_steps", "seconds", "shares", "ms_per_update")}
    return summary


def summarize_exactness(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "cases": len(lines),
        "resumes": sum(line["resumes"] for line in lines),
        "differences": sum(len(line["differences"]) for line in lines),
    }


def summarize_kills(lines: Sequence[Line]) -> dict[str, Any]:
    places: dict[str, int] = {}
    for line in lines:
        for place, count in line.get("kills", {}).items():
            places[place] = places.get(place, 0) + count
    return {
        "kills": sum(places.values()),
        "places": places,
        "checkpoints_not_whole": sum(len(line.get("checkpoints_not_whole", ())) for line in lines),
        "runs_lost": sum("failed" in line for line in lines),
        "runs_that_differ": sum(bool(line.get("differences")) for line in lines),
    }


def summarize_sweep_kills(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "kills": sum(len(line["finished_at_kills"]) for line in lines),
        "runs": sum(line["runs"] for line in lines),
        "files_that_differ": sum(len(line["files_that_differ"]) for line in lines),
    }


def summarize_population_kills(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "kills": sum(line["kills"] for line in lines),
        "members": sum(line["populations"] * line["members"] for line in lines),
        "members_lost": sum(len(line["lost_members"]) for line in lines),
        "differences": sum(len(line["differences"]) for line in lines),
    }


def summarize_tune_kills(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        "kills": sum(len(line["finished_at_kills"]) for line in lines),
        "runs": sum(line["runs"] for line in lines),
        "runs_again": sum(len(line["run_again"]) for line in lines),
        "differences": sum(len(line["differences"]) for line in lines),
        "best_repeats": all(line["best_repeats"] for line in lines),
    }


def summarize_tune_search(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the newest search of each task: the winner on fresh seeds, beside the reference and the given config."""
    names = ("steps", "trials", "iqm", "interval", "reference_iqm", "reference_interval", "given_iqm")
    return {line["task"]: {name: line[name] for name in names} for line in lines}


def summarize_end_to_end(lines: Sequence[Line]) -> dict[str, Any]:
    """Return what the newest full run of the example left."""
    names = ("kills", "starts", "runs", "finished", "films", "trials")
    return {name: lines[-1][name] for name in names} | {"largest_error": lines[-1]["policy"]["max_error"]}


def summarize_trackers(lines: Sequence[Line]) -> dict[str, Any]:
    """Return for each tracker whether it held exactly the steps of its runs, and after how many kills."""
    return {
        line["tracker"]: {
            "version": line["versions"][line["tracker"]],
            "steps": line["steps"],
            "kills": len(line["killed_at"]),
            "outcome": line["outcome"],
        }
        for line in lines
    }


def summarize_tracking_cost(lines: Sequence[Line]) -> dict[str, Any]:
    """Return for each tracker the speed of training with it over that without, pair by pair."""
    found = {}
    for line in lines:
        speeds = line["steps_per_s"]
        ratios = [tracked / alone for tracked, alone in zip(speeds["with"], speeds["without"], strict=True)]
        shares = {"thread_share": asdict(spread(line["thread_share"]))}
        found[line["tracker"]] = {"with_over_without": asdict(spread(ratios)), **shares}
    return found


def summarize_launchers(lines: Sequence[Line]) -> dict[str, Any]:
    return {
        line["launcher"]: {
            "runs": line["finished"],
            "kills": sum(line["kills"].values()),
            "trained_by_at_most": line["trained_by_at_most"],
            "differences": len(line["differences"]),
        }
        for line in lines
    }


def summarize_slow_simulator(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the median environment steps per second of each backend."""
    backends = dict.fromkeys(line["backend"] for line in lines)
    return {
        backend: {"steps_per_s": median(line["steps_per_s"] for line in named(lines, backend=backend))}
        for backend in backends
    }


def summarize_deterministic(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the median updates per second of each algorithm, with and without deterministic kernels."""
    return {
        algo: {
            name: median(line["updates_per_s"] for line in named(lines, algo=algo, deterministic=mode))
            for name, mode in (("fast", False), ("deterministic", True))
        }
        for algo in dict.fromkeys(line["algo"] for line in lines)
    }


def summarize_gpu_checks(lines: Sequence[Line]) -> dict[str, Any]:
    """Return for each check the number of cases, and the names of those that differ."""
    return {
        check: {
            "cases": len(cases),
            "differ": [line["case"] for line in cases if line["differences"]],
        }
        for check in dict.fromkeys(line["check"] for line in lines)
        for cases in [named(lines, check=check)]
    }


def summarize_whole_runs(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the median updates per second of each algorithm's runs, and of its updates alone."""
    runs = [line for line in lines if "error" not in line]
    return {
        algo: {
            "env_id": runs_of[0]["env_id"],
            "device": runs_of[0]["device"],
            **{name: median(line[name] for line in runs_of) for name in ("updates_per_s", "alone_per_s")},
        }
        for algo in dict.fromkeys(line["algo"] for line in runs)
        for runs_of in [named(runs, algo=algo)]
    }


def summarize_populations(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the rates of each population that was trained."""
    names = ("algo", "members", "run", "matmul_precision", "device", "updates", "member_updates_per_s", "ready_s")
    runs = [{name: line[name] for name in names} for line in lines if "error" not in line]
    return {f"{run['algo']} {run['members']} {run['run']} {run['matmul_precision']}": run for run in runs}


def summarize_device_loop(lines: Sequence[Line]) -> dict[str, Any]:
    """Return environment steps per second of PPO on the tensor CartPole, ours and in JAX."""
    runs = [
        {
            "contender": line["contender"],
            "envs": line["setting"]["envs"],
            "members": line["setting"].get("members", 1),
            **{name: line[name] for name in ("steps_per_s", "ms_per_iteration", "ready_s")},
        }
        for line in lines
        if "error" not in line
    ]
    return {f"{run['contender']} {run['envs']} x {run['members']}": run for run in runs}


def summarize_packages(lines: Sequence[Line]) -> dict[str, Any]:
    """Count the environments of other packages by their outcome."""
    outcomes = {line["case"]: line["outcome"] for line in lines}
    return {"environments": len(outcomes), "outcomes": dict(Counter(outcomes.values()))}


def summarize_export(lines: Sequence[Line]) -> dict[str, Any]:
    """Count the exported policies; return the largest error, and how much faster onnxruntime acts than `predict`."""
    ratios = [line["predict_us"] / line["onnx_us"] for line in lines]
    return {
        "policies": len(lines),
        "largest_error": max(line["max_error"] for line in lines),
        "predict_over_onnx": asdict(spread(ratios)),
    }


def summarize_probe(lines: Sequence[Line]) -> dict[str, int]:
    """Count the planted faults, those that were named, and the alarms in healthy environments."""
    faults = [line for line in lines if "fault" in line]
    healthy = [line for line in lines if "fault" not in line]
    return {
        "faults": len(faults),
        "named": sum(line["named"] for line in faults),
        "healthy": len(healthy),
        "false_alarms": sum(line["alarm"] for line in healthy),
    }


def summarize_fuzz(lines: Sequence[Line]) -> dict[str, Any]:
    """Count cases and outcomes, and those that were wrong."""
    kinds = sorted({line["kind"] for line in lines})
    return {
        "cases": len(lines),
        "wrong": sum(not line["right"] for line in lines),
        "outcomes": dict(Counter(line["outcome"] for line in lines)),
        "kinds": {kind: dict(Counter(line["outcome"] for line in named(lines, kind=kind))) for kind in kinds},
    }
