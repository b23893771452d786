"""The optional packages: which extra of `pip install "rl-training[extra]"` brings which, and how code asks for one."""

import importlib
import importlib.util
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType

from rl_training.errors import ConfigError

# Extra -> the modules of it that the library imports, each with the name that pip knows its package by.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "box2d": {"Box2D": "box2d", "pygame": "pygame-ce"},
    "mujoco": {"mujoco": "mujoco", "imageio": "imageio"},
    "atari": {"ale_py": "ale-py", "cv2": "opencv-python-headless"},
    "minatar": {"minatar": "minatar"},
    "pixels": {"cv2": "opencv-python-headless", "pygame": "pygame-ce"},
    "envpool": {"envpool": "envpool"},
    "offline": {"h5py": "h5py", "pyarrow": "pyarrow", "PIL": "pillow", "matplotlib": "matplotlib"},
    "plot": {"matplotlib": "matplotlib"},
    "video": {"av": "av", "PIL": "pillow", "pygame": "pygame-ce"},
    "wandb": {"wandb": "wandb"},
    "mlflow": {"mlflow": "mlflow"},
    "trackio": {"trackio": "trackio"},
    "export": {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"},
    "tune": {"optuna": "optuna"},
    "ray": {"ray": "ray"},
}


def require(module: str, *, extra: str, what: str) -> ModuleType:
    """Import a module of an optional package and return it; `what` needs it, for the message if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        root = module.partition(".")[0]
        package = EXTRAS[extra][root]
        missing = isinstance(cause, ModuleNotFoundError) and (cause.name or "").partition(".")[0] == root
        broken = "" if missing else f", which cannot be imported here ({cause})"
        raise ConfigError(f"{what} needs the package {package}{broken}: {install_line(extra)}") from cause


def install_line(extra: str) -> str:
    return f'pip install "rl-training[{extra}]"'


def installed(extra: str) -> dict[str, str | None]:
    """Return the version of each package of an extra; None: not installed."""
    return {package: _version(module, package) for module, package in EXTRAS[extra].items()}


def _version(module: str, package: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # the module comes from elsewhere, such as a sister package
        return "of another package"
