"""Create the virtual environments of the peers now, instead of when they are first needed.

Each peer library has its own under `.peers/<name>/`, with the exact versions of `benchmarks/requirements/<name>.txt`.
When that file changes, the environment is created again.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
PEERS = ROOT / ".peers"

# Installed before the rest: torch with its exact pin, so that pip takes a CPU build it was given (PIP_FIND_LINKS,
# PIP_INDEX_URL), which satisfies the libraries' ranges; swig because Box2D is built from source with it.
FIRST = ("torch", "swig")


class PeerError(RuntimeError):
    """A peer's environment could not be created."""


def peer_names() -> list[str]:
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def peer_python(name: str) -> Path:
    """Return the interpreter of the peer's environment; create the environment if it is missing or out of date."""
    requirements = REQUIREMENTS / f"{name}.txt"
    if not requirements.is_file():
        raise PeerError(f"unknown peer {name!r}; known: {', '.join(peer_names())}")
    folder = PEERS / name
    python = folder / "bin" / "python"
    made_from = folder / "made_from.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not (made_from.is_file() and made_from.read_text() == digest and python.exists()):
        print(f"Creating the environment of {name} in {folder} (a minute or two)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _call([sys.executable, "-m", "venv", str(folder)])
        pins = requirements.read_text().splitlines()
        for package in FIRST:
            for pin in pins:
                if pin.startswith(f"{package}=="):
                    _call([str(python), "-m", "pip", "install", "--quiet", pin])
        _call([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)])
        made_from.write_text(digest)
    return python


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-2000:]}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"of {', '.join(peer_names())} (default: all)")


def run(args: argparse.Namespace) -> int:
    for name in args.names or peer_names():
        print(f"{name}: {peer_python(name)}")
    return 0
