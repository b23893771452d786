"""Environments that render: the factory of a run with another `render_mode`, and how MuJoCo draws without a display."""

import contextlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.factory import EnvFactory, LimitedEnv, OwnEnv, RegisteredEnv
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import Env, close_env
from rl_training.envs.vector_factory import RegisteredVectorEnv, VectorFactory
from rl_training.envs.wrapping import WrappedEnv
from rl_training.errors import EnvError, UserError, text_of

RenderMode = Literal["rgb_array", "human"]
_DEFAULT_FPS = 30.0  # of environments that do not declare theirs
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_OPENGL_OF_MUJOCO = re.compile(r"[/\\]mujoco[/\\](egl|glfw|osmesa)[/\\]")  # file names
_NO_OPENGL = (
    "MuJoCo cannot render here: no display and no EGL; install libegl1 and libgl1-mesa-dri, or libosmesa6 and set "
    "MUJOCO_GL=osmesa"
)


def has_display() -> bool:
    """Return whether a window can be opened; only Linux says so in advance."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in _DISPLAYS)


def draw_without_display() -> None:
    """Set MuJoCo and SDL to draw into memory if there is no display; they read this when they are imported."""
    if not has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def rendering_factory(factory: EnvFactory, mode: RenderMode, env_id: str) -> tuple[EnvFactory, float]:
    """Return the factory with environments that render in `mode`, and how many steps make a second.

    Raises `EnvError` for environments that cannot render so.
    """
    failure = f"{env_id} cannot be {'filmed' if mode == 'rgb_array' else 'shown'}"
    with _made_by(factory, failure) as env:
        modes = list(env.metadata.get("render_modes") or ())
    # Gymnasium shows the pictures of an env that only makes pictures in a window of its own.
    if mode not in modes and not (mode == "human" and "rgb_array" in modes):
        known = f"its render modes are {', '.join(map(str, modes))}" if modes else "it has no render modes"
        raise EnvError(f"{failure}: {known}")
    rendering = _with_render_mode(factory, mode)
    with _made_by(rendering, failure) as env:
        if env.render_mode != mode:
            raise EnvError(
                f"{failure}: its function makes environments with render_mode {env.render_mode!r}; "
                "let it take an argument render_mode and pass it on"
            )
        declared = env.metadata.get("render_fps")
        return rendering, float(declared) if isinstance(declared, Real) and float(declared) > 0.0 else _DEFAULT_FPS


@contextlib.contextmanager
def explains_opengl() -> Iterator[None]:
    """Raise an error that says what to install where MuJoCo cannot draw: its own name missing attributes."""
    try:
        yield
    except EnvError as error:
        cause = error.__cause__
        if cause is None or not any(map(_sets_up_opengl, traceback.extract_tb(cause.__traceback__))):
            raise
        raise EnvError(f"{_NO_OPENGL} ({type(cause).__name__}: {text_of(cause)})") from error


def _sets_up_opengl(frame: traceback.FrameSummary) -> bool:
    """Return whether a line belongs to the import of mujoco's OpenGL, or to where Gymnasium opens its viewer."""
    return frame.name == "_get_viewer" or _OPENGL_OF_MUJOCO.search(frame.filename) is not None


def _with_render_mode(factory: EnvFactory, mode: RenderMode) -> EnvFactory:
    """Return the factory with `render_mode` among the arguments of its environments, if they take it."""
    if isinstance(factory, VectorFactory):
        make = factory.make
        if not (isinstance(make, RegisteredVectorEnv) or _takes_render_mode(make.function)):
            return factory
        return VectorFactory(replace(make, env_kwargs={**make.env_kwargs, "render_mode": mode}))
    if isinstance(factory, RegisteredEnv):
        return replace(factory, env_kwargs={**factory.env_kwargs, "render_mode": mode})
    if isinstance(factory, WrappedEnv):
        return replace(factory, factory=_with_render_mode(factory.factory, mode))
    if isinstance(factory, LimitedEnv):
        return replace(factory, function=_with_render_mode(factory.function, mode))
    function, kwargs = (factory.function, factory.env_kwargs) if isinstance(factory, OwnEnv) else (factory, {})
    return OwnEnv(function, {**kwargs, "render_mode": mode}) if _takes_render_mode(function) else factory


def _takes_render_mode(function: Callable[..., Any]) -> bool:
    try:
        parameters: Any = inspect.signature(function).parameters
    except ValueError:  # some functions written in C have none
        return False
    return "render_mode" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@contextlib.contextmanager
def _made_by(factory: EnvFactory, failure: str) -> Iterator[Env]:
    """Make an environment for a moment; raise `EnvError` that begins with `failure` if it cannot be made."""
    try:
        with ENV_CALLS:
            env = factory()
    except UserError:
        raise
    except Exception as cause:
        raise EnvError(f"{failure}: the environment {describe_alone(cause)}") from cause
    try:
        yield env
    finally:
        close_env(env)
