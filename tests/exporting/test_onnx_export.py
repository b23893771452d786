"""`rl-training export`: a folder with a policy that runs in onnxruntime and acts as the agent does, or nothing."""

import json
import logging
import runpy
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn
from typer.testing import CliRunner

from builders import make_config, make_setup, small_hparams
from rl_training import BC, DQN
from rl_training.cli import app
from rl_training.envs.factory import EnvFactory, make_env_factory
from rl_training.envs.minatar import MinAtar
from rl_training.envs.tiny import Masked, TinyDict
from rl_training.errors import ConfigError, ExportError
from rl_training.experiment.checkpointing import write_pointer
from rl_training.experiment.config import TrainConfig
from rl_training.exporting import writing
from rl_training.exporting.check import check_policy
from rl_training.exporting.contract import Contract
from rl_training.exporting.module import ToEnv, build_module
from rl_training.exporting.pairs import PairRecorder
from rl_training.exporting.readme import readme_text
from rl_training.exporting.writing import Format, Source, export_policy
from rl_training.runtime.run_spaces import spaces_of
from rl_training.runtime.setup import make_setup as setup_of


class FewPixels(gym.Env[np.ndarray, np.int64]):
    """Random frames, stacked as those of Atari are; ends after 20 steps. The first action is 1."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0, 255, (4, 36, 36), np.uint8), Discrete(3, start=1)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> Any:
        self._steps += 1
        return self._draw(), 0.0, self._steps == 20, False, {}

    def _draw(self) -> np.ndarray:
        return self.np_random.integers(256, size=(4, 36, 36), dtype=np.uint8)


class MaskedDict(TinyDict):
    """The right answer, and one other."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, self._mask()

    def step(self, action: np.int64) -> Any:
        return *super().step(action)[:4], self._mask()

    def _mask(self) -> dict[str, np.ndarray]:
        return {"action_mask": np.arange(3) != (self._answer + self._num_steps % 2 + 1) % 3}


PENDULUM, CHAIN = (make_env_factory(env_id, {}) for env_id in ("Pendulum-v1", "rl_training/Chain-v0"))


def source_of(algo: str, factory: EnvFactory, **hparams: Any) -> Source:
    """An agent with its first weights."""
    config = TrainConfig(
        algo=algo, env_id="Test-v0", total_timesteps=100, device="cpu", algo_kwargs=small_hparams(algo) | hparams
    ).updated(acceleration="eager")
    spaces = spaces_of(factory)
    setup = setup_of(config, factory, spaces=spaces)
    return Source(config=config, algorithm=config.spec.build_algorithm(setup), spaces=spaces, factory=factory, step=7)


# Each kind of head, observation and action once. Converting to ONNX takes a second, so that only what it could do wrong
# goes all the way here; `python -m benchmarks export` does so with every algorithm.
HEADS: dict[str, tuple[str, EnvFactory, dict[str, Any], Format]] = {
    "dueling noisy atoms, parts, mask": ("rainbow_dqn", MaskedDict, {}, "onnx"),
    "normalised, learned row": ("iql", PENDULUM, {"normalize_observations": True}, "onnx"),
    "carry, bool planes": ("dreamer", lambda: MinAtar("Breakout"), {}, "onnx"),
    "carry, choices, mask": ("recurrent_ppo", Masked, {"cell": "gru"}, "onnx"),
    "carry, dict": ("recurrent_ppo", TinyDict, {}, "pt2"),
    "carry, numbers": ("dreamer", PENDULUM, {}, "pt2"),
    "convolutions, frames": ("dqn", FewPixels, {}, "pt2"),
    "two choices, mask": ("ppo", lambda: Masked(multi=True), {}, "pt2"),
    "switches": ("ppo", make_env_factory("rl_training/Identity-v0", {"actions": "multibinary"}), {}, "pt2"),
    "tanh": ("sac", PENDULUM, {}, "pt2"),
}


@pytest.mark.parametrize("head", HEADS)
def test_an_exported_policy_acts_as_the_agent(head: str, tmp_path: Path) -> None:
    algo, factory, hparams, file_format = HEADS[head]
    source = source_of(algo, factory, **hparams)
    contract = export_policy(source, tmp_path / "policy", file_format=file_format, pairs=24)
    assert contract.pairs >= 24
    assert contract.max_error < 5e-5  # rounding, which small normalised layers amplify
    assert (contract.algo, contract.env_id, contract.step) == (algo, "Test-v0", 7)
    assert file_format == "pt2" or check_policy(tmp_path / "policy") == (contract, contract.max_error)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DQN policy, exported by the command line from a run."""
    folder = tmp_path_factory.mktemp("export")
    run = DQN(make_config(folder / "runs", checkpoint_interval=30), show_progress=False).learn().run_dir
    answer = CliRunner().invoke(app, ["export", str(run), "--out", str(folder / "policy"), "--pairs", "20"])
    assert answer.exit_code == 0, answer.output
    assert "20 equal, largest error" in answer.stdout
    return folder / "policy"


def test_the_folder_says_what_the_policy_takes_and_returns(policy: Path) -> None:
    contract = json.loads((policy / "contract.json").read_text())
    assert sorted(path.name for path in policy.iterdir()) == ["README.md", "contract.json", "pairs.npz", "policy.onnx"]
    assert (contract["algo"], contract["env_id"], contract["step"]) == ("dqn", "rl_training/Chain-v0", 60)
    assert [(port["name"], port["shape"], port["dtype"]) for port in contract["inputs"]] == [
        ("obs", ["batch", 5], "float32")
    ]
    assert [(port["name"], port["shape"], port["dtype"]) for port in contract["outputs"]] == [
        ("action", ["batch"], "int64"),
        ("scores", ["batch", 2], "float32"),
    ]
    assert contract["inside"] == ["argmax"]
    assert contract["versions"]["onnxruntime"] == onnxruntime.__version__
    assert contract["latency_us"] > 0.0
    assert np.load(policy / "pairs.npz", allow_pickle=False)["first"][0]


def test_the_file_holds_its_weights_and_no_path_of_this_machine(policy: Path) -> None:
    content = (policy / "policy.onnx").read_bytes()
    model = onnx.load_from_string(content)
    assert [opset.version for opset in model.opset_import if not opset.domain] == [20]
    assert b".py" not in content
    assert str(Path.home()).encode() not in content or str(Path.home()) == "/"


def test_the_ten_lines_of_the_readme_run(policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    lines = (policy / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(policy)
    exec(compile(lines, "README.md", "exec"), {})
    action, recorded = capsys.readouterr().out.split(" recorded: ")
    assert int(action) == int(recorded)


def test_pairs_of_a_recurrent_policy_hold_a_whole_episode() -> None:
    source = source_of("dreamer", make_env_factory("rl_training/Catch-v0", {}))
    module = build_module(source.algorithm, source.spaces, source.config.spec)
    recorder = PairRecorder(module=module, algorithm=source.algorithm, factory=source.factory)
    lengths = [len(recorder.record(count, seeds=range(9))["action"]) for count in (1, 2, 12)]
    assert lengths[0] == lengths[1] > 2  # from the reset to the end
    assert lengths[2] == 12
    pairs = recorder.record(12, seeds=range(9))
    assert pairs["first"].nonzero()[0].tolist() == [0, lengths[0]]
    np.testing.assert_array_equal(pairs["features"][1 : lengths[0]], pairs["next_features"][: lengths[0] - 1])
    np.testing.assert_array_equal(pairs["features"][[0, lengths[0]]], 0.0)


def test_a_pt2_file_is_written_but_never_read(tmp_path: Path) -> None:
    export_policy(source_of("dqn", CHAIN), tmp_path / "policy", file_format="pt2", pairs=2)
    with pytest.raises(ExportError, match=r"holds policy\.pt2, which is not read: loading such a file can run code"):
        check_policy(tmp_path / "policy")
    assert "Load such a file only if you trust its author" in (tmp_path / "policy" / "README.md").read_text()


def test_a_wrong_scaling_is_found_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToEnv, "forward", lambda self, actions: actions)  # [-1, 1], but the torque is in [-2, 2]
    source = source_of("sac", PENDULUM)
    with pytest.raises(ExportError, match=r"^the torch\.export policy differs from the agent: action .* in pair 0 "):
        export_policy(source, tmp_path / "policy", file_format="pt2", pairs=4)
    assert list(tmp_path.iterdir()) == []


def test_a_choice_by_chance_is_exported_as_the_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = source_of("dqn", CHAIN, evaluation_epsilon=0.5)
    with caplog.at_level(logging.WARNING):
        contract = export_policy(source, tmp_path / "policy", file_format="pt2", pairs=30)
    assert "choose by chance (evaluation_epsilon: 0.5); the exported policy takes the best action" in caplog.text
    pairs = np.load(tmp_path / "policy" / "pairs.npz")
    np.testing.assert_array_equal(pairs["action"], pairs["scores"].argmax(1))
    assert contract.deterministic


class FixedBatch(nn.Module):
    """A network of a user whose batch size is not free."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 2)

    def forward(self, obs: Tensor) -> Tensor:
        return self.out(obs.reshape(len(obs), -1)).expand(len(obs), -1)  # type: ignore[no-any-return]


def test_a_network_with_a_fixed_batch_size_is_refused(tmp_path: Path) -> None:
    source = source_of("dqn", CHAIN)
    setup = make_setup(observation=source.spaces.observation, network=FixedBatch())
    own = Source(
        config=source.config,
        algorithm=source.config.spec.build_algorithm(setup),
        spaces=source.spaces,
        factory=CHAIN,
        step=0,
    )
    with pytest.raises(ExportError, match=r"the network cannot be exported: .*must not use len\(x\)"):
        export_policy(own, tmp_path / "policy", pairs=2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"file_format": "tflite"}, "format must be one of onnx, pt2, got 'tflite'"),
        ({"pairs": 0}, "pairs must be >= 1, got 0"),
    ],
)
def test_a_wrong_argument_is_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        export_policy(source_of("dqn", CHAIN), tmp_path / "new", **changes)


def test_an_existing_folder_is_left_alone(policy: Path) -> None:
    before = sorted(policy.iterdir())
    with pytest.raises(ConfigError, match="exists already"):
        export_policy(source_of("dqn", CHAIN), policy)
    assert sorted(policy.iterdir()) == before


def test_a_missing_extra_is_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr(writing, "build_module", lambda *arguments: pytest.fail("something ran"))
    with pytest.raises(ConfigError, match=r'export needs the package onnxscript.*pip install "rl-training\[export\]"'):
        export_policy(source_of("dqn", CHAIN), tmp_path / "policy")


def test_names_of_others_cannot_leave_their_cell(policy: Path) -> None:
    contract = Contract.model_validate_json((policy / "contract.json").read_text())
    hostile = contract.model_copy(update={"env_id": "<script>|\n# title`"})
    assert "<script>" not in readme_text(hostile, "policy.onnx")
    assert "\n# title" not in readme_text(hostile, "policy.onnx")


def test_the_example_runs_the_policy(policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    example = Path(__file__).parents[2] / "examples" / "run_exported_policy.py"
    monkeypatch.setattr(sys, "argv", [example.name, str(policy)])
    runpy.run_path(str(example))
    assert capsys.readouterr().out == "20 of 20 actions are the recorded ones\n"


def test_the_best_checkpoint_is_exported_on_request(policy: Path, tmp_path: Path) -> None:
    (run,) = (policy.parent / "runs").iterdir()
    write_pointer(run / "checkpoints", "best", "step_000000030")
    options = ["--best", "--format", "pt2", "--pairs", "2", "--out", str(tmp_path / "policy")]
    answer = CliRunner().invoke(app, ["export", *options, str(run)])  # options may come first
    assert answer.exit_code == 0, answer.output
    assert json.loads((tmp_path / "policy" / "contract.json").read_text())["step"] == 30


def test_a_run_without_an_environment_has_a_module_but_no_pairs(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).uniform(-0.9, 0.9, (30, 3)).astype(np.float32)
    ends = np.arange(30) % 10 == 9
    dataset = {"observations": obs, "next_observations": obs, "actions": obs[:, :2], "rewards": obs[:, 0]}
    hparams = {"dataset_kind": None, "dataset_size": None}
    config = make_config(tmp_path / "runs", algo="bc", env_id="", total_timesteps=4, algo_kwargs=hparams)
    arrays = {**dataset, "terminations": np.zeros(30, np.bool_), "truncations": ends}
    agent = BC(config, dataset=arrays, show_progress=False)
    agent.learn()
    assert agent.module()(torch.from_numpy(obs)).shape == (30, 2)
    with pytest.raises(
        ConfigError, match=r"the run has none \(env_id is empty\); agent\.module\(\) returns the policy"
    ):
        agent.export(tmp_path / "policy")
