"""`rl-training export check`: what is wrong with a policy of a stranger is found, and nothing in it is unpickled."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from rl_training.cli import app
from rl_training.errors import ExportError, UserError
from rl_training.exporting.check import check_policy
from rl_training.exporting.contract import Contract, Port
from rl_training.exporting.onnx_file import check_self_contained

SCALE = np.array([2.0, 0.5], np.float32)  # the policy: action = observation * scale
OBS = np.random.default_rng(0).standard_normal((12, 2), np.float32)


def onnx_bytes(scale: np.ndarray = SCALE, *, batch: str | int = "batch", name: str = "obs") -> bytes:
    ports = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [batch, 2]) for each in (name, "action")]
    weights = helper.make_tensor("scale", TensorProto.FLOAT, [2], scale)
    graph = helper.make_graph(
        [helper.make_node("Mul", [name, "scale"], ["action"])], "policy", [ports[0]], [ports[1]], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def contract_of(**changes: Any) -> dict[str, Any]:
    ports = {
        name: Port(name=name, shape=("batch", 2), dtype="float32", meaning="two numbers") for name in ("obs", "action")
    }
    contract = Contract(
        algo="sac",
        env_id="Test-v0",
        step=3,
        config_digest="0" * 8,
        observations="numbers",
        inputs=(ports["obs"],),
        outputs=(ports["action"],),
        decision="numbers",
        choices=(),
        inside=("action_scaling",),
        carry=(),
        pairs=len(OBS),
        max_error=0.0,
        tolerance=1e-4,
        latency_us=1.0,
        versions={},
        files={},
    )
    return {**json.loads(contract.model_dump_json()), **changes}


def npz_bytes(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=True, **arrays)
    return stream.getvalue()


PAIRS = {"obs": OBS, "action": OBS * SCALE, "first": np.arange(len(OBS)) == 0}


def write_folder(folder: Path, files: dict[str, bytes], /, **changes: Any) -> Path:
    """Write an exported policy whose contract has the checksums of its files."""
    files = {"policy.onnx": onnx_bytes(), "pairs.npz": npz_bytes(**PAIRS), "README.md": b"", **files}
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (folder / "contract.json").write_text(json.dumps(contract_of(**{"files": digests, **changes})))
    return folder


def test_a_right_policy_passes(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["export", "check", str(write_folder(tmp_path / "policy", {}))])
    assert answer.exit_code == 0, answer.output
    assert "12 equal, largest error 0, allowed 0.0001" in answer.stdout


@pytest.mark.parametrize("name", ["policy.onnx", "pairs.npz", "README.md"])
def test_a_flipped_byte_is_found(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"README.md": b"read me"})
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ExportError, match=f"^{name} does not have the sha256 of contract.json: it was changed$"):
        check_policy(folder)


def test_a_wrong_scaling_is_found_with_right_checksums(tmp_path: Path) -> None:
    """The action of the second number is 1.1 times too large; the largest action of the pairs is that of the first."""
    folder = write_folder(tmp_path, {"policy.onnx": onnx_bytes(SCALE * np.array([1.0, 1.1], np.float32))})
    with pytest.raises(
        ExportError, match=r"differs from its pairs: action \[.*\] instead of \[.*\] in pair 0 \(largest"
    ):
        check_policy(folder)


def test_actions_close_to_zero_are_compared_with_their_bounds(tmp_path: Path) -> None:
    """Rounding of 1e-8 is 1e-3 of actions of 1e-5, but nothing in bounds of 2; twice the actions are still found."""
    small = np.array([1e-5, 1e-5], np.float32)
    pairs = npz_bytes(**{**PAIRS, "action": OBS / np.abs(OBS).max() * small + np.float32(1e-8)})
    bounded = [{**contract_of()["outputs"][0], "low": -2.0, "high": 2.0}]
    right, twice = (onnx_bytes(factor * small / np.abs(OBS).max()) for factor in (1, 2))
    folder = write_folder(tmp_path, {"policy.onnx": right, "pairs.npz": pairs}, outputs=bounded)
    assert check_policy(folder)[1] < 1e-6
    write_folder(tmp_path, {"policy.onnx": twice, "pairs.npz": pairs}, outputs=bounded)
    with pytest.raises(ExportError, match="differs from its pairs"):
        check_policy(folder)


def external(model: onnx.ModelProto) -> None:
    weights = model.graph.initializer[0]
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../../etc/passwd")


def external_in_a_branch(model: onnx.ModelProto) -> None:
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    external(hidden)
    model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.CopyFrom(hidden.graph)


def external_in_a_constant(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.external_data.add(key="location", value="weights.bin")


@pytest.mark.parametrize("hide", [external, external_in_a_branch, external_in_a_constant])
def test_weights_in_other_files_are_refused(hide: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    model = onnx.load_from_string(onnx_bytes())
    hide(model)
    folder = write_folder(tmp_path, {"policy.onnx": model.SerializeToString()})
    with pytest.raises(ExportError, match=r"policy\.onnx stores weights in other files, which are not read"):
        check_policy(folder)


@pytest.mark.parametrize("content", [b"\x00", b"\xff" * 12, b"\x3a\x7f", b"\x0b", b"no ONNX file at all"])
def test_bytes_that_are_no_onnx_file_are_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^policy\.onnx (is damaged|cannot be loaded)"):
        check_policy(write_folder(tmp_path, {"policy.onnx": content}))


@pytest.mark.parametrize("model", [onnx_bytes(batch=12), onnx_bytes(name="observation")], ids=["batch", "name"])
def test_inputs_other_than_those_of_the_contract_are_refused(model: bytes, tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"policy\.onnx has the input \('.*, but its contract says \('obs', \('batch', 2\)"
    ):
        check_policy(write_folder(tmp_path, {"policy.onnx": model}))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([print] * len(OBS), dtype=object)
    with pytest.raises(UserError, match="objects are never loaded"):
        check_policy(write_folder(tmp_path, {"pairs.npz": npz_bytes(**{**PAIRS, "obs": objects})}))


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ({"obs": OBS}, "must hold the arrays obs, action, first, found obs.npy"),
        ({**PAIRS, "obs": OBS.astype(np.float64)}, r"obs must be float32 of shape \(12, 2\), found float64"),
        ({**PAIRS, "action": OBS[:5]}, r"action must be float32 of shape \(12, 2\), found float32 \(5, 2\)"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(pairs: dict[str, np.ndarray], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=problem):
        check_policy(write_folder(tmp_path, {"pairs.npz": npz_bytes(**pairs)}))


def test_a_file_that_unpacks_to_more_than_memory_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in PAIRS:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2)})
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(UserError, match="obs is truncated or damaged"):
        check_policy(write_folder(tmp_path, {"pairs.npz": stream.getvalue()}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"tolerance": 5.0}, "tolerance"),
        ({"inputs": []}, "there must be inputs"),
        ({"outputs": []}, "the first output must be action"),
        ({"decision": "argmax", "choices": [2]}, "there must be a score for each of the choices"),
        ({"carry": [{"input": "h", "output": "next_h"}]}, "there is no h"),
        ({"files": {"/etc/passwd": "0" * 64}}, "names the unknown file '/etc/passwd'"),
        ({"files": {}}, "does not name README.md"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_contract_is_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=problem):
        check_policy(write_folder(tmp_path, {}, **changes))


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_contract_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {})
    (folder / "contract.json").write_text(text)
    with pytest.raises(ExportError, match=r"contract\.json is damaged: "):
        check_policy(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"holds no exported policy: there is no contract\.json in it"):
        check_policy(tmp_path)
    (write_folder(tmp_path, {}) / "pairs.npz").unlink()
    with pytest.raises(ExportError, match=r"is not complete: there is no pairs\.npz in it"):
        check_policy(tmp_path)


# --- Choices ---------------------------------------------------------------------------------------------------------


def choice_files(
    actions: list[int], scores: list[list[float]], mask: list[list[bool]]
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """A policy over two choices that returns its inputs `action` and `scores`; the pairs expect 1, 2, 2."""
    kinds = {"obs": TensorProto.INT64, "logits": TensorProto.FLOAT, "action_mask": TensorProto.BOOL}
    shapes: dict[str, list[Any]] = {"obs": ["batch"], "logits": ["batch", 2], "action_mask": ["batch", 2]}
    inputs = [helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in kinds]
    outputs = [
        helper.make_tensor_value_info("action", TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2]),
    ]
    nodes = [helper.make_node("Identity", ["obs"], ["action"]), helper.make_node("Identity", ["logits"], ["scores"])]
    model = helper.make_model(
        helper.make_graph(nodes, "policy", inputs, outputs), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    arrays = {
        "obs": np.array(actions),
        "logits": np.array(scores, np.float32),
        "action_mask": np.array(mask),
        "action": np.array([1, 2, 2]),
        "scores": np.array(scores, np.float32),
        "first": np.array([True, False, False]),
    }
    dtypes = {"obs": "int64", "logits": "float32", "action_mask": "bool", "action": "int64", "scores": "float32"}
    port = {
        name: {"name": name, "shape": ["batch", *arrays[name].shape[1:]], "dtype": dtype, "low": 1, "meaning": ""}
        for name, dtype in dtypes.items()
    }
    ports = {"inputs": [port[name] for name in kinds], "outputs": [port["action"], port["scores"]]}
    files = {"policy.onnx": bytes(model.SerializeToString()), "pairs.npz": npz_bytes(**arrays)}
    return files, {**ports, "decision": "argmax", "choices": [2], "pairs": 3}


ALL = [[True, True]] * 3
CLEAR = [[9.0, 1.0], [1.0, 9.0], [1.0, 9.0]]
TIE = [[9.0, 1.0], [1.0, 9.0], [9.0, 9.0 + 1e-6]]


@pytest.mark.parametrize(("actions", "scores"), [([1, 2, 2], CLEAR), ([1, 2, 1], TIE)], ids=["same", "tie"])
def test_equal_choices_and_ties_pass(actions: list[int], scores: list[list[float]], tmp_path: Path) -> None:
    files, changes = choice_files(actions, scores, ALL)
    assert check_policy(write_folder(tmp_path, files, **changes))[1] < 1e-6


@pytest.mark.parametrize(
    ("actions", "scores", "mask", "problem"),
    [
        ([1, 1, 2], CLEAR, ALL, r"action 1 instead of 2 in pair 1 \(largest error 0\.89, allowed 1e-4\)"),
        ([1, 2, 3], CLEAR, ALL, r"action 3 instead of 2 in pair 2 \(largest error inf"),
        ([1, 2, 1], TIE, [*ALL[:2], [False, True]], r"action 1 instead of 2 in pair 2 \(largest error inf"),
    ],
    ids=["another", "none of them", "masked tie"],
)
def test_another_choice_is_found(
    actions: list[int], scores: list[list[float]], mask: list[list[bool]], problem: str, tmp_path: Path
) -> None:
    files, changes = choice_files(actions, scores, mask)
    with pytest.raises(ExportError, match=problem):
        check_policy(write_folder(tmp_path, files, **changes))


def test_self_contained_files_pass() -> None:
    check_self_contained(onnx_bytes())


# --- Without torch ---------------------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
for name in ("torch", "gymnasium", "onnx", "onnxscript"):
    sys.modules[name] = None  # importing it raises ImportError
from rl_training.cli import main
main()
"""


@pytest.mark.process
def test_the_check_needs_neither_torch_nor_gymnasium(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "policy", {})
    command = [sys.executable, "-c", WITHOUT_TORCH, "export", "check", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert ended.returncode == 0, ended.stderr
    assert "12 equal" in ended.stdout
