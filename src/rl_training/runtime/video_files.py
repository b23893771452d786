"""Write pictures as a film: .mp4 by PyAV, .gif and .webp by Pillow, both imported only then."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rl_training.core.extras import require
from rl_training.errors import ConfigError

PACKAGES = {".mp4": "av", ".gif": "PIL.Image", ".webp": "PIL.Image"}  # file ending -> the module that writes it
_MOST_PICTURES = 25.0  # per second in a .gif or .webp, which take more space than an .mp4; a .gif counts hundredths
_MOST_WIDTH = 320  # of a .gif or .webp, if none is given
_QUALITY = "28"  # of x264 (crf); a smaller number looks better and takes more space

Show = Callable[[np.ndarray], None]  # takes the next picture, (height, width, 3) uint8


def check_video_file(path: Path) -> ModuleType:
    """Return the module that writes such a file; raise `ConfigError` for other endings and for a missing package."""
    ending = path.suffix.lower()
    if ending not in PACKAGES:
        raise ConfigError(f"a video is a .mp4, .gif or .webp file, got {str(path)!r}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not the name of a video")
    return require(PACKAGES[ending], extra="video", what=f"a {ending} video")


@contextmanager
def video_file(path: Path, *, fps: float, width: int | None = None) -> Iterator[Show]:
    """Yield a function that adds pictures to a new film; the file appears when the block ends without an error.

    `fps`: pictures per second. `width`: pixels; by default those of the first picture, at most 320 in a .gif or .webp.
    """
    module = check_video_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}_{os.getpid()}{path.suffix}")
    film = _Mp4(module, temporary, fps, width) if path.suffix.lower() == ".mp4" else _Animation(module, fps, width)
    try:
        yield film.show
        film.finish(temporary)
        temporary.replace(path)
    finally:
        film.close()
        temporary.unlink(missing_ok=True)


class _Mp4:
    """One H.264 stream that every browser plays; odd sizes are cut by a pixel, since it stores colours in pairs."""

    def __init__(self, av: Any, path: Path, fps: float, width: int | None) -> None:
        self._av, self._fps, self._width = av, Fraction(fps).limit_denominator(1000), width
        # Without the index in front, a browser must load the whole file before it plays.
        self._container = av.open(str(path), "w", options={"movflags": "+faststart"})
        self._stream: Any = None

    def show(self, picture: np.ndarray) -> None:
        if self._stream is None:
            self._stream = self._start(*picture.shape[:2])
        size = {"width": self._stream.width, "height": self._stream.height}
        if self._width is None:
            picture = np.ascontiguousarray(picture[: size["height"], : size["width"]])
        frame = self._av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(**size, format="yuv420p")
        self._container.mux(self._stream.encode(frame))

    def finish(self, path: Path) -> None:
        if self._stream is not None:
            self._container.mux(self._stream.encode())
        self._container.close()

    def close(self) -> None:
        self._container.close()

    def _start(self, height: int, width: int) -> Any:
        stream = self._container.add_stream("libx264", rate=self._fps, options={"crf": _QUALITY})
        scale = 1.0 if self._width is None else self._width / width
        stream.width, stream.height = (_even(length * scale) for length in (width, height))
        stream.pix_fmt = "yuv420p"
        return stream


class _Animation:
    """Pictures that a page shows like an image, forever again; some are left out where they would come too fast."""

    def __init__(self, image: Any, fps: float, width: int | None) -> None:
        self._image, self._width = image, width
        self._every = max(1, round(fps / _MOST_PICTURES))
        self._seconds = self._every / fps
        self._pictures: list[Any] = []
        self._seen = 0

    def show(self, picture: np.ndarray) -> None:
        if self._seen % self._every == 0:
            self._pictures.append(self._shrunk(self._image.fromarray(picture)))
        self._seen += 1

    def finish(self, path: Path) -> None:
        first, *others = self._pictures
        first.save(
            path, save_all=True, append_images=others, duration=round(1000 * self._seconds), loop=0, optimize=True
        )

    def close(self) -> None:
        pass

    def _shrunk(self, picture: Any) -> Any:
        width = self._width or min(picture.width, _MOST_WIDTH)
        size = (width, max(1, round(picture.height * width / picture.width)))
        return picture if size == picture.size else picture.resize(size)


def _even(length: float) -> int:
    return max(2, round(length) // 2 * 2)
