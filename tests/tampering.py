"""Change checkpoints as somebody would who knows the format: every checksum is made valid again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from rl_training.core.durable_files import sha256
from rl_training.experiment.manifest import MANIFEST, file_name, with_proofs
from rl_training.experiment.state_files import write_tensors


def edit_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object], *, own: bool = False) -> None:
    """Change the manifest in place. `own`: seal it as its owner would; a stranger cannot."""
    file = checkpoint / MANIFEST
    manifest = json.loads(file.read_text())
    change(manifest)
    file.unlink()  # it may be linked from a copy of the checkpoint
    file.write_text(with_proofs(manifest, own=own))


def edit_tensors(checkpoint: Path, part: str, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of one part in place."""
    file = checkpoint / file_name(part)
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    file.unlink()
    write_tensors(file, tensors)
    edit_manifest(checkpoint, lambda manifest: manifest["sha256"].update({file.name: sha256(file)}))
