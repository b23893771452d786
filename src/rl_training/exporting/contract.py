"""contract.json: what an exported policy takes and returns. It may come from a stranger, so every value is checked.

This module and those that check a policy import neither torch nor gymnasium.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rl_training.core.durable_files import read_text
from rl_training.errors import ExportError

CONTRACT, PAIRS, README = "contract.json", "pairs.npz", "README.md"
POLICY_FILES = {"onnx": "policy.onnx", "pt2": "policy.pt2"}
TOLERANCE = 1e-4  # of an output, relative to its largest value in the pairs, or to 1 % of its bounds if that is more
FIRST = "first"  # in the pairs: whether a row is the first of an episode

Dtype = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"
]
Size = Annotated[int, Field(ge=1, lt=2**31)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Port(_Checked):
    """One input or output of the policy; each row of it belongs to one observation."""

    name: str
    shape: tuple[Literal["batch"] | Size, ...] = Field(strict=False)  # "batch", then the sizes of one row
    dtype: Dtype
    low: Any = None  # a number for all entries, or one per entry; null: not bounded
    high: Any = None
    meaning: str


class CarryPart(_Checked):
    """An output that is the input at the next step of the same episode; zeros at its first step."""

    input: str
    output: str
    initial: Literal["zeros"] = "zeros"


class Contract(_Checked):
    """The description of an exported policy."""

    schema_version: Literal[1] = 1
    algo: str
    env_id: str
    step: Annotated[int, Field(ge=0)]
    config_digest: str
    observations: str  # in words: what the environment must return
    inputs: tuple[Port, ...] = Field(strict=False)
    outputs: tuple[Port, ...] = Field(strict=False)
    # How `action` follows from `scores`: the largest score of each choice, every score above 0, or not from scores.
    decision: Literal["argmax", "threshold", "numbers"]
    choices: tuple[Size, ...] = Field(strict=False)  # how many scores each choice has
    inside: tuple[str, ...] = Field(strict=False)  # what the policy computes in addition to its network
    carry: tuple[CarryPart, ...] = Field(strict=False)
    deterministic: Literal[True] = True
    pairs: Annotated[int, Field(ge=1)]
    max_error: float
    tolerance: Annotated[float, Field(gt=0.0, le=1e-2)]
    latency_us: float  # of one observation, on one thread of the machine that exported it
    versions: Mapping[str, str]
    files: Mapping[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]

    @model_validator(mode="after")
    def _fits_together(self) -> "Contract":
        ports = {port.name: port for port in (*self.inputs, *self.outputs)}
        if any(port.shape[:1] != ("batch",) or "batch" in port.shape[1:] for port in ports.values()):
            raise ValueError('a shape must be "batch", then sizes')
        if not self.inputs or [port.name for port in self.outputs[:1]] != ["action"]:
            raise ValueError("there must be inputs, and the first output must be action")
        if self.decision != "numbers":
            scores, action, low = ports.get("scores"), self.outputs[0], np.asarray(self.outputs[0].low)
            count = len(self.choices) if self.decision == "argmax" else sum(self.choices)
            if scores is None or scores.shape[1:] != (sum(self.choices),):
                raise ValueError("there must be a score for each of the choices")
            if math.prod(map(int, action.shape[1:])) != count or low.dtype.kind != "i" or low.size not in (1, count):
                raise ValueError("an action must have a whole number for each choice")
        for part in self.carry:
            if part.input not in ports or part.output not in ports:
                raise ValueError(f"there is no {part.input} or no {part.output}")
        return self


def read_contract(folder: Path) -> Contract:
    """Read the contract of an exported policy; raise `ExportError` if it is missing or damaged."""
    if not (folder / CONTRACT).is_file():
        raise ExportError(f"{folder} holds no exported policy: there is no {CONTRACT} in it")
    try:
        return Contract.model_validate_json(read_text(folder / CONTRACT))
    except (ValidationError, ValueError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, problem["loc"]))
        raise ExportError(f"{folder / CONTRACT} is damaged: {f'{place}: ' if place else ''}{problem['msg']}") from None
