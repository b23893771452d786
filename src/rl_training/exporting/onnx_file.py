"""Run ONNX files that may come from a stranger, with onnxruntime alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.core.extras import require
from rl_training.errors import ExportError
from rl_training.exporting.contract import Port

# The messages of an ONNX file that can lead to a tensor: message -> field number -> the message in that field.
# From onnx/onnx.proto3; the numbers of a format never change.
_FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # fields of a tensor that is stored in another file
_ORT_TYPES = {"bool": "bool", "float16": "float16", "float32": "float", "float64": "double"}  # the others have one name


class OnnxPolicy:
    """An ONNX policy in memory: it runs on one thread of the CPU."""

    def __init__(self, content: bytes, inputs: Sequence[Port], outputs: Sequence[Port], *, what: str) -> None:
        """Raise `ExportError` unless the file is one policy with these inputs and outputs. `what` needs onnxruntime."""
        check_self_contained(content)
        runtime = require("onnxruntime", extra="export", what=what)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an exception for each of its error codes
            raise ExportError(f"policy.onnx cannot be loaded: {error}") from None
        _check_ports("input", self._session.get_inputs(), inputs)
        _check_ports("output", self._session.get_outputs(), outputs)
        self._outputs = [port.name for port in outputs]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            found = self._session.run(self._outputs, dict(inputs))
        except Exception as error:
            raise ExportError(f"policy.onnx cannot be run: {error}") from None
        return dict(zip(self._outputs, found, strict=True))


def _check_ports(kind: str, found: Sequence[Any], expected: Sequence[Port]) -> None:
    """Raise `ExportError` unless names, shapes and types are those of the contract; a fixed batch size is an error."""
    seen = [(port.name, tuple(port.shape), port.type) for port in found]
    wanted = [(port.name, port.shape, f"tensor({_ORT_TYPES.get(port.dtype, port.dtype)})") for port in expected]
    for has, should in zip(seen, wanted, strict=False):
        if has != should:
            raise ExportError(f"policy.onnx has the {kind} {has}, but its contract says {should}")
    if len(seen) != len(wanted):
        raise ExportError(f"policy.onnx has {len(seen)} {kind}s, but its contract says {len(wanted)}")


def check_self_contained(content: bytes) -> None:
    """Raise `ExportError` for an ONNX file whose weights are in other files: it could name any file of this machine."""
    try:
        external = _is_external(memoryview(content), "model")
    except (ValueError, RecursionError):
        raise ExportError("policy.onnx is damaged: it is not an ONNX file") from None
    if external:
        raise ExportError("policy.onnx stores weights in other files, which are not read: they could be any files")


def _is_external(message: memoryview, kind: str) -> bool:
    for number, value in _protobuf_fields(message):
        if kind == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value)):
            return True
        inner = _FIELDS[kind].get(number)
        if inner is not None and isinstance(value, memoryview) and _is_external(value, inner):
            return True
    return False


def _protobuf_fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the number and the value of each field of a protobuf message: a number, or bytes.

    Raises `ValueError` for bytes that are no message.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire_type not in (1, 2, 5):
            raise ValueError(f"unknown wire type {wire_type}")
        size, place = _varint(message, place) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], place)
        if place + size > len(message):
            raise ValueError("a field ends behind its message")
        yield number, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place == len(message) or shift > 63:
            raise ValueError("a number does not end")
        byte = message[place]
        value, shift, place = value | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return value, place
