"""`rl-training export`: write the policy of a run for use without this library, and check such a folder."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.commands.messages import command_line, reports_errors, show
from rl_training.commands.options import AllowCode, Best, Debug, Quiet, RunPath, whole_number
from rl_training.hparams.fields import expand_home

_DEFAULT = "write"


class Format(str, Enum):
    onnx = "onnx"
    pt2 = "pt2"


class _WriteByDefault(TyperGroup):
    """Reads `export RUN ...` as `export write RUN ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


export_app = typer.Typer(
    cls=_WriteByDefault,
    no_args_is_help=True,
    help="Write a policy for use without this library: `export RUN --out policy/`, then `export check policy/`.",
)


@export_app.command(_DEFAULT)
@reports_errors
def write(
    path: RunPath,
    out: Annotated[Path, typer.Option("--out", "-o", parser=expand_home, metavar="FOLDER", help="A new folder.")],
    best: Best = False,
    file_format: Annotated[
        Format, typer.Option("--format", help="onnx runs anywhere; pt2 only in PyTorch, and only if you trust it.")
    ] = Format.onnx,
    pairs: Annotated[
        int,
        typer.Option(parser=whole_number(least=1), metavar="N", help="Observations and actions to record and compare."),
    ] = 256,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the policy, its contract and recorded pairs, and compare it with the agent. `write` may be left out."""
    from rl_training.api.algorithms import managed_class
    from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint

    found = find_checkpoint(path, "best" if best else "latest")
    agent = managed_class(open_checkpoint(found, parts=()).config.algo).load(found, allow_code=allow_code)
    contract = agent.export(out, file_format=file_format.value, pairs=pairs)
    rows = [
        ("policy", str(out)),
        ("checkpoint", f"{found} (step {contract.step:,})"),
        ("pairs", f"{contract.pairs} equal, largest error {contract.max_error:.1g}"),
        ("latency", f"{contract.latency_us:.0f} us per observation"),
    ]
    show([*rows, ("check it", command_line("export", "check", out))] if file_format == Format.onnx else rows)


@export_app.command()
@reports_errors
def check(
    folder: Annotated[Path, typer.Argument(parser=expand_home, metavar="FOLDER", help="An exported policy.")],
    debug: Debug = False,
) -> None:
    """Replay the pairs of an exported policy with onnxruntime; neither torch nor gymnasium is needed."""
    from rl_training.exporting.check import check_policy

    contract, max_error = check_policy(folder)
    show(
        [
            ("policy", f"{contract.algo} on {contract.env_id}, step {contract.step:,}"),
            ("files", f"{len(contract.files)} unchanged"),
            ("pairs", f"{contract.pairs} equal, largest error {max_error:.1g}, allowed {contract.tolerance:g}"),
        ]
    )
