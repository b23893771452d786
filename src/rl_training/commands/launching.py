"""The options with which commands launch many runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.launching.pool import LaunchOptions

LAUNCHERS = ("local", "slurm", "ray")


def launch_options(
    *,
    launcher: str = "local",
    jobs: int = 1,
    retries: int = 2,
    fail_fast: bool = False,
    slurm: Sequence[str] | None = None,
    ray: Sequence[str] | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    root: Path = Path(),
) -> "LaunchOptions":
    """Check the options of the command line and return them; raise `ConfigError` for those that do not fit."""
    if launcher not in LAUNCHERS:
        raise ConfigError(f"--launcher must be one of {', '.join(LAUNCHERS)}, got {launcher!r}")
    for name, given in (("slurm", slurm), ("ray", ray)):
        if given and launcher != name:
            raise ConfigError(f"--{name} {given[0]} needs --launcher {name}, but the launcher is {launcher}")
    if dry_run and launcher != "slurm":
        raise ConfigError(f"--dry-run needs --launcher slurm, but the launcher is {launcher}")
    from rl_training.launching.pool import LaunchOptions
    from rl_training.launching.ray import check_ray_options, require_ray
    from rl_training.launching.slurm import check_slurm_options, require_sbatch

    of_slurm, of_ray = _pairs(slurm), _pairs(ray)
    check_slurm_options(of_slurm)
    check_ray_options(of_ray)
    if launcher == "ray":
        require_ray()
    elif launcher == "slurm" and not dry_run:
        require_sbatch()
    return LaunchOptions(
        root=root,
        launcher=cast(Literal["local", "slurm", "ray"], launcher),
        jobs=jobs,
        retries=retries,
        fail_fast=fail_fast,
        quiet=quiet,
        slurm=of_slurm,
        ray=of_ray,
        dry_run=dry_run,
    )


def _pairs(given: Sequence[str] | None) -> dict[str, str]:
    """Read `key=value`; `key` alone has an empty value."""
    return {key: value for key, _, value in (text.partition("=") for text in given or ())}
