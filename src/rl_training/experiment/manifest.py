"""manifest.json: the description of a checkpoint. It may be from an unknown source, so its structure is checked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.core.version import __version__
from rl_training.errors import CheckpointError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
POLICY, TRAINING, MEMORY = "policy", "training", "memory"


def file_name(part: str) -> str:
    return f"{part}.safetensors"


def manifest_text(
    *, config: Mapping[str, Any], counters: Mapping[str, Any], sha256: Mapping[str, str], values: Mapping[str, Any]
) -> str:
    """Return a manifest as text: `sha256` by file, `values` (all that are not tensors) by part."""
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "rl_training_version": __version__,
        "config": config,
        "counters": counters,
        "sha256": sha256,
        "values": values,
    }
    return json.dumps(manifest, indent=1)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of the checkpoint folder `path`; raises `OSError` if there is none."""
    file = path / MANIFEST
    try:
        manifest: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise CheckpointError(f"{path} has schema version {version}, this release reads {SCHEMA_VERSION}")
    groups = [manifest.get(key) for key in ("config", "counters", "sha256", "values")] if version is not None else []
    if not groups or not all(isinstance(group, dict) for group in groups):
        raise CheckpointError(f"{file} is not a checkpoint's manifest")
    parts = manifest["values"]
    if not {POLICY} <= parts.keys() <= {POLICY, TRAINING, MEMORY} or not all(
        isinstance(part, dict) for part in parts.values()
    ):
        raise CheckpointError(f"{file} names parts that no checkpoint has: {', '.join(parts)}")
    if manifest["sha256"].keys() != set(map(file_name, parts)):
        raise CheckpointError(f"{file} names other files than its parts: {', '.join(manifest['sha256'])}")
    if not isinstance(manifest["counters"].get("step"), int):
        raise CheckpointError(f"{file} does not say at which step it was written")
    checked: dict[str, Any] = manifest
    return checked


def writer_of(manifest: Mapping[str, Any]) -> str:
    """Return the version that wrote a checkpoint; up to 0.1.0, manifests did not name it."""
    return str(manifest.get("rl_training_version", "0.1.0"))


def is_resumable(manifest: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint holds more than a policy."""
    return {TRAINING, MEMORY} <= set(manifest["values"])
