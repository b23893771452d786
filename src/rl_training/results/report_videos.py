"""The films of a report: one run of each group, inside the page where they fit, otherwise in a folder beside it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.durable_files import write_synced
from rl_training.errors import UserError
from rl_training.results.html import BASE64, heading, link, paragraph, video
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import Runs

MAX_VIDEO_BYTES = 2_000_000  # of one film inside the page

Film = Callable[[RunRecord], tuple[bytes, str]]  # returns a .mp4 film of a run and what it shows


@dataclass(frozen=True, slots=True)
class Clip:
    """The film of a group; without data, the text says why there is none."""

    label: str
    text: str
    data: bytes = b""


def film_groups(groups: Mapping[str, Runs], film: Film) -> list[Clip]:
    """Film the run with the median score of each group: a typical one, not the luckiest."""
    clips = []
    for label, runs in groups.items():
        try:
            data, text = film(_median_run(runs))
            clips.append(Clip(label, text, data))
        except (UserError, OSError) as error:
            clips.append(Clip(label, f"no film: {error}"))
    return clips


def _median_run(runs: Runs) -> RunRecord:
    scored = sorted((score, str(run.path), run) for run in runs if (score := run.score) is not None)
    chosen: RunRecord = scored[(len(scored) - 1) // 2][2] if scored else runs[0]
    return chosen


def videos(clips: list[Clip], out: Path, max_bytes: float) -> Iterator[str]:
    """Yield the part of the page `out`, which may take `max_bytes`; write the films that do not fit beside it."""
    yield heading("Videos")
    yield paragraph("Evaluation episodes, played by the run with the median score of each group.", "soft")
    yield '<div class="charts">'
    for number, clip in enumerate(clips):
        yield "\n".join(["<div>", heading(clip.label, 3), paragraph(clip.text)])
        size = len(clip.data) * BASE64
        if clip.data and len(clip.data) <= MAX_VIDEO_BYTES and size <= max_bytes:
            max_bytes -= size
            yield video(clip.data, f"Film: {clip.label}")
        elif clip.data:
            file = out.parent / f"{out.stem}_videos" / f"{number}.mp4"
            file.parent.mkdir(exist_ok=True)
            write_synced(file, clip.data)
            amount = f"{len(clip.data) / 1e6:.1f} MB"
            yield paragraph(f"The film has {amount}, too much for this page; it is a file beside it:", "soft")
            yield link(file.relative_to(out.parent))
        yield "</div>"
    yield "</div>"
