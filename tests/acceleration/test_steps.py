"""Every fast path returns the results of the eager one, and native code is loaded only from a private cache."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor, nn

from builders import make_setup
from rl_training.acceleration import compiled_packages, compiled_steps, native_build, steps
from rl_training.acceleration.cuda_graphs import capture_step
from rl_training.acceleration.step_checks import repeated_checks
from rl_training.acceleration.steps import accelerate, accelerate_rounds, resolve_acceleration
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.optim import adam


class TinyQLearning:
    """A network with a constant, and a step with the parts of a real one: target, gradient, Adam, counted sync."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.flat = FlatModule(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)))
        self.scale = torch.tensor([1.0, 0.5])
        params = self.flat.params
        self.state = {
            "params": params,
            "target": params.clone() * 0.9,
            "mean": torch.zeros_like(params),
            "square": torch.zeros_like(params),
            "count": torch.zeros((), dtype=torch.int64),
        }

    def step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> tuple[Tensor, Metrics]:
            next_values = (self.flat.apply(state["target"], batch["next_obs"]) * self.scale).amax(1)
            td_target = batch["rewards"] + 0.9 * (~batch["terminated"]) * next_values
            values = self.flat.apply(params, batch["obs"]).gather(1, batch["actions"][:, None]).squeeze(1)
            td_errors = td_target - values
            mse = F.mse_loss(values, td_target)
            return mse, {"loss": mse, "td_errors": td_errors, "old_count": state["count"]}

        gradient, metrics = torch.func.grad(loss, has_aux=True)(state["params"])
        params, mean, square, count = adam(
            state["params"], gradient, state["mean"], state["square"], state["count"], learning_rate=batch["rate"]
        )
        target = torch.where(count % 3 == 0, params, state["target"])
        return {"params": params, "target": target, "mean": mean, "square": square, "count": count}, metrics


def make_batch(seed: int, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, 7, generator=generator)[:, :3],  # a part of wider rows, with their stride
        "next_obs": torch.randn(size, 3, generator=generator),
        "actions": torch.randint(0, 2, (size,), generator=generator),
        "rewards": torch.randn(size, generator=generator),
        "terminated": torch.rand(size, generator=generator) < 0.3,
        "rate": torch.tensor(0.01 / (1 + seed)),
    }


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder. The first test that needs the tiny step compiles it there, once for this file."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of all users, empty."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(autouse=True)
def _one_thread_and_own_cache(warm_cache: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(warm_cache))
    monkeypatch.setenv("TMPDIR", str(shared_folder))
    monkeypatch.setattr(tempfile, "tempdir", str(shared_folder))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delitem(native_build.OPTIONS, "aot_inductor.compile_wrapper_opt_level")  # compile as for users
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compiled_once(warm_cache: Path) -> Path:
    """The package of the tiny step, compiled unless an earlier test did so."""
    tiny = TinyQLearning()
    accelerate(tiny.step, "compile")(tiny.state, make_batch(0))
    (package,) = (warm_cache / "aoti").glob("*.pt2")
    return package


def never_compile(*_: object) -> None:
    raise AssertionError("compiled again")


# --- The update ------------------------------------------------------------------------------------------------------


@pytest.mark.compile
def test_compile_equals_eager_over_ten_updates() -> None:
    plain, fast = TinyQLearning(), TinyQLearning()
    update, compiled = accelerate(plain.step, "eager"), accelerate(fast.step, "compile")
    for seed in range(10):
        expected, metrics = update(plain.state, make_batch(seed)), compiled(fast.state, make_batch(seed))
        torch.testing.assert_close(metrics, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fast.state, plain.state, rtol=1e-5, atol=1e-6)
    assert fast.state["count"].item() == 10


@pytest.mark.parametrize("mode", ["eager", pytest.param("compile", marks=pytest.mark.compile)])
def test_the_state_keeps_its_memory_and_earlier_metrics_their_values(mode: str) -> None:
    tiny = TinyQLearning()
    pointers = {name: tensor.data_ptr() for name, tensor in tiny.state.items()}
    before = tiny.state["params"].clone()
    update = accelerate(tiny.step, mode)
    first = update(tiny.state, make_batch(0))
    first_loss = first["loss"].item()
    update(tiny.state, make_batch(1))
    assert {name: tensor.data_ptr() for name, tensor in tiny.state.items()} == pointers
    assert not torch.equal(tiny.state["params"], before)
    assert (first["loss"].item(), first["old_count"].item()) == (first_loss, 0)  # not overwritten by the second update
    assert torch.equal(next(tiny.flat.module.parameters()).reshape(-1), tiny.state["params"][:48])


def test_a_new_value_that_is_another_tensor_of_the_state_is_read_before_the_state_changes() -> None:
    state = {"params": torch.tensor([1.0]), "target": torch.tensor([0.0])}
    step = accelerate(lambda s, b: ({"params": s["params"] + 1, "target": s["params"]}, {}), "eager")
    step(state, {})
    assert (state["params"].item(), state["target"].item()) == (2.0, 1.0)


@pytest.mark.compile
def test_another_batch_layout_gets_its_own_program(compiled_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TinyQLearning()
    update = accelerate(tiny.step, "compile")
    update(tiny.state, make_batch(0))
    monkeypatch.setattr(compiled_packages, "_build_package", never_compile)
    update(tiny.state, dict(reversed(make_batch(0).items())))  # the order of the names does not change the package
    for other in (make_batch(0, size=9), make_batch(0) | {"obs": make_batch(0)["obs"].contiguous()}):
        with pytest.raises(AssertionError, match="compiled again"):
            update(tiny.state, other)


@pytest.mark.compile
def test_a_step_that_reads_parameters_from_the_module_is_refused() -> None:
    tiny = TinyQLearning()
    step = accelerate(lambda s, b: ({"params": s["params"] + tiny.flat.module(b["obs"]).sum()}, {}), "compile")
    with pytest.raises(RuntimeError, match="reads its state from outside"):
        step(tiny.state, make_batch(0))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="eager, compile, cuda_graph, got fast"):
        accelerate(TinyQLearning().step, "fast")


# --- Several steps in a call -----------------------------------------------------------------------------------------


def add_rows(state: State, batch: Batch) -> tuple[State, Metrics]:
    """total = 2 * total + the sum of the rows: the result depends on the order of the rounds."""
    total = 2.0 * state["total"] + batch["rows"].sum()
    return {"total": total}, {"total": total, "before": state["total"], "rows": batch["rows"]}


def test_rounds_take_consecutive_rows_and_stack_the_metrics() -> None:
    # Rows 1 2 | 3 4 | 5 6 from 1: 2 * 1 + 3 = 5, 2 * 5 + 7 = 17, 2 * 17 + 11 = 45.
    state = {"total": torch.tensor(1.0)}
    memory = state["total"].data_ptr()
    metrics = accelerate_rounds(add_rows, "eager")(state, {"rows": torch.arange(1.0, 7.0)}, 3)
    assert state["total"].item() == 45.0
    assert state["total"].data_ptr() == memory
    assert metrics["total"].tolist() == [5.0, 17.0, 45.0]
    assert metrics["before"].tolist() == [1.0, 5.0, 17.0]
    assert metrics["rows"].tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_one_round_is_a_plain_step_whose_metrics_are_not_stacked() -> None:
    state, plain = {"total": torch.tensor(1.0)}, {"total": torch.tensor(1.0)}
    metrics = accelerate_rounds(add_rows, "eager")(state, {"rows": torch.ones(4)}, 1)
    expected = accelerate(add_rows, "eager")(plain, {"rows": torch.ones(4)})
    assert metrics["total"].shape == ()
    torch.testing.assert_close(metrics, expected, rtol=0, atol=0)


def test_tensors_of_a_batch_may_differ_in_their_number_of_rows() -> None:
    # Two rounds: two of the four rows each, three of the six numbers each, as for a subset of critics.
    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        return {}, {"rows": batch["rows"].sum(), "numbers": batch["numbers"].sum()}

    batch = {"rows": torch.tensor([1.0, 2.0, 3.0, 4.0]), "numbers": torch.tensor([1, 1, 1, 5, 5, 5])}
    metrics = accelerate_rounds(step, "eager")({}, batch, 2)
    assert metrics["rows"].tolist() == [3.0, 7.0]
    assert metrics["numbers"].tolist() == [3, 15]


def test_rounds_in_an_unknown_mode_are_refused() -> None:
    with pytest.raises(ValueError, match="eager, compile, cuda_graph, got fast"):
        accelerate_rounds(add_rows, "fast")


# --- Captured in a graph ---------------------------------------------------------------------------------------------


def compile_eagerly(step: steps.Step, *_: object) -> steps.InPlaceStep:
    return accelerate(step, "eager")  # code that is called without PyTorch's dispatcher would not be recorded


@pytest.mark.usefixtures("recorded_graphs")
@pytest.mark.parametrize("capture_plain", [False, True])
def test_a_captured_step_equals_the_eager_one_over_ten_updates(
    capture_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = MagicMock(side_effect=compile_eagerly)
    monkeypatch.setattr(steps, "_compile", compiler)
    plain, fast = TinyQLearning(), TinyQLearning()
    update = accelerate(plain.step, "eager")
    captured = accelerate(fast.step, "cuda_graph", "tiny update", capture_plain=capture_plain)
    for seed in range(10):
        expected, metrics = update(plain.state, make_batch(seed)), captured(fast.state, make_batch(seed))
        torch.testing.assert_close(metrics, expected, rtol=0, atol=0, check_stride=False)
        torch.testing.assert_close(fast.state, plain.state, rtol=0, atol=0)
    assert compiler.call_count == (0 if capture_plain else 1)


@pytest.mark.usefixtures("recorded_graphs")
def test_a_captured_step_keeps_the_states_memory_and_earlier_metrics_their_values() -> None:
    tiny = TinyQLearning()
    pointers = {name: tensor.data_ptr() for name, tensor in tiny.state.items()}
    update = accelerate(tiny.step, "cuda_graph", capture_plain=True)
    first = update(tiny.state, make_batch(0))
    kept = {name: value.clone() for name, value in first.items()}
    update(tiny.state, make_batch(1))
    assert {name: tensor.data_ptr() for name, tensor in tiny.state.items()} == pointers
    assert tiny.state["count"].item() == 2  # the warm-up did not change the state
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


@pytest.mark.usefixtures("recorded_graphs")
def test_all_rounds_are_captured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_compile", compile_eagerly)
    state, update = {"total": torch.tensor(1.0)}, accelerate_rounds(add_rows, "cuda_graph")
    metrics = [update(state, {"rows": torch.arange(1.0, 7.0)}, 3)["total"].tolist() for _ in range(2)]
    # As above, then starting from 45: 2 * 45 + 3 = 93, 2 * 93 + 7 = 193, 2 * 193 + 11 = 397.
    assert metrics == [[5.0, 17.0, 45.0], [93.0, 193.0, 397.0]]


# --- The comparison with eager ---------------------------------------------------------------------------------------


Corruption: TypeAlias = Callable[[list[Tensor], list[Tensor]], object]  # of the inputs and outputs of a program


def corrupt_programs(monkeypatch: pytest.MonkeyPatch, change: Corruption) -> None:
    """Make each compiled program change its inputs and outputs wrongly after it ran, as a wrong kernel would."""
    open_package = compiled_packages._open_package

    def opened(path: Path) -> compiled_packages.Program:
        program = open_package(path)

        def run(tensors: list[Tensor]) -> list[Tensor]:
            inputs = list(tensors)  # a program takes the tensors out of its argument
            outputs = program(tensors)
            change(inputs, outputs)
            return outputs

        return run

    monkeypatch.setattr(compiled_packages, "_open_package", opened)


STATE_NAMES = ["count", "mean", "params", "square", "target"]  # in the order of a program's inputs


@pytest.mark.compile
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda inputs, outputs: inputs[STATE_NAMES.index("params")][:20].mul_(1.5), "params"),
        (lambda inputs, outputs: inputs[STATE_NAMES.index("mean")][-1:].neg_(), "mean"),  # the bias of one action
        (lambda inputs, outputs: inputs[STATE_NAMES.index("square")][0].fill_(torch.nan), "square"),
        (lambda inputs, outputs: inputs[STATE_NAMES.index("count")].add_(1), "count"),
        (lambda inputs, outputs: outputs[0].mul_(1.1), "loss"),
    ],
    ids=["parameters", "one gradient", "nan", "integer", "metric"],
)
def test_a_corrupt_kernel_is_named_and_replaced_by_the_eager_step(
    change: Corruption,
    named: str,
    known_step: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    corrupt_programs(monkeypatch, change)
    plain, fast = TinyQLearning(), TinyQLearning()
    update = accelerate(plain.step, "eager")
    compiled = accelerate(a_step_of_the_package(fast), "compile", "tiny update", identity="new")
    for seed in range(3):
        expected, metrics = update(plain.state, make_batch(seed)), compiled(fast.state, make_batch(seed))
        torch.testing.assert_close(metrics, expected, rtol=0, atol=0)
        torch.testing.assert_close(fast.state, plain.state, rtol=0, atol=0)
    (warning,) = [message for message in caplog.messages if "differs" in message]
    assert warning.startswith("the compiled tiny update differs from the eager one by more than rounding in ")
    assert named in warning
    assert len(list(known_step.glob("step_*.json"))) == 1  # the step is not recorded as one that was compared


@pytest.mark.compile
def test_rounding_is_no_difference(
    compiled_once: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    corrupt_programs(monkeypatch, lambda inputs, outputs: [tensor.mul_(1 + 3e-7) for tensor in (inputs[2], outputs[0])])
    tiny = TinyQLearning()
    accelerate(tiny.step, "compile")(tiny.state, make_batch(0))
    assert caplog.messages == []


@pytest.mark.compile
def test_a_kernel_that_turns_wrong_later_is_found_by_a_repeated_check(
    compiled_once: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_wrong = False
    corrupt_programs(monkeypatch, lambda inputs, outputs: inputs[2].neg_() if is_wrong else None)
    tiny = TinyQLearning()
    update = accelerate(tiny.step, "compile")
    with repeated_checks(3):
        update(tiny.state, make_batch(0))
        is_wrong = True
        update(tiny.state, make_batch(1))
        assert caplog.messages == []
        before = {name: tensor.clone() for name, tensor in tiny.state.items()}
        update(tiny.state, make_batch(2))
    assert "differs from the eager one by more than rounding in params" in caplog.messages[0]
    accelerate(tiny.step, "eager")(before, make_batch(2))
    torch.testing.assert_close(tiny.state, before, rtol=0, atol=0)


@pytest.mark.compile
def test_checks_do_not_change_the_results(compiled_once: Path) -> None:
    def run(every: int) -> State:
        tiny = TinyQLearning()
        update = accelerate(tiny.step, "compile")
        with repeated_checks(every):
            for seed in range(6):
                update(tiny.state, make_batch(seed))
        return tiny.state

    torch.testing.assert_close(run(every=2), run(every=0), rtol=0, atol=0)


@pytest.mark.usefixtures("recorded_graphs")
def test_a_corrupt_captured_step_is_replaced_by_the_eager_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def capture_wrongly(*arguments: Any, **options: Any) -> steps.InPlaceStep:
        captured = capture_step(*arguments, **options)

        def step(state: State, batch: Batch) -> Metrics:
            metrics = captured(state, batch)
            state["total"].mul_(2.0)
            return metrics

        return step

    monkeypatch.setattr(steps, "_compile", compile_eagerly)
    monkeypatch.setattr(steps, "capture_step", capture_wrongly)
    state, update = {"total": torch.tensor(1.0)}, accelerate_rounds(add_rows, "cuda_graph")
    assert update(state, {"rows": torch.arange(1.0, 7.0)}, 3)["total"].tolist() == [5.0, 17.0, 45.0]
    assert state["total"].item() == 45.0
    assert "differs from the eager one by more than rounding in total" in caplog.messages[0]


# --- The cache -------------------------------------------------------------------------------------------------------


@pytest.mark.compile
def test_a_second_build_loads_the_package_from_the_cache(compiled_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_packages, "_build_package", never_compile)
    tiny = TinyQLearning()
    accelerate(tiny.step, "compile")(tiny.state, make_batch(0))
    assert tiny.state["count"].item() == 1


@pytest.mark.compile
def test_a_changed_constant_or_thread_count_is_another_package(
    compiled_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_packages, "_build_package", never_compile)
    tiny = TinyQLearning()
    tiny.scale.mul_(2.0)
    with pytest.raises(AssertionError, match="compiled again"):
        accelerate(tiny.step, "compile")(tiny.state, make_batch(0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    tiny = TinyQLearning()
    with pytest.raises(AssertionError, match="compiled again"):
        accelerate(tiny.step, "compile")(tiny.state, make_batch(0))


@pytest.mark.compile
@pytest.mark.parametrize("damage", ["cut", "one byte", "empty"])
def test_a_damaged_package_is_compiled_again(
    damage: str, compiled_once: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = compiled_once.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    compiled_once.write_bytes({"cut": whole[:middle], "one byte": flipped, "empty": b""}[damage])
    monkeypatch.setattr(compiled_packages, "_build_package", lambda graph, inputs, path: path.write_bytes(whole))
    tiny = TinyQLearning()
    with caplog.at_level(logging.DEBUG, "rl_training.acceleration"):
        accelerate(tiny.step, "compile", name="critic update")(tiny.state, make_batch(0))
    assert tiny.state["count"].item() == 1
    assert compiled_once.read_bytes() == whole
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        f"{compiled_once} is damaged",
        "compiling the critic update",
        "compiled the critic update in 0 s",
    ]
    others = {path.name for path in compiled_once.parent.iterdir()} - {compiled_once.name}
    assert others == {"inductor"}  # no temporary file is left


def test_a_cache_folder_that_others_can_write_is_replaced_by_one_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "new"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = compiled_packages.cache_dir()
    assert folder == (tmp_path / "new" / "aoti").resolve()
    folder.parent.chmod(0o777)
    other = compiled_packages.cache_dir()
    assert other == compiled_packages.cache_dir()
    assert other != folder
    assert other.stat().st_mode & 0o777 == 0o700
    (warning,) = caplog.messages  # once, although the folder was asked for twice
    assert f"chmod go-w {folder.parent}" in warning
    assert "each process compiles its updates again" in warning


@pytest.mark.compile
def test_compiling_writes_no_file_to_the_shared_temporary_folder(compiled_once: Path, shared_folder: Path) -> None:
    # Importing PyTorch's compiler may create an empty folder there.
    assert [path for path in shared_folder.rglob("*") if not path.is_dir()] == []


@pytest.mark.compile
def test_a_package_that_others_can_write_is_not_loaded_but_compiled_again(
    compiled_once: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = compiled_once.read_bytes()
    compiled_once.chmod(0o620)
    monkeypatch.setattr(compiled_packages, "_build_package", lambda graph, inputs, path: path.write_bytes(whole))
    tiny = TinyQLearning()
    accelerate(tiny.step, "compile")(tiny.state, make_batch(0))
    assert tiny.state["count"].item() == 1
    assert f"{compiled_once} is writable by others (mode 620)" in caplog.messages[0]
    assert compiled_once.stat().st_mode & 0o777 == 0o600


def test_torch_compile_keeps_its_files_in_the_private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "shared"))
    compiled_packages.keep_compiler_files_private()
    private = tmp_path.resolve() / "aoti" / "inductor"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == os.environ["TRITON_CACHE_DIR"] == str(private)
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.compile
def test_a_cache_folder_that_cannot_be_created_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "file"))
    tiny = TinyQLearning()
    with pytest.raises(ConfigError, match="RL_TRAINING_CACHE to another folder, or use acceleration: eager"):
        accelerate(tiny.step, "compile")(tiny.state, make_batch(0))


def test_the_cache_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_TRAINING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_packages.cache_dir() == tmp_path / "rl_training" / "aoti"


@pytest.mark.compile
@pytest.mark.parametrize("answer", ["exit 1", "echo c++ 1.0; exit 0"])  # to --version
def test_a_compiler_that_fails_is_a_clear_error(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {answer}; fi\nexit 1\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    import torch._inductor.config  # takes a second, which the other tests do not need

    tiny = TinyQLearning()
    with (
        torch._inductor.config.patch({"cpp.cxx": (None, str(compiler))}),  # PyTorch reads $CXX only once
        pytest.raises(ConfigError, match=r"c\+\+ failed; use acceleration: eager, or fix this: "),
    ):
        accelerate(tiny.step, "compile")(tiny.state, make_batch(0))


@pytest.mark.compile
@pytest.mark.parametrize("flags", [[], ["-static-libstdc++"]])
def test_a_program_with_a_cpp_library_of_its_own_is_refused(flags: list[str], tmp_path: Path) -> None:
    source, program = tmp_path / "x.cpp", tmp_path / "x.so"
    source.write_text("#include <string>\nstd::string twice(const std::string& text) { return text + text; }\n")
    subprocess.run([*compiled_packages.compiler(), "-shared", "-fPIC", source, "-o", program, *flags], check=True)
    refused = pytest.raises(native_build.OwnCppLibraryError, match=r"set \$CXX to a compiler that uses libstdc\+\+\.so")
    expected: contextlib.AbstractContextManager[object] = refused if flags else contextlib.nullcontext()
    with expected:
        native_build.check_cpp_library([tmp_path / "x.cpp", program])


# --- The choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "device_type", "worth", "expected"),
    [
        ("auto", "cuda", False, "cuda_graph"),
        ("auto", "cpu", False, "eager"),
        ("auto", "cpu", True, "compile"),
        ("eager", "cuda", True, "eager"),
        ("compile", "cpu", False, "compile"),
    ],
)
def test_auto_depends_on_the_device_and_the_length_of_the_run(
    requested: str, device_type: str, worth: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.acceleration.steps.compiler_available", lambda: True)
    assert resolve_acceleration(requested, device_type=device_type, worth_compiling=worth) == expected


def test_a_cuda_graph_on_the_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="cuda_graph needs a CUDA device, but the device is cpu"):
        resolve_acceleration("cuda_graph", device_type="cpu", worth_compiling=False)


def test_without_a_compiler_compile_is_refused_and_auto_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++ -O2")
    assert not compiled_packages.compiler_available()
    with pytest.raises(ConfigError, match=r"/nowhere/c\+\+ was not found; install it, or use acceleration: eager"):
        accelerate(TinyQLearning().step, "compile")
    assert resolve_acceleration("auto", device_type="cpu", worth_compiling=True) == "eager"


# --- Known steps, loaded without tracing -----------------------------------------------------------------------------


def a_step_of_the_package(tiny: TinyQLearning) -> steps.Step:
    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        return tiny.step(state, batch)

    step.__module__ = "rl_training.algorithms.tiny"
    return step


def never_trace(*_: object) -> None:
    raise AssertionError("traced again")


@pytest.fixture
def known_step(compiled_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that knows the tiny step by the identity "tiny"."""
    folder = tmp_path / "aoti"
    folder.mkdir(mode=0o700)
    (folder / compiled_once.name).write_bytes(compiled_once.read_bytes())
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled_packages, "_build_package", never_compile)
    tiny = TinyQLearning()
    accelerate(a_step_of_the_package(tiny), "compile", identity="tiny")(tiny.state, make_batch(0))
    return folder


@pytest.mark.compile
def test_a_step_that_was_compiled_before_is_not_traced_again(known_step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fast = TinyQLearning(), TinyQLearning()
    expected = accelerate(plain.step, "eager")(plain.state, make_batch(1))
    monkeypatch.setattr(compiled_steps, "trace", never_trace)
    metrics = accelerate(a_step_of_the_package(fast), "compile", identity="tiny")(fast.state, make_batch(1))
    assert list(metrics) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value)
    torch.testing.assert_close(fast.state["params"], plain.state["params"])


@pytest.mark.compile
@pytest.mark.parametrize("change", ["identity", "source", "module", "shape", "step", "precision"])
def test_a_step_that_may_differ_is_traced(known_step: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(compiled_steps, "trace", never_trace)
    tiny = TinyQLearning()
    step = a_step_of_the_package(tiny)
    if change == "source":
        monkeypatch.setattr(compiled_packages, "_source_digest", lambda: "another")
    if change == "module":
        step.__module__ = "someone.elses"
    if change == "step":  # another step of the same algorithm, on the same tensors
        step.__qualname__ = "Tiny.another"
    if change == "precision":
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    update = accelerate(step, "compile", identity="another" if change == "identity" else "tiny")
    with pytest.raises(AssertionError, match="traced again"):
        update(tiny.state, make_batch(0, size=9 if change == "shape" else 8))


@pytest.mark.compile
@pytest.mark.parametrize("damage", ["", "{}", '{"package": "../../x.pt2", "metrics": []}', "[1]", "\x00"])
def test_a_step_whose_record_is_damaged_is_traced_and_the_record_written_again(known_step: Path, damage: str) -> None:
    (record,) = known_step.glob("step_*.json")
    intact = record.read_text()
    record.write_text(damage)
    tiny = TinyQLearning()
    accelerate(a_step_of_the_package(tiny), "compile", identity="tiny")(tiny.state, make_batch(0))
    assert record.read_text() == intact


def test_a_setup_with_a_users_network_has_no_identity() -> None:
    assert make_setup().identity == make_setup().identity
    assert make_setup().identity != make_setup(gamma=0.5).identity
    assert make_setup().identity != make_setup(num_actions=3).identity
    assert make_setup(network=nn.Linear(3, 2)).identity is None


def test_spaces_that_differ_in_the_middle_of_long_arrays_have_other_identities() -> None:
    sizes = np.full(2_000, 3)
    others = sizes.copy()
    others[[1_000, 1_001]] = 2, 4
    setups = [replace(make_setup(), spaces=Spaces(Discrete(2), MultiDiscrete(nvec))) for nvec in (sizes, others)]
    assert setups[0].identity != setups[1].identity


def test_what_a_killed_compilation_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, running = tmp_path / "tmp_old", tmp_path / "tmp_running"
    for folder in (old, running):
        folder.mkdir()
        (folder / "step.cpp").write_text("half")
    kept = tmp_path / "step.pt2"
    kept.write_text("whole")
    two_days_ago = time.time() - 2 * 24 * 3600
    for path in (old, kept):
        os.utime(path, (two_days_ago, two_days_ago))
    compiled_packages.remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == [kept, running]


def test_options_that_this_compiler_lacks_are_left_out() -> None:
    from torch._inductor import config

    assert native_build._is_known("aot_inductor.package", config)
    assert not native_build._is_known("aot_inductor.no_such_option", config)
