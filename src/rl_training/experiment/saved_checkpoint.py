"""Find, verify, read and copy a checkpoint that is on disk (checkpointing.py writes and removes them)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.core.durable_files import copy_synced, link_or_copy, sha256
from rl_training.core.integer_obs import PIXEL_MAX
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import (
    checkpoint_names,
    is_whole,
    read_pointer,
    resumable_names,
    step_of,
    write_atomically,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import build_config, check_plain
from rl_training.experiment.manifest import (
    MANIFEST,
    POLICY,
    file_name,
    is_own_manifest,
    is_resumable,
    read_manifest,
    writer_of,
)
from rl_training.experiment.state_files import first_non_finite, read_tensors, unflatten
from rl_training.hparams.fields import expand_home

_OLD_SETTINGS = {"obs_max": PIXEL_MAX}  # of checkpoints up to 0.2.0, which do not have them


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk, with its manifest read and its files verified."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        """The settings of the run; those of another user are marked as such (see `TrainConfig.origin`)."""
        try:
            check_plain(self.manifest["config"])
            config = build_config({**_OLD_SETTINGS, **self.manifest["config"]})
            return config if is_own_manifest(self.manifest) else config.of_unknown_origin(self.path / MANIFEST)
        except ConfigError as error:  # another release wrote it, or an algorithm's package is not installed here
            version = writer_of(self.manifest)
            raise CheckpointError(
                f"{self.path} holds settings of version {version} that are not valid here: {error}"
            ) from error

    @property
    def step(self) -> int:
        return int(self.manifest["counters"]["step"])

    @property
    def is_resumable(self) -> bool:
        return is_resumable(self.manifest)

    def load(self, part: str) -> dict[str, Any]:
        """Return one part ("policy", "training", "memory") as the nested dict that was saved.

        Weights and all other numbers of the algorithm must be finite.
        """
        file = self.path / file_name(part)
        tensors, values = read_tensors(file), self.manifest["values"][part]
        learned = tensors if part == POLICY else {n: x for n, x in tensors.items() if n.startswith("algorithm|")}
        if name := first_non_finite(learned):
            raise CheckpointError(f"{file} is damaged: {name} holds numbers that are not finite")
        try:
            return unflatten(tensors, values)
        except ValueError as error:
            raise CheckpointError(f"{file} and the values in {MANIFEST} do not fit together: {error}") from None


def find_checkpoint(path: str | Path, pointer: str = "latest") -> Path:
    """Return the checkpoint folder for a run folder, its `checkpoints` folder, or a checkpoint folder itself."""
    path = expand_home(path)
    if (path / MANIFEST).is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"there is no run or checkpoint at {str(path)!r}")
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    name = read_pointer(folder, pointer)
    if pointer == "latest":
        # After a crash between writing a checkpoint and its pointer, the pointer names the previous one.
        names = resumable_names(folder) or checkpoint_names(folder)
        name = max([*names[-1:], *([name] if name else [])], key=step_of, default=None)
    if name is None:
        runs = sorted(path.glob("*/checkpoints"))
        hint = f"; give one of the runs in it, such as {runs[-1].parent}" if runs else ""
        raise CheckpointError(f"{path} holds no {pointer + ' ' if pointer != 'latest' else ''}checkpoint{hint}")
    return folder / name


def open_checkpoint(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """Read the manifest of a checkpoint and verify its files, or those of `parts`.

    The message about a damaged checkpoint names the newest intact one.
    """
    try:
        manifest = read_manifest(path)
        for name, expected in manifest["sha256"].items():
            if (parts is None or name.removesuffix(".safetensors") in parts) and sha256(path / name) != expected:
                raise CheckpointError(f"{path / name} is damaged: its checksum differs from that in the manifest")
    except OSError as error:
        raise CheckpointError(f"{path} is damaged: {error}{_suggest_another(path)}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_suggest_another(path)}") from None
    return Checkpoint(path, manifest)


def _suggest_another(damaged: Path) -> str:
    """Return a hint at the newest other intact checkpoint, preferably a resumable one; empty if there is none."""
    folder = damaged.parent
    for name in [*reversed(resumable_names(folder)), *reversed(checkpoint_names(folder))]:
        if name != damaged.name and is_whole(folder / name):
            return f"; the newest intact one is {folder / name}"
    return ""


def copy_checkpoint(checkpoint: Checkpoint, target: Path, *, link: bool = False) -> Path:
    """Copy the files of a checkpoint, and nothing else that its folder may hold, to the folder `target`.

    `link`: files are linked if possible. They never change once written.
    """
    files = [MANIFEST, *checkpoint.manifest["sha256"]]

    def copy(temporary: Path) -> None:
        temporary.mkdir()
        for name in files:
            (link_or_copy if link else copy_synced)(checkpoint.path / name, temporary / name)

    needed = sum((checkpoint.path / name).stat().st_size for name in files)
    return write_atomically(target, copy, needed)
