"""Films show the episodes that an evaluation plays: as many pictures as states, the right speed, the same returns."""

import base64
import logging
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from PIL import Image, ImageSequence
from typer.testing import CliRunner

from builders import make_config, small_hparams
from rl_training import DQN
from rl_training.cli import app
from rl_training.core.seeding import Streams
from rl_training.envs.factory import RegisteredEnv, make_vector_factory
from rl_training.envs.rendering import draw_without_display, explains_opengl, rendering_factory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError
from rl_training.results.return_text import return_text
from rl_training.runtime.filming import FilmSettings, film_episodes
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.trainer import TrainResult, train
from rl_training.runtime.video_files import video_file

LENGTH = 6  # of an episode of the lamp
BRIGHTER = 30  # from one step to the next


class Lamp(gym.Env[Any, np.int64]):
    """Gets brighter with every step: its picture, of an odd size, is as grey as the number of steps."""

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(self, render_mode: str | None = None, size: tuple[int, int] = (33, 51)) -> None:
        self.observation_space = Dict({"step": Box(0.0, 1.0, (1,), np.float32)})
        self.action_space = Discrete(2)
        self.render_mode, self.size, self.steps = render_mode, size, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observe(), 1.0, self.steps == LENGTH, False, {}

    def render(self) -> Any:
        return np.full((*self.size, 3), self.steps * BRIGHTER, np.uint8)

    def _observe(self) -> Any:
        return {"step": np.array([self.steps / LENGTH], np.float32)}


class Dimmed(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper of a user that changes the picture."""

    def render(self) -> Any:
        image: Any = self.env.render()
        return image // 2


def without_argument() -> Lamp:
    return Lamp()


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    config = make_config(tmp_path_factory.mktemp("cartpole"), env_id="CartPole-v1", eval_episodes=3)
    return train(config, RunOptions(show_progress=False))


@pytest.fixture(scope="module")
def lamp(tmp_path_factory: pytest.TempPathFactory) -> DQN:
    agent = DQN.for_env(
        Lamp,
        20,
        algo_kwargs=small_hparams("dqn"),
        output_dir=str(tmp_path_factory.mktemp("lamp")),
        acceleration="eager",
        eval_episodes=2,
        show_progress=False,
    )
    agent.learn()
    return agent


def decoded(path: Path) -> tuple[list[np.ndarray], float]:
    """Return the pictures of a .mp4 film and how many of them make a second."""
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        assert rate is not None
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], float(rate)


def durations(film: Any) -> list[int]:
    """Return for how many milliseconds each picture of an animation is shown."""
    found = []
    for picture in ImageSequence.Iterator(film):
        picture.load()
        found.append(picture.info["duration"])
    return found


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_film_holds_the_episodes_of_the_evaluation(cartpole: TrainResult, tmp_path: Path) -> None:
    shown = call("video", cartpole.run_dir, "--out", tmp_path / "film.mp4")
    assert shown.exit_code == 0, shown.output
    scored = cartpole.eval_episodes
    assert [line.rstrip() for line in shown.stdout.splitlines()[:3]] == [
        f"episode {one.episode}  return {return_text(one.ret)}, {one.length} steps" for one in scored
    ]
    pictures, rate = decoded(tmp_path / "film.mp4")
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=Streams(0).eval_seeds(1)[0])
    first: Any = env.render()
    env.close()
    assert len(pictures) == sum(one.length for one in scored) + len(scored)
    assert rate == env.metadata["render_fps"] == 50
    assert pictures[0].shape == first.shape == (400, 600, 3)
    assert np.abs(pictures[0].astype(int) - first).mean() < 2.0


def test_another_seed_films_other_episodes(cartpole: TrainResult, tmp_path: Path) -> None:
    shown = call("video", cartpole.run_dir, "--out", tmp_path / "a.mp4", "--episodes", 1, "--seed", 7)
    again = call("evaluate", cartpole.run_dir, "--episodes", 1, "--seed", 7, "--json")
    assert f"return {return_text(float(again.stdout.partition('mean')[2][3:].partition(',')[0]))}, " in shown.stdout


def test_every_state_is_filmed_once_and_in_order(lamp: DQN, tmp_path: Path) -> None:
    path = lamp.video(tmp_path / "new" / "film.mp4", episodes=2)
    assert path == tmp_path / "new" / "film.mp4"
    pictures, rate = decoded(path)
    greys = [float(picture.mean()) for picture in pictures]
    assert greys == pytest.approx([step * BRIGHTER for _ in range(2) for step in range(LENGTH + 1)], abs=3)
    assert (rate, pictures[0].shape) == (30, (32, 50, 3))  # without a rate of its own; cut to even sizes
    assert [entry.name for entry in path.parent.iterdir()] == ["film.mp4"]


@pytest.mark.parametrize("ending", [".gif", ".webp"])
def test_an_animation_repeats_and_is_small(cartpole: TrainResult, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"film{ending}"
    assert call("video", cartpole.run_dir, "--out", path, "--episodes", 1).exit_code == 0
    with Image.open(path) as film:
        assert (film.size, film.info["loop"]) == ((320, 213), 0)
        shown = cartpole.eval_episodes[0].length // 2 + 1  # every second of 50 pictures a second
        assert sum(durations(film)) == shown * 40  # equal ones are stored as one that is shown for longer


def test_width_and_speed_can_be_chosen(lamp: DQN, tmp_path: Path) -> None:
    pictures, rate = decoded(lamp.video(tmp_path / "a.mp4", episodes=1, fps=12.5, width=100))
    assert (rate, pictures[0].shape, len(pictures)) == (12.5, (64, 100, 3), LENGTH + 1)
    with Image.open(lamp.video(tmp_path / "a.webp", episodes=1, fps=10, width=25)) as film:
        frames = sum(1 for _ in ImageSequence.Iterator(film))
        assert (film.size, frames) == ((25, 16), LENGTH + 1)


def test_a_long_episode_is_cut_with_a_warning(lamp: DQN, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rl_training"):
        assert len(decoded(lamp.video(tmp_path / "a.mp4", episodes=1, max_steps=2))[0]) == 3
    assert "was cut at 2 steps" in caplog.text


def test_a_wrapper_of_the_user_is_filmed_too(tmp_path: Path) -> None:
    config = make_config(tmp_path, env_id="CartPole-v1", wrappers=[f"{__name__}:Dimmed"])
    result = train(config, RunOptions(show_progress=False))
    films = tmp_path / "plain.mp4", tmp_path / "dim.mp4"
    for settings, film in zip((config.updated(wrappers=[]), config), films, strict=True):
        film_episodes(film, result.algorithm, settings, RunOptions(), [0], settings=FilmSettings(max_steps=1))
    plain, dim = (decoded(film)[0][0].mean() for film in films)
    assert dim == pytest.approx(plain / 2, abs=2)


def test_an_envpool_run_is_filmed_in_gymnasium(
    cartpole: TrainResult, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path, env_id="CartPole-v1", execution_backend="envpool")
    with caplog.at_level(logging.INFO, "rl_training"):
        film_episodes(tmp_path / "a.mp4", cartpole.algorithm, config, RunOptions(), [0])
    assert "EnvPool does not render: this is Gymnasium's CartPole-v1" in caplog.text


def test_a_preview_is_shown_by_a_notebook(lamp: DQN) -> None:
    html = lamp.preview()._repr_html_()
    assert html.startswith('<video controls muted loop playsinline aria-label="dqn on Lamp, 1 episode(s)" src="data:vi')
    assert repr(lamp.preview()) == "<a film of dqn on Lamp, 1 episode(s); a notebook shows it>"


def test_a_report_holds_the_film(cartpole: TrainResult, tmp_path: Path) -> None:
    made = call("report", cartpole.run_dir, "--out", tmp_path / "report.html", "--videos", 1)
    assert made.exit_code == 0, made.output
    page = (tmp_path / "report.html").read_text("utf-8")
    one = cartpole.eval_episodes[0]
    assert f"<p>seed 0, returns {return_text(one.ret)}</p>" in page
    (film,) = re.findall('src="data:video/mp4;base64,([^"]+)"', page)
    (tmp_path / "film.mp4").write_bytes(base64.b64decode(film))
    assert len(decoded(tmp_path / "film.mp4")[0]) == one.length + 1


# --- Environments and machines that cannot render --------------------------------------------------------------------


def test_an_environment_without_pictures_is_named(cartpole: TrainResult, tmp_path: Path) -> None:
    config = make_config(tmp_path, env_id="rl_training/Chain-v0")
    with pytest.raises(EnvError, match=r"^rl_training/Chain-v0 cannot be filmed: it has no render modes$"):
        film_episodes(tmp_path / "a.mp4", cartpole.algorithm, config, RunOptions(), [0])
    assert list(tmp_path.iterdir()) == []


def test_the_render_modes_of_an_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Lamp.metadata, "render_modes", ["human"])
    with pytest.raises(EnvError, match=r"^Lamp-v0 cannot be filmed: its render modes are human$"):
        rendering_factory(Lamp, "rgb_array", "Lamp-v0")


def test_a_function_that_fixes_the_render_mode_is_explained() -> None:
    with pytest.raises(EnvError, match="render_mode None; let it take an argument render_mode and pass it on"):
        rendering_factory(without_argument, "rgb_array", "Lamp-v0")


def test_an_environment_that_fails_to_render_says_why() -> None:
    def fail(render_mode: str | None = None) -> Lamp:
        if render_mode:
            raise RuntimeError("no screen")
        return Lamp()

    with pytest.raises(EnvError, match=r"^Lamp-v0 cannot be filmed: the environment raised RuntimeError: no screen$"):
        rendering_factory(fail, "rgb_array", "Lamp-v0")


def test_a_function_that_makes_rendering_environments_is_used_as_it_is() -> None:
    def make() -> Lamp:
        return Lamp("rgb_array")

    assert rendering_factory(make, "rgb_array", "Lamp-v0") == (make, 30.0)


def test_vector_environments_are_filmed_as_single_ones_are() -> None:
    def drawn(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([partial(gym.make, "CartPole-v1", render_mode="rgb_array")] * num_envs)

    def choosing(num_envs: int, render_mode: str | None = None) -> gym.vector.VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([partial(gym.make, "CartPole-v1", render_mode=render_mode)] * num_envs)

    registered = make_vector_factory("CartPole-v1", {"vectorization_mode": "sync"})
    for factory in (registered, *(make_vector_factory("mine", {}, function) for function in (drawn, choosing))):
        rendering, speed = rendering_factory(factory, "rgb_array", "CartPole-v1")
        with SyncEnvs(rendering) as envs:
            envs.reset([0], [0])
            assert envs.render().shape == (400, 600, 3)
        assert speed == 50.0
    with pytest.raises(EnvError, match="render_mode None; let it take an argument render_mode and pass it on"):
        rendering_factory(make_vector_factory("mine", {}, lambda num_envs: choosing(num_envs)), "rgb_array", "mine")


def test_mujoco_without_opengl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.mujoco import mujoco_rendering

    def no_library(width: int, height: int) -> None:
        raise ImportError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(mujoco_rendering.OffScreenViewer, "free", lambda viewer: None)  # fails for half a viewer
    monkeypatch.setitem(mujoco_rendering._ALL_RENDERERS, "egl", no_library)
    factory, _ = rendering_factory(RegisteredEnv("InvertedPendulum-v5"), "rgb_array", "InvertedPendulum-v5")
    with SyncEnvs(factory) as envs:
        envs.reset([0], [0])
        with pytest.raises(EnvError, match=r"^MuJoCo cannot render here: no display and no EGL"), explains_opengl():
            envs.render()


def test_an_import_of_mujoco_that_finds_no_opengl_says_what_to_install() -> None:
    code = compile("raise AttributeError('glGetError')", "/site-packages/mujoco/egl/__init__.py", "exec")

    def build() -> None:
        try:
            exec(code)
        except AttributeError as cause:
            raise EnvError("could not be built") from cause

    message = r"^MuJoCo cannot render here: .*osmesa \(AttributeError: glGetError\)$"
    with pytest.raises(EnvError, match=message), explains_opengl():
        build()


def test_other_errors_of_rendering_stay_as_they_are() -> None:
    with pytest.raises(EnvError, match=r"^something else$"), explains_opengl():
        raise EnvError("something else")


@pytest.mark.parametrize(
    ("display", "chosen", "expected"), [("", None, "egl"), ("", "osmesa", "osmesa"), (":0", None, None)]
)
def test_mujoco_draws_by_egl_only_without_a_display(
    display: str, chosen: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {name: value for name, value in (("DISPLAY", display), ("MUJOCO_GL", chosen)) if value}
    monkeypatch.setattr("os.environ", environment)
    draw_without_display()
    assert environment.get("MUJOCO_GL") == expected


def test_other_endings_and_missing_packages_are_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "a video is a .mp4, .gif or .webp file, got" in call("video", tmp_path, "--out", "film.avi").stderr
    monkeypatch.setitem(sys.modules, "av", None)
    refused = call("video", tmp_path / "no_run", "--out", tmp_path / "film.mp4")
    assert refused.exit_code == 2
    assert refused.stderr == 'error: a .mp4 video needs the package av: pip install "rl-training[video]"\n'


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), 1e9])
def test_settings_of_a_film_are_checked(fps: float) -> None:
    with pytest.raises(ConfigError, match=r"fps must be from 0.1 to 240, got "):
        FilmSettings(fps=fps)


@pytest.mark.parametrize("declared", [0, -5, "fast", None])
def test_an_environment_that_declares_no_speed_has_a_usual_one(
    declared: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Lamp.metadata, "render_fps", declared)
    assert rendering_factory(Lamp, "rgb_array", "Lamp-v0")[1] == 30.0


def test_a_film_that_fails_leaves_nothing(tmp_path: Path) -> None:
    old = tmp_path / "film.mp4"
    old.write_text("the film before", "utf-8")
    wrong = np.zeros((4, 4), np.uint8)  # grey
    with pytest.raises(ValueError, match="ndim"), video_file(old, fps=30) as show:
        show(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    assert old.read_text("utf-8") == "the film before"


# --- A window --------------------------------------------------------------------------------------------------------


def test_play_shows_the_episodes_in_a_window(cartpole: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    import pygame

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a window that nobody sees
    opened: list[tuple[int, int]] = []
    set_mode = pygame.display.set_mode

    def noted(size: tuple[int, int]) -> Any:
        opened.append(size)
        return set_mode(size)

    monkeypatch.setattr(pygame.display, "set_mode", noted)
    shown = call("play", cartpole.run_dir, "--episodes", 1)
    assert shown.exit_code == 0, shown.output
    one = cartpole.eval_episodes[0]
    assert (shown.stdout, opened) == (f"episode 0  return {return_text(one.ret)}, {one.length} steps\n", [(600, 400)])


def test_play_without_a_display_points_to_the_film(cartpole: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    refused = call("play", cartpole.run_dir)
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: there is no display to open a window on: DISPLAY is not set; "
        f"rl-training video {cartpole.run_dir} --out agent.mp4 makes a film\n"
    )
