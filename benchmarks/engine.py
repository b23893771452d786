"""The engine of the score benchmark: what a row is, how ours and a peer are run, and what one run's line says.

Several runs at a time, one thread and one core each. A finished run is kept under `runs/benchmarks/` and used again as
long as its setting, the library's source and the peer's versions are unchanged, so the same command continues an
interrupted benchmark.

`stacked` rows train all seeds of one of our contenders together, as a stacked population. Each member is then
played from its checkpoints as if it had been trained alone, and has a line of its own.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.datasets import dataset_facts, make_datasets
from benchmarks.launch import KEPT_RUNS, OURS, Contender, ContenderError, FreeCores, run_contender
from benchmarks.machine import describe_run, source_digest
from benchmarks.peers import REQUIREMENTS, ROOT
from benchmarks.results import Line, append_line, named, read_lines, write_json

GPUS = "CUDA_VISIBLE_DEVICES"
PRECISIONS = {"highest": "-float32", "high": "-tf32", "medium": "-bfloat16"}  # and the ending of the result file's name


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another library in a row, with its hyperparameters. `algo`: which algorithm, where its script holds several."""

    contender: Contender
    hparams: dict[str, Any]
    num_envs: int = 1
    algo: str | None = None


@dataclass(frozen=True, kw_only=True)
class Control:
    """Another of our contenders in a row, to compare with. `config`: "" for the defaults; `hparams`: changes to it."""

    config: str
    hparams: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One algorithm on one task, with a shipped config or, where `config` is "", with the defaults of `algo`.

    `hparams`: changes to the config, where tasks share one. `env_kwargs`: arguments of `env_id`. `tensor_env_id`: the
    same task as a tensor environment, in which seeds that are trained together learn; they are played in `env_id`.
    `dataset`: what an offline algorithm learns from, such as pendulum/medium; steps are then gradient steps.
    `expert`: a dataset to imitate in the environment. `threshold`: the return for which the first step is reported at
    which training held it over three evaluations. `goal`: the return the target asks of each seed, where it differs.
    `by`: a step at which the target names a return during training. `window`: with more than one, the target means
    the mean of that many evaluations during training: the last ones, and those up to `by`. `chosen_on`: the seeds the
    settings were chosen on, "" where unknown. `changed_since`: what the library does differently since the scores were
    taken, "" if they are current; it goes when the row is run again. `published`: scores of others that are not run
    here, with the source.
    """

    config: str
    env_id: str
    steps: int
    target: str
    algo: str | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tensor_env_id: str | None = None
    controls: Mapping[str, Control] = field(default_factory=dict)
    peers: Sequence[Peer] = ()
    dataset: str | None = None
    expert: str | None = None
    threshold: float | None = None
    goal: float | None = None
    by: int | None = None
    window: int = 1
    track_every: int = 0
    eval_episodes: int = 20
    track_episodes: int = 10
    seeds: int = 5
    chosen_on: str = ""
    changed_since: str = ""
    published: Mapping[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> dict[str, Control]:
        return {"ours": Control(config=self.config, hparams=self.hparams), **self.controls}

    @property
    def contenders(self) -> dict[str, Contender]:
        ours = {name: replace(OURS, name=name, hparams=control.hparams) for name, control in self.ours.items()}
        return ours | {peer.contender.name: peer.contender for peer in self.peers}

    @property
    def file(self) -> str | None:
        """The dataset that is learned from or imitated."""
        return self.dataset or self.expert

    def setting(self, contender: str, seed: int, *, steps: int) -> dict[str, Any]:
        """Return what the script of a contender receives; only what differs from the harness's defaults."""
        peer = next((peer for peer in self.peers if peer.contender.name == contender), None)
        vector = {} if peer is None or peer.num_envs == 1 else {"num_envs": peer.num_envs}
        algo_name = self.algo if peer is None else peer.algo
        algo = {} if algo_name is None else {"algo": algo_name}
        facts = dataset_facts(self.file) if self.file else {}
        source = {"dataset": facts["path"], "dataset_sha256": facts["sha256"]} if facts else {}
        return {
            **vector,
            **algo,
            **source,
            **({"env_kwargs": dict(self.env_kwargs)} if self.env_kwargs else {}),
            "mode": "score",
            "env_id": self.env_id,
            "steps": steps,
            "seed": seed,
            "threads": 1,
            "hparams": {} if peer is None else peer.hparams,
            "config": (self.ours[contender].config or None) if peer is None else None,
            "eval_seeds": list(range(1_000_000, 1_000_000 + self.eval_episodes)),
            "track_every": self.track_every,
            "track_seeds": list(range(2_000_000, 2_000_000 + self.track_episodes)),
        }


@dataclass(frozen=True, kw_only=True)
class RowRuns:
    """The requested runs of a row, and the folder of its results."""

    name: str
    row: Row
    contenders: Sequence[str]
    seeds: Sequence[int]
    steps: int
    out: Path
    matmul_precision: str | None = None  # of our contenders; None: the config's
    kind: str = "scores"  # the folder below `out`
    stacked: bool = False  # the seeds of our contenders are trained together

    @property
    def file(self) -> Path:
        precision = PRECISIONS[self.matmul_precision] if self.matmul_precision else ""
        return self.out / self.kind / f"{self.name}{precision}.jsonl"

    @property
    def cells(self) -> list[tuple[str, int]]:
        return [(contender, seed) for seed in self.seeds for contender in self.contenders]

    def setting(self, contender: str, seed: int, device: str) -> dict[str, Any]:
        setting = self.row.setting(contender, seed, steps=self.steps)
        if device != "cpu" and self.row.contenders[contender].any_device:
            setting["device"] = device
        if self.matmul_precision and contender in self.row.ours:
            setting["matmul_precision"] = self.matmul_precision
        if self.is_stacked(contender) and self.row.tensor_env_id:
            setting |= {"training_env_id": self.row.tensor_env_id, "execution_backend": "tensor"}
        return setting

    def is_stacked(self, contender: str) -> bool:
        return self.stacked and contender in self.row.ours


def code_of(contender: Contender) -> str:
    """Return what a run depends on besides its setting: the versions of a peer, or a digest of our source."""
    return (REQUIREMENTS / f"{contender.peer}.txt").read_text() if contender.peer else source_digest()


def kept_at(contender: Contender, setting: Mapping[str, Any], row_name: str, stem: str) -> Path:
    """Return where what comes of exactly this setting is kept; `stem`: how its name begins."""
    asked = [contender.apply(setting), code_of(contender)]
    identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    return KEPT_RUNS / row_name / contender.name / f"{stem}_{identity}"


def result_file(contender: Contender, setting: Mapping[str, Any], row_name: str) -> Path:
    return kept_at(contender, setting, row_name, f"seed{setting['seed']}").with_suffix(".json")


def run_or_recall(
    contender: Contender, setting: Mapping[str, Any], row_name: str, free_cores: FreeCores
) -> dict[str, Any]:
    """Return the kept result of exactly this run, or run it and keep the result."""
    path = result_file(contender, setting, row_name)
    if path.is_file():
        return {**json.loads(path.read_text()), "kept": True}
    result = free_cores.run(contender, contender.apply(setting))
    result["code"] = None if contender.peer else code_of(contender)
    write_json(path, result)
    return {**result, "kept": False}


class Members:
    """The runs of one of our contenders with all seeds of a row, trained together."""

    def __init__(self, wanted: RowRuns, contender: str, device: str) -> None:
        # Played on the CPU, as a run that was trained alone would be if there were no GPU: small networks.
        self.wanted, self.contender = wanted, replace(wanted.row.contenders[contender], environ={GPUS: ""})
        alone = {seed: wanted.setting(contender, seed, device) for seed in wanted.seeds}
        together = {**alone[wanted.seeds[0]], "mode": "population", "seeds": list(wanted.seeds)}
        self._folder = kept_at(self.contender, together, wanted.name, "population")
        place = {"population": os.path.relpath(self._folder, ROOT)}
        self.settings = {seed: setting | place for seed, setting in alone.items()}
        self._together, self._left = together | place, set(wanted.seeds)

    def train(self) -> None:
        """Train all members, or continue to, unless their results are kept."""
        files = [result_file(self.contender, setting, self.wanted.name) for setting in self.settings.values()]
        if not all(file.is_file() for file in files):
            run_contender(self.wanted.row.contenders[self.contender.name], self._together)

    def note_result(self, seed: int) -> None:
        """Remove the checkpoints when the last member has its result."""
        self._left.discard(seed)
        if not self._left:
            shutil.rmtree(self._folder, ignore_errors=True)


def score_line(wanted: RowRuns, contender: str, result: Mapping[str, Any], facts: Mapping[str, Any]) -> Line:
    """Build the line of one run. `score`: mean return of the final policy; `curve`: mean returns during training."""
    row, setting = wanted.row, result["setting"]
    hparams = dict(result.get("resolved_config") or {"num_envs": setting.get("num_envs", 1), **setting["hparams"]})
    hparams.pop("seed", None)
    for values in (hparams, hparams.get("algo_kwargs", {})):
        for name in values.keys() & {"dataset_path", "expert_dataset_path"}:
            values[name] = setting["dataset"]  # relative to the repository
    sources = {kind: name for kind, name in (("dataset", row.dataset), ("expert", row.expert)) if name}
    described = {kind: dataset_facts(name) for kind, name in sources.items()}
    return {
        "row": wanted.name,
        "contender": contender,
        "seed": setting["seed"],
        "steps": setting["steps"],
        "score": fmean(result["returns"]),
        "returns": result["returns"],
        "curve": {
            "steps": [evaluation["step"] for evaluation in result["tracked"]],
            "returns": [fmean(evaluation["returns"]) for evaluation in result["tracked"]],
        },
        **{name: result[name] for name in ("env_steps", "updates", "learn_s", "stacked") if name in result},
        "date": result.get("date"),
        "device": setting.get("device", "cpu"),
        "versions": result["versions"],
        "code": result["code"],
        **{name: facts[name] for name in ("command", "machine", "source")},
        "hparams": hparams,
        **{kind: {k: v for k, v in each.items() if k != "path"} for kind, each in described.items()},
    }


def run_scores(wanted: Sequence[RowRuns], *, jobs: int, device: str = "cpu") -> bool:
    """Run what is missing, `jobs` runs at a time, and append it to the result files. Return whether no run failed.

    `device`: where ours and d3rlpy train; other peers stay on the CPU. Populations train one after the other, beside
    the runs.
    """
    make_datasets([each.row.file for each in wanted if each.row.file], device=device, jobs=jobs)
    for each in wanted:
        size = f"{each.steps} steps, {len(each.cells)} runs, {jobs} at a time"
        print(f"{each.kind} {each.name}: {each.row.env_id}, {size}", flush=True)
    return ScoreRuns(wanted, jobs, device).run()


class ScoreRuns:
    """Makes the requested runs and reports each as soon as it has ended."""

    def __init__(self, wanted: Sequence[RowRuns], jobs: int, device: str) -> None:
        self._facts, self._cores, self._failures = describe_run(), FreeCores(jobs), 0
        self._pool, self._trainer = ThreadPoolExecutor(jobs), ThreadPoolExecutor(1)
        self._training: dict[Future[None], Members] = {}
        self._running: dict[Future[dict[str, Any]], tuple[RowRuns, str, int, Members | None]] = {}
        for each in wanted:
            for name in filter(each.is_stacked, each.contenders):
                members = Members(each, name, device)
                self._training[self._trainer.submit(members.train)] = members
            for name, seed in each.cells:
                if not each.is_stacked(name):
                    self._start(each, each.row.contenders[name], each.setting(name, seed, device))

    def run(self) -> bool:
        """Return whether no run failed."""
        try:
            while self._training or self._running:
                unfinished: list[Future[Any]] = [*self._training, *self._running]
                done = wait(unfinished, return_when=FIRST_COMPLETED).done
                for future in filter(done.__contains__, unfinished):  # in the order in which they were started
                    if future in self._training:
                        self._play(self._training.pop(future), future.exception())
                    else:
                        self._report(future)
        finally:
            for pool in (self._trainer, self._pool):
                pool.shutdown(cancel_futures=True)  # on Ctrl-C, do not start the runs that still wait
        return self._failures == 0

    def _start(
        self, each: RowRuns, contender: Contender, setting: Mapping[str, Any], members: Members | None = None
    ) -> None:
        future = self._pool.submit(run_or_recall, contender, setting, each.name, self._cores)
        self._running[future] = (each, contender.name, setting["seed"], members)

    def _play(self, members: Members, error: BaseException | None) -> None:
        """Start the runs that play the members of a population."""
        if error is not None and not isinstance(error, ContenderError):
            raise error
        for seed, setting in members.settings.items():
            if error is None:
                self._start(members.wanted, members.contender, setting, members)
            else:
                self._note_failure(members.wanted, members.contender.name, seed, error)

    def _report(self, future: Future[dict[str, Any]]) -> None:
        each, contender, seed, members = self._running.pop(future)
        try:
            result = future.result()
        except ContenderError as error:
            self._note_failure(each, contender, seed, error)
            return
        add_line(each.file, score_line(each, contender, result, self._facts))
        if members is not None:
            members.note_result(seed)
        kept = " (kept)" if result["kept"] else ""
        print(f"  {each.name} {contender} seed {seed}: {fmean(result['returns']):.2f}{kept}", flush=True)

    def _note_failure(self, each: RowRuns, contender: str, seed: int, error: BaseException) -> None:
        self._failures += 1
        append_line(each.file, {"row": each.name, "contender": contender, "seed": seed, "failed": str(error)})
        print(f"  {each.name} {contender} seed {seed}: FAILED: {error}", flush=True)


def add_line(file: Path, line: Line) -> None:
    """Append a line unless the file already has it: a kept run may be reported by several commands."""
    if not named(read_lines(file), **{name: line[name] for name in ("contender", "seed", "steps", "date")}):
        append_line(file, line)
