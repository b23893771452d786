"""Damage is refused with the file and the reason: single flipped bits, and values that a valid checksum covers.

Each case opens and loads a copy of one small checkpoint. A case either ends in a `CheckpointError`, or the checkpoint
is accepted because it means the same as before.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import make_config
from rl_training import DQN, RunOptions, resume, train
from rl_training.errors import CheckpointError
from rl_training.experiment.manifest import MANIFEST, MEMORY, POLICY, TRAINING
from rl_training.experiment.run_dir import read_result
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.experiment.state_files import read_tensors
from tampering import edit_manifest, edit_tensors

QUIET = RunOptions(show_progress=False)
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"n_step": 2, "prioritized": True},
    "ppo": {"num_steps": 16, "minibatch_size": 8},
}


@pytest.fixture(scope="module", params=SETTINGS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    config = make_config(folder, algo=request.param, total_timesteps=40, algo_kwargs=SETTINGS[request.param])
    return find_checkpoint(train(config, QUIET).run_dir)


@contextlib.contextmanager
def copied(original: Path) -> Iterator[Path]:
    """Yield a copy of the checkpoint that can be damaged, and remove what was written."""
    folder = original.parent.parent.parent / "case"
    shutil.rmtree(folder, ignore_errors=True)
    yield shutil.copytree(original, folder / "step_000000040")
    shutil.rmtree(folder)


def outcome(checkpoint: Path) -> str:
    """Open the checkpoint and resume it without a further step; return the message of its refusal, if it is refused."""
    try:
        resume(checkpoint, QUIET, total_timesteps=41, output_dir=checkpoint.parent / "forks")
    except CheckpointError as error:
        return str(error)
    return ""


# --- Flipped bits ----------------------------------------------------------------------------------------------------


def test_no_flipped_bit_of_a_manifest_changes_what_is_read(original: Path) -> None:
    content = (original / MANIFEST).read_bytes()
    expected = open_checkpoint(original).manifest
    places = np.random.default_rng(0).integers(8 * len(content), size=400)
    refused = 0
    with copied(original) as checkpoint:
        for place in places.tolist():
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            (checkpoint / MANIFEST).write_bytes(damaged)
            try:
                found = open_checkpoint(checkpoint, parts=()).manifest
            except CheckpointError:
                refused += 1
            else:
                assert {**found, "seal": ""} == {**expected, "seal": ""}, place  # without a seal it is a stranger's
    assert refused > 300  # the others are in white space, or in the seal


@pytest.mark.parametrize("part", [POLICY, TRAINING, MEMORY])
def test_a_flipped_bit_of_any_file_is_found(part: str, original: Path) -> None:
    with copied(original) as checkpoint:
        file = checkpoint / f"{part}.safetensors"
        content = file.read_bytes()
        for place in np.random.default_rng(1).integers(8 * len(content), size=20).tolist():
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=rf"{part}\.safetensors is damaged: its checksum differs"):
                open_checkpoint(checkpoint)


# --- Values with a valid checksum ------------------------------------------------------------------------------------

WRONG: tuple[Any, ...] = (None, "x", -1, 2**200, 1e300, [], {}, [[]], {"a": 1})


def values_of(checkpoint: Path) -> list[tuple[str, str]]:
    """Return the part and the name of each plain value; of several random generators, one is enough."""
    names = {part: list(values) for part, values in open_checkpoint(checkpoint).manifest["values"].items()}
    return [
        (part, name)
        for part, inside in names.items()
        for name in inside
        if "generators|" not in name or "|action|" in name
    ]


def test_plain_values_of_a_wrong_type_are_refused_or_mean_the_same(original: Path) -> None:
    optional = {
        "carry",
        "drawn_carry",
        "action_masks",
        "best_return",
        "logged",
        "callbacks",
        "final_obs",
        "open_returns",
    }
    accepted = []
    for number, (part, name) in enumerate(values_of(original)):
        wrong = WRONG[number % len(WRONG)]
        with copied(original) as checkpoint:

            def replace(manifest: dict[str, Any], part: str = part, name: str = name, wrong: Any = wrong) -> None:
                manifest["values"][part][name] = wrong

            edit_manifest(checkpoint, replace)
            message = outcome(checkpoint)
            if not message:
                accepted.append((name, wrong))
            else:
                assert str(checkpoint) in message
    unexpected = [(name, wrong) for name, wrong in accepted if not optional & set(name.split("|"))]
    # Nothing has ended yet, or no log line was written: an empty list is a valid value there.
    assert [case for case in unexpected if case[1] not in ([], {})] == []


def set_counter(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["counters"].update({name: value})


def set_config(**settings: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["config"].update(settings)


@pytest.mark.parametrize(
    "change",
    [
        *(
            set_counter(name, value)
            for name in ("step", "gradient_step", "best_step")
            for value in (-1, 2.5, "3", 2**80)
        ),
        *(set_counter("wall_s", value) for value in (-1.0, "x", float("nan"), 1e300)),
        set_counter("replayable", 1),
        set_counter("stop_reason", None),
        set_counter("best_step", 10**9),
        set_config(num_envs=10**9),
        set_config(num_envs=2),
        set_config(seed=-1),
        set_config(total_timesteps=[1]),
        set_config(env_kwargs=[[]]),
        set_config(algo_kwargs={"gamma": "x" * 10**5}),
        set_config(unknown=1),
        lambda manifest: manifest.update(schema_version=True),
        lambda manifest: manifest.update(schema_version=2.0),
        lambda manifest: manifest.update(something=1),
        lambda manifest: manifest.update(config=None),
        lambda manifest: manifest["values"].pop("policy"),
    ],
)
def test_counters_and_settings_out_of_range_are_refused(
    change: Callable[[dict[str, Any]], object], original: Path
) -> None:
    with copied(original) as checkpoint:
        edit_manifest(checkpoint, change)
        assert str(checkpoint) in outcome(checkpoint)


def test_no_depth_of_nesting_is_a_bug(original: Path) -> None:
    # Python stops at a number of nested calls, which is reached at another depth in each step of reading.
    with copied(original) as checkpoint:
        text = (checkpoint / MANIFEST).read_text()
        limit = sys.getrecursionlimit()
        refused = []
        try:
            sys.setrecursionlimit(1_000)
            for depth in range(800, 1_000):
                nested = "[" * depth + "]" * depth
                (checkpoint / MANIFEST).write_text(text.replace('"config": {', f'"config": {{"deep": {nested},', 1))
                with pytest.raises(CheckpointError, match="is damaged") as refusal:
                    open_checkpoint(checkpoint, parts=())
                refused.append("checksum differs" in str(refusal.value))
        finally:
            sys.setrecursionlimit(limit)
        assert refused == sorted(refused, reverse=True)
        assert len(set(refused)) == 2


HEADERS: dict[str, tuple[dict[str, Any], bytes]] = {
    "dtype": ({"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}, b"\0"),
    "complex": ({"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}, b"\0" * 8),
    "unknown dtype": ({"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}, b"\0" * 3),
    "axes": ({"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}, b"\0" * 4),
    "a million axes": ({"dtype": "F32", "shape": [1] * 10**6, "data_offsets": [0, 4]}, b"\0" * 4),
    "strides": ({"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}, b""),
    "size": ({"dtype": "F32", "shape": [0, 2**64 - 1], "data_offsets": [0, 0]}, b""),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_no_run_writes_is_refused(kind: str, tmp_path: Path) -> None:
    tensor, data = HEADERS[kind]
    header = json.dumps({"weight": tensor}).encode()
    file = tmp_path / "policy.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors cannot be read: .*(weight|F6_E2M3)"):
        read_tensors(file)


RESHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "gone": lambda tensor: tensor,
    "twice": lambda tensor: torch.stack([tensor, tensor]),
    "another dtype": lambda tensor: tensor.to(torch.float16),
    "single": lambda tensor: tensor.flatten()[:1].reshape(()) if tensor.ndim else tensor[None],
}


def test_tensors_of_another_shape_or_type_are_refused(original: Path) -> None:
    names = [
        (part, name)
        for part in (POLICY, TRAINING, MEMORY)
        for name in read_tensors(original / f"{part}.safetensors")
        if not name.startswith(("last_metrics|", "collector|"))  # open episodes are compared when they are replayed
    ]
    for number, (part, name) in enumerate(names):
        kind = list(RESHAPES)[number % len(RESHAPES)]
        with copied(original) as checkpoint:

            def change(tensors: dict[str, Tensor], name: str = name, kind: str = kind) -> None:
                tensors[name] = RESHAPES[kind](tensors[name])
                if kind == "gone":
                    del tensors[name]

            edit_tensors(checkpoint, part, change)
            assert str(checkpoint) in outcome(checkpoint), (name, kind)


def fill_with_nan(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)


@pytest.mark.parametrize("part", [POLICY, TRAINING])
def test_weights_that_are_not_finite_are_not_used(part: str, original: Path) -> None:
    with copied(original) as checkpoint:
        edit_tensors(checkpoint, part, fill_with_nan)
        assert "holds numbers that are not finite" in outcome(checkpoint)


def test_a_policy_that_is_not_finite_is_not_asked_for_actions(original: Path) -> None:
    with copied(original) as checkpoint:
        edit_tensors(checkpoint, POLICY, fill_with_nan)
        with pytest.raises(CheckpointError, match=r"policy\.safetensors is damaged: .* not finite"):
            open_checkpoint(checkpoint).load(POLICY)


def test_an_emptied_memory_is_not_resumed(original: Path) -> None:
    def empty(tensors: dict[str, Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name][:0]

    with copied(original) as checkpoint:
        edit_tensors(checkpoint, MEMORY, empty)
        edit_manifest(checkpoint, lambda manifest: manifest["values"]["memory"].update(position=0, final_rows=[]))
        assert str(checkpoint) in outcome(checkpoint)


def test_rows_that_no_env_could_give_are_refused(original: Path) -> None:
    def harm(tensors: dict[str, Tensor]) -> None:
        for tensor in tensors.values():
            if tensor.dtype in (torch.int64, torch.float32):
                tensor.fill_(-7 if tensor.dtype == torch.int64 else torch.inf)

    with copied(original) as checkpoint:
        edit_tensors(checkpoint, MEMORY, harm)
        assert str(checkpoint) in outcome(checkpoint)


# --- Files that are no files -----------------------------------------------------------------------------------------

FILES = ["checkpoints/latest", *(f"checkpoints/step_000000040/{name}" for name in (MANIFEST, "policy.safetensors"))]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("file", [*FILES, "config.yaml", "metadata.json", "result.json", "metrics.jsonl", ".lock"])
def test_no_command_waits_for_a_special_file(file: str, kind: str, tmp_path: Path, original: Path) -> None:
    run = shutil.copytree(original.parent.parent, tmp_path / "run")
    (run / file).unlink()
    if kind == "pipe":
        os.mkfifo(run / file)
    elif kind == "device":
        (run / file).symlink_to("/dev/zero")
    else:
        (run / file).mkdir()
    with contextlib.suppress(CheckpointError, ValueError, OSError):
        resume(run, QUIET, total_timesteps=41)
    with contextlib.suppress(CheckpointError, ValueError, OSError):
        DQN.load(run)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"step": "x", "eval": []}',
        '{"step": NaN, "eval": []}',
        '{"step": -1, "eval": []}',
        '{"step": 40}',
        '{"step": 40, "eval": [{}]}',
        '{"step": 40, "eval": [{"return": "x"}]}',
    ],
)
def test_a_result_without_its_values_does_not_finish_a_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    assert read_result(tmp_path) is None


def test_damaged_records_of_a_run_are_reported_and_written_again(
    tmp_path: Path, original: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(original.parent.parent, tmp_path / "run")
    (run / "metadata.json").write_text("[1")
    (run / "result.json").write_bytes(b"\xff")
    result = resume(run, QUIET, total_timesteps=60)
    assert result.step >= 60
    assert caplog.text.count("the checkpoints are intact") >= 2
    assert len(json.loads((run / "metadata.json").read_text())["starts"]) == 1
    assert json.loads((run / "result.json").read_text())["step"] == result.step
