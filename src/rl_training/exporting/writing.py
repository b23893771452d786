"""Export a policy: convert it, compare it with the agent on recorded pairs, and write the folder."""

import contextlib
import io
import logging
import platform
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.durable_files import sha256, sync_folder, write_synced
from rl_training.core.extras import installed, require
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces
from rl_training.core.types import Algorithm
from rl_training.core.version import __version__
from rl_training.envs.factory import EnvFactory
from rl_training.errors import ConfigError, ExportError, text_of
from rl_training.experiment.config import TrainConfig
from rl_training.exporting.contract import CONTRACT, PAIRS, POLICY_FILES, README, TOLERANCE, CarryPart, Contract
from rl_training.exporting.module import PolicyModule, build_module, dtype_of
from rl_training.exporting.onnx_file import OnnxPolicy
from rl_training.exporting.pairs import PairRecorder
from rl_training.exporting.readme import readme_text
from rl_training.exporting.replay import Arrays, Run, replay
from rl_training.hparams.base import chance_settings

log = logging.getLogger("rl_training")

OPSET = 20
_LATENCY_CALLS = 200
Format = Literal["onnx", "pt2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is exported: the policy of a run at one of its steps."""

    config: TrainConfig
    algorithm: Algorithm
    spaces: Spaces  # of the environment
    factory: EnvFactory
    step: int


def export_policy(source: Source, out: Path, *, file_format: Format = "onnx", pairs: int = 256) -> Contract:
    """Write the policy with its contract and pairs to the new folder `out`.

    Raises `ExportError`, and writes nothing, if the file does not act as the agent does.
    """
    if file_format not in POLICY_FILES:
        raise ConfigError(f"format must be one of {', '.join(POLICY_FILES)}, got {file_format!r}")
    if pairs < 1:
        raise ConfigError(f"pairs must be >= 1, got {pairs}")
    if out.exists():
        raise ConfigError(f"{out} exists already")
    if file_format == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            require(name, extra="export", what="export")
    config = source.config
    module = build_module(source.algorithm, source.spaces, config.spec)
    chance = chance_settings(config.hparams)
    if chance:
        listed = ", ".join(f"{name}: {value}" for name, value in chance.items())
        log.warning("evaluations of this run choose by chance (%s); the exported policy takes the best action", listed)
    recorder = PairRecorder(module=module, algorithm=None if chance else source.algorithm, factory=source.factory)
    recorded = recorder.record(pairs, Streams(config.seed).eval_seeds(pairs))
    with _quiet():
        content, run = _CONVERTERS[file_format](module)
    draft = _contract(source, module, recorded, run)
    what = f"the {_NAMES[file_format]} policy differs from the agent"
    try:
        max_error = replay(run, draft, recorded, what=what)
    except ExportError as error:
        raise ExportError(f"{text_of(error)}; nothing was written") from None
    return _write(draft.model_copy(update={"max_error": max_error}), POLICY_FILES[file_format], content, recorded, out)


_NAMES = {"onnx": "ONNX", "pt2": "torch.export"}


# --- Conversion ------------------------------------------------------------------------------------------------------


class _AllOutputs(nn.Module):
    """The module with every output that the contract names."""

    def __init__(self, module: PolicyModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.module.all_outputs(self.module.decide(*inputs))


def _to_program(module: PolicyModule) -> Any:
    """Return the policy as a program of torch.export, which refuses a fixed batch size.

    `torch.onnx.export` of a module would fix it without a word, where a network uses `len(x)`.
    """
    example = tuple(torch.zeros((2, *port.shape[1:]), dtype=dtype_of(port)) for port in module.inputs)  # type: ignore[arg-type]
    batch = torch.export.Dim("batch")
    try:
        return torch.export.export(_AllOutputs(module), example, dynamic_shapes=(tuple({0: batch} for _ in example),))
    except Exception as error:
        reason = text_of(error).strip().splitlines()[0]
        raise ExportError(
            f"the network cannot be exported: {type(error).__name__}: {reason}; a network of your own must not use "
            "len(x), the values of tensors in conditions, or numpy"
        ) from error


def _to_onnx(module: PolicyModule) -> tuple[bytes, Run]:
    program: Any = torch.onnx.export(
        _to_program(module),
        dynamo=True,
        input_names=[port.name for port in module.inputs],
        output_names=[port.name for port in module.outputs],
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    content: bytes = _tidied(program.model_proto).SerializeToString()
    return content, OnnxPolicy(content, module.inputs, module.outputs, what="export")


def _tidied(model: Any) -> Any:
    """Name the batch dimension, and remove what the exporter notes about this machine: paths and lines of source."""
    graph = model.graph
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param  # such as s79
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == symbol:
                dimension.dim_param = "batch"
    for node in (*graph.node, *(node for function in model.functions for node in function.node)):
        for name in ("metadata_props", "doc_string"):
            node.ClearField(name)
    return model


def _to_pt2(module: PolicyModule) -> tuple[bytes, Run]:
    program = _to_program(module)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    call, names = program.module(), [port.name for port in module.outputs]

    def run(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            outputs = call(*(torch.tensor(inputs[port.name]) for port in module.inputs))
        return {name: values.numpy() for name, values in zip(names, outputs, strict=True)}

    return stream.getvalue(), run


_CONVERTERS: dict[str, Callable[[PolicyModule], tuple[bytes, Run]]] = {"onnx": _to_onnx, "pt2": _to_pt2}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which reports a missing torchvision four times and its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- Writing ---------------------------------------------------------------------------------------------------------


def _contract(source: Source, module: PolicyModule, pairs: Arrays, run: Run) -> Contract:
    config = source.config
    return Contract(
        algo=config.algo,
        env_id=config.env_id,
        step=source.step,
        config_digest=config.digest(),
        observations=(
            "as the environment returns them after its wrappers (Atari: resized, grey and stacked frames), converted "
            "to the dtypes of the inputs; not scaled or normalised: the policy does that itself"
        ),
        inputs=module.inputs,
        outputs=module.outputs,
        decision=module.decision,
        choices=module.choices,
        inside=module.inside,
        carry=tuple(CarryPart(input=name, output=f"next_{name}") for name in module.policy.carry),
        pairs=len(pairs["action"]),
        max_error=0.0,
        tolerance=TOLERANCE,
        latency_us=_latency_us(run, {port.name: pairs[port.name][:1] for port in module.inputs}),
        versions=_versions(),
        files={},
    )


def _latency_us(run: Run, inputs: Arrays) -> float:
    times = []
    for _ in range(_LATENCY_CALLS):
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6, 1)


def _versions() -> dict[str, str]:
    packages = {"torch": torch.__version__, **{name: found for name, found in installed("export").items() if found}}
    return {"rl_training": __version__, "python": platform.python_version(), "opset": str(OPSET), **packages}


def _write(contract: Contract, policy_file: str, content: bytes, pairs: Arrays, out: Path) -> Contract:
    """Write the files to a temporary folder, then rename it: an interrupted export leaves no half of a policy."""
    folder = out.with_name(f".{out.name}_writing")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        write_synced(folder / policy_file, content)
        with (folder / PAIRS).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **pairs)
        write_synced(folder / README, readme_text(contract, policy_file).encode())
        files = {name: sha256(folder / name) for name in (policy_file, PAIRS, README)}
        contract = contract.model_copy(update={"files": files})
        write_synced(folder / CONTRACT, (contract.model_dump_json(indent=1) + "\n").encode())
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_folder(out.parent)
    return contract
