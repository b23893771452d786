"""manifest.json: the description of a checkpoint. It may be from an unknown source, so every value is checked.

It holds its own checksum, which finds damage, and the seal of the user who wrote it (core/seals.py), which proves that
its settings are the user's own. Manifests of 0.1.0 and 0.2.0 (schema version 1) have neither.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from rl_training.core.durable_files import read_text
from rl_training.core.seals import is_own, make_seal
from rl_training.core.version import __version__
from rl_training.errors import CheckpointError

SCHEMA_VERSION = 2
_WITHOUT_CHECKSUM = 1  # the version before it
MANIFEST = "manifest.json"
POLICY, TRAINING, MEMORY = "policy", "training", "memory"
_PROOFS = ("checksum", "seal")
_SEALED_KIND = "checkpoint"

Part = Literal["policy", "training", "memory"]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
StoredCount = Annotated[int, Field(ge=0, lt=2**62)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Counters(_Checked):
    """The counters of a run, as a manifest may hold them."""

    step: StoredCount
    previous_step: StoredCount | None = None
    gradient_step: StoredCount = 0
    wall_s: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    replayable: bool = True
    best_step: StoredCount | None = None
    stop_reason: str = ""
    spaces: str | None = None

    @field_validator("best_step")
    @classmethod
    def _not_in_the_future(cls, best_step: int | None, info: ValidationInfo) -> int | None:
        if best_step is not None and best_step > info.data.get("step", best_step):
            raise ValueError(f"must be <= step, got {best_step}")
        return best_step


class _Manifest(_Checked):
    """The structure of a manifest."""

    model_config = ConfigDict(extra="forbid")

    schema_version: StoredCount
    rl_training_version: str = "0.1.0"
    config: dict[str, Any]
    counters: Counters
    sha256: dict[str, str]
    values: dict[Part, dict[str, Any]]
    checksum: Digest | None = None
    seal: Digest | None = None

    @field_validator("values")
    @classmethod
    def _with_policy(cls, values: dict[Part, dict[str, Any]]) -> dict[Part, dict[str, Any]]:
        if POLICY not in values:
            raise ValueError("names no policy")
        return values


def file_name(part: str) -> str:
    return f"{part}.safetensors"


def manifest_text(
    *,
    config: Mapping[str, Any],
    counters: Mapping[str, Any],
    sha256: Mapping[str, str],
    values: Mapping[str, Any],
    own: bool,
) -> str:
    """Return a manifest as text: `sha256` by file, `values` (all that are not tensors) by part.

    `own`: whether the settings are the user's own; it is then sealed.
    """
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "rl_training_version": __version__,
        "config": config,
        "counters": counters,
        "sha256": sha256,
        "values": values,
    }
    return with_proofs(manifest, own=own)


def with_proofs(manifest: Mapping[str, Any], *, own: bool) -> str:
    """Return the text of a manifest with a new checksum and, if it is the user's `own`, a new seal."""
    content = {name: value for name, value in manifest.items() if name not in _PROOFS}
    if content["schema_version"] == _WITHOUT_CHECKSUM:
        return json.dumps(content, indent=1)
    checksum = checksum_of(content)
    seal = make_seal(_SEALED_KIND, checksum) if own else None
    return json.dumps({**content, "checksum": checksum, **({"seal": seal} if seal else {})}, indent=1)


def checksum_of(manifest: Mapping[str, Any]) -> str:
    """Return the sha256 of all values of a manifest except its checksum and seal."""
    content = {name: value for name, value in manifest.items() if name not in _PROOFS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_own_manifest(manifest: Mapping[str, Any]) -> bool:
    """Return whether this user wrote the manifest, which `read_manifest` has checked."""
    return "checksum" in manifest and is_own(_SEALED_KIND, manifest["checksum"], manifest.get("seal"))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of the checkpoint folder `path`; raises `OSError` if there is none."""
    file = path / MANIFEST
    try:
        manifest: Any = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None
    if not isinstance(manifest, dict) or "schema_version" not in manifest:
        raise CheckpointError(f"{file} is not a checkpoint's manifest")
    version = manifest["schema_version"]
    if type(version) is not int or version not in (_WITHOUT_CHECKSUM, SCHEMA_VERSION):
        raise CheckpointError(
            f"{path} has schema version {version!r}, this release reads {_WITHOUT_CHECKSUM} and {SCHEMA_VERSION}"
        )
    try:
        _Manifest.model_validate(manifest)
        checksum = checksum_of(manifest)
    except (ValidationError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {first_problem(error)}") from None
    if (version != _WITHOUT_CHECKSUM) != ("checksum" in manifest):
        raise CheckpointError(f"{file} is damaged: its schema version is {version}, which does not fit its checksum")
    if "checksum" in manifest and checksum != manifest["checksum"]:
        raise CheckpointError(f"{file} is damaged: its checksum differs from its content")
    if manifest["sha256"].keys() != set(map(file_name, manifest["values"])):
        raise CheckpointError(f"{file} names other files than its parts: {', '.join(manifest['sha256'])}")
    return manifest


def first_problem(error: ValidationError | RecursionError) -> str:
    """Return where the first value is that does not fit, what is wrong with it, and what was found."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    problem = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}, found {str(problem['input'])[:80]}"


def writer_of(manifest: Mapping[str, Any]) -> str:
    """Return the version that wrote a checkpoint; up to 0.1.0, manifests did not name it."""
    return str(manifest.get("rl_training_version", "0.1.0"))


def is_resumable(manifest: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint holds more than a policy."""
    return {TRAINING, MEMORY} <= set(manifest["values"])
