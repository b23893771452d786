"""Check an exported policy: its files, and its actions on the recorded pairs; without torch and gymnasium."""

import zipfile
from pathlib import Path

import numpy as np

from rl_training.core.durable_files import open_file, sha256
from rl_training.core.memory_limits import check_memory
from rl_training.core.npz_files import npy_bytes, read_npy, report_damage
from rl_training.errors import ExportError
from rl_training.exporting.contract import CONTRACT, FIRST, PAIRS, POLICY_FILES, README, Contract, read_contract
from rl_training.exporting.onnx_file import OnnxPolicy
from rl_training.exporting.replay import replay

_FILES = {*POLICY_FILES.values(), PAIRS, README}


def check_policy(folder: Path) -> tuple[Contract, float]:
    """Return the contract of an exported policy and its largest error; raise `ExportError` if it is wrong."""
    contract = read_contract(folder)
    _check_files(folder, contract)
    if POLICY_FILES["onnx"] not in contract.files:
        raise ExportError(
            f"{folder} holds {POLICY_FILES['pt2']}, which is not read: loading such a file can run code that it holds; "
            "export with --format onnx to check a policy"
        )
    pairs = read_pairs(folder / PAIRS, contract)
    with open_file(folder / POLICY_FILES["onnx"]) as file:
        policy = OnnxPolicy(file.read(), contract.inputs, contract.outputs, what="export check")
    return contract, replay(policy, contract, pairs, what=f"{folder} differs from its pairs")


def _check_files(folder: Path, contract: Contract) -> None:
    """Raise `ExportError` unless the folder holds the files of the contract as they were written."""
    if unknown := contract.files.keys() - _FILES:
        raise ExportError(f"{folder / CONTRACT} names the unknown file {min(unknown)!r}")
    if missing := {PAIRS, README} - contract.files.keys():
        raise ExportError(f"{folder / CONTRACT} does not name {min(missing)}")
    for name, digest in contract.files.items():
        if not (folder / name).is_file():
            raise ExportError(f"{folder} is not complete: there is no {name} in it")
        if sha256(folder / name) != digest:
            raise ExportError(f"{name} does not have the sha256 of {CONTRACT}: it was changed")


def read_pairs(path: Path, contract: Contract) -> dict[str, np.ndarray]:
    """Read the pairs; raise unless they are arrays as the contract describes them. Nothing is unpickled."""
    ports = {port.name: port for port in (*contract.inputs, *contract.outputs)}
    with report_damage(path, "a npz file"), zipfile.ZipFile(path) as archive:
        names = [*ports, FIRST]
        if sorted(archive.namelist()) != sorted(f"{name}.npy" for name in names):
            raise ExportError(f"{path} must hold the arrays {', '.join(names)}, found {', '.join(archive.namelist())}")
        check_memory(sum(npy_bytes(archive, name, path) for name in names), str(path), "the number of pairs")
        arrays = {name: read_npy(archive, name) for name in names}
    expected = {name: ((contract.pairs, *port.shape[1:]), port.dtype) for name, port in ports.items()}
    for name, (shape, dtype) in {**expected, FIRST: ((contract.pairs,), "bool")}.items():
        found = arrays[name]
        if found.shape != shape or found.dtype != dtype:
            raise ExportError(f"{path}: {name} must be {dtype} of shape {shape}, found {found.dtype} {found.shape}")
    return arrays
