"""The contenders' scripts: the harness they share, our learner, the plain loops and the floor."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.launch import SCRIPTS, Contender, run_contender
from benchmarks.rows import ROWS
from benchmarks.speed import write_random_rows
from benchmarks.speed_tasks import TASKS

from builders import small_hparams


@pytest.fixture(scope="module", autouse=True)
def _scripts_on_path() -> Any:
    """The scripts import each other from their own folder."""
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


def test_steps_are_counted_over_all_envs() -> None:
    from harness import Setting, TrainingEnvs

    training = TrainingEnvs(Setting(mode="speed", env_id="CartPole-v1", steps=10, num_envs=3))
    called: list[int] = []
    training.counter.at = {4: lambda: called.append(training.counter.count)}
    envs = [factory() for factory in training.factories()]
    for env in envs:
        env.reset(seed=0)
    for _ in range(2):
        for env in envs:
            env.step(0)
    assert len(set(map(id, envs))) == 3
    assert training.counter.count == 6
    assert called == [4]


def test_training_and_evaluation_have_the_arguments_of_the_environment() -> None:
    from harness import Setting, TrainingEnvs, make_env
    from ours import config_of

    small = {"include_cfrc_ext_in_observation": False}
    setting = Setting(mode="score", algo="sac", env_id="Ant-v5", steps=10, env_kwargs=small)
    for env in (*TrainingEnvs(setting).envs, make_env(setting)):
        assert env.observation_space.shape == (27,)  # with the contact forces: 105
    assert config_of(setting, "runs").env_kwargs == small
    shared = replace(setting, algo=None, config="sac/mujoco.yaml")
    assert config_of(shared, "runs").env_kwargs == small


def test_steady_part_begins_after_whole_rollouts_or_so_many_learning_steps() -> None:
    from harness import Setting

    ppo = Setting(mode="speed", env_id="X", steps=1, num_envs=8, hparams={"num_steps": 128})
    dqn = Setting(mode="speed", env_id="X", steps=1, hparams={"learning_starts": 1_000})
    assert (ppo.rollout, ppo.learning_starts, ppo.steady_from) == (1_024, 0, 4_096)
    assert (dqn.rollout, dqn.learning_starts, dqn.steady_from) == (0, 1_000, 1_500)
    assert replace(dqn, warm_up=4).steady_from == 1_004


def test_a_contender_may_change_single_hparams_of_the_setting() -> None:
    setting = {"hparams": {"double_q": False, "gamma": 0.9}, "threads": 1}
    changed = Contender(name="a", script="a.py", hparams={"double_q": True}).apply(setting)
    assert changed == {"hparams": {"double_q": True, "gamma": 0.9}, "threads": 1}
    assert Contender(name="a", script="a.py").apply(setting) == setting


def test_a_contender_of_ours_may_differ_from_its_config() -> None:
    from harness import Setting, TrainingEnvs
    from ours import OurLearner

    row = ROWS["mopo-pendulum-medium"]
    setting = {"mode": "score", "env_id": row.env_id, "steps": row.steps, "hparams": {}, "dataset": "medium.npz"}
    made = {}
    for name, contender in row.contenders.items():
        own = Setting(**contender.apply({**setting, "config": row.ours[name].config}))
        made[name] = OurLearner(own, TrainingEnvs(own)).config.algo_kwargs
    assert made["ours-no-penalty"] == {**made["ours"], "penalty_coef": 0.0}
    assert made["ours"].get("penalty_coef") != 0.0


def test_profile_counts_time_inside_a_called_method_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ours import Profiler

    clock = SimpleNamespace(now=0.0)

    class Parts:
        def outer(self) -> None:
            clock.now += 1.0
            self.inner()
            clock.now += 2.0

        def inner(self) -> None:
            clock.now += 4.0

    monkeypatch.setitem(sys.modules, "profiled_parts", SimpleNamespace(Parts=Parts))
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    profiler = Profiler({"update": ["profiled_parts:Parts.outer"], "advantages": ["profiled_parts:Parts.inner"]})
    parts = Parts()
    parts.outer()
    profiler.start()
    parts.outer()
    parts.inner()
    clock.now += 8.0
    profiler.stop()
    assert profiler.per_step_us(1) == {"update": 3e6, "advantages": 8e6, "rest": 8e6}


def test_profile_times_the_functions_that_a_method_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    from ours import Profiler

    clock = SimpleNamespace(now=0.0)

    class Memory:
        def sampler(self, seconds: float) -> Any:
            clock.now += 100.0  # making it is no part of a step

            def draw() -> str:
                clock.now += seconds
                return "batch"

            return draw

    monkeypatch.setitem(sys.modules, "profiled_memory", SimpleNamespace(Memory=Memory))
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    profiler = Profiler({"buffer": ["profiled_memory:Memory.sampler()"]})
    draw = Memory().sampler(2.0)
    profiler.start()
    assert [draw(), draw()] == ["batch", "batch"]
    profiler.stop()
    assert profiler.per_step_us(2) == {"buffer": 2e6, "rest": 0.0}


def test_floor_counts_the_products_of_an_update() -> None:
    from floor import layers_of_updates

    sizes = {"batch_size": 8, "hidden_sizes": [5, 6]}

    def count(algo: str, **hparams: Any) -> tuple[dict[str, int], int]:
        """Products by kind, and multiplications in all."""
        layers = layers_of_updates(algo, {**sizes, **hparams}, 4, 2)
        products = [name for layer in layers for name in layer.products]
        kinds = {name: products.count(name) for name in ("forward", "weight gradient", "x gradient")}
        work = sum(layer.rows * layer.inputs * layer.outputs * len(layer.products) for layer in layers)
        return kinds, work

    # DQN: 4 -> 5 -> 6 -> 2, twice forward; backward, the first layer has no gradient to pass on.
    assert count("dqn") == (
        {"forward": 6, "weight gradient": 3, "x gradient": 2},
        8 * (3 * 4 * 5 + 4 * 5 * 6 + 4 * 6 * 2),
    )
    assert count("dqn", double_q=True)[1] == 8 * (4 * 4 * 5 + 5 * 5 * 6 + 5 * 6 * 2)
    # QR-DQN with 3 quantiles: 6 outputs.
    assert count("qr_dqn", num_quantiles=3)[1] == 8 * (3 * 4 * 5 + 4 * 5 * 6 + 4 * 6 * 6)
    # Rainbow with 3 atoms: a stream of 3 outputs and one of 6, and a third pass to select.
    assert count("rainbow_dqn", num_atoms=3, dueling=True, double_q=True) == (
        {"forward": 15, "weight gradient": 5, "x gradient": 4},
        8 * (4 * 4 * 5 + 5 * (2 * 5 * 6 + 6 * 3 + 6 * 6)),
    )
    # IQN: 3 cosines; 2 fractions trained and 2 in the target; to select 7, the same for all rows, on a third pass.
    hidden, output = 4 * 5 + 5 * 6, 6 * 2
    passes = 4 * 4 * 5 + 5 * 5 * 6  # the first layer has no gradient to pass on
    fractions = {"embedding_dim": 3, "double_q": True}
    assert count("iqn", num_tau_samples=2, num_quantiles=7, **fractions) == (
        {"forward": 3 * 2 + 3 * 2, "weight gradient": 2 + 2, "x gradient": 1 + 1},
        8 * (passes + (2 + 2 + 2) * 3 * 6 + (3 * 2 + 2 + 7) * output) + 7 * 3 * 6,
    )
    without = count("iqn", num_tau_samples=2, num_quantiles=7, **{**fractions, "double_q": False})
    assert count("iqn", num_tau_samples=2, num_quantiles=7, **fractions)[1] - without[1] == 8 * hidden
    # FQF with 4 fractions: trained at 4, at the 3 edges between them, in the target at 4 and to select at 4.
    assert count("fqf", num_quantiles=4, **fractions)[1] == 8 * (
        passes + 3 * 6 * 4 + (2 * 4 + 3 + 4 + 4) * 3 * 6 + (3 * 4 + 3 + 4 + 4) * output
    )


def test_floor_counts_the_products_of_actor_critics() -> None:
    from floor import layers_of_updates, updates_of

    def work(algo: str, **hparams: Any) -> int:
        """Multiplications of `policy_delay` updates: 4 numbers observed, actions of 2, hidden layers of 5 and 6."""
        values = {"batch_size": 8, "hidden_sizes": [5, 6], **hparams}
        layers = layers_of_updates(algo, values, 4, 2)
        return sum(each.members * each.rows * each.inputs * each.outputs * len(each.products) for each in layers)

    # Forward passes; backward, a layer has two products, but the first one has no gradient to pass on.
    gaussian, critic = 4 * 5 + 5 * 6 + 6 * 4, 6 * 5 + 5 * 6 + 6 * 1
    gaussian_back, critic_back = 2 * gaussian - 4 * 5, 2 * critic - 6 * 5
    learn_critics = gaussian + 2 * critic + 2 * (critic + critic_back)
    # Through the resting critics only the gradient passes, to the action.
    learn_actor = gaussian + gaussian_back + 2 * (critic + critic)
    assert work("sac", policy_delay=1) == 8 * (learn_critics + learn_actor)
    # TD3: the actor has half as many outputs, and learns by one critic, at every second update.
    actor = 4 * 5 + 5 * 6 + 6 * 2
    td3_critics = actor + 2 * critic + 2 * (critic + critic_back)
    assert work("td3", policy_delay=2) == 8 * (2 * td3_critics + actor + 2 * actor - 4 * 5 + critic + critic)
    # REDQ: two of ten critics in the target, all of them for the actor.
    redq_critics = gaussian + 2 * critic + 10 * (critic + critic_back)
    redq_actor = gaussian + gaussian_back + 10 * (critic + critic)
    redq = {"policy_delay": 20, "num_critics": 10, "subset_size": 2}
    assert work("redq", **redq) == 8 * (20 * redq_critics + redq_actor)
    assert (updates_of(redq), updates_of({})) == (20, 1)
    # IQL: V learns and is asked again about states and successors; the policy has one number per action.
    value = 4 * 5 + 5 * 6 + 6 * 1
    iql_critics = 2 * critic + 2 * (critic + critic_back)
    iql_actor = actor + 2 * actor - 4 * 5
    assert work("iql") == 8 * (iql_critics + value + 2 * value - 4 * 5 + 2 * value + iql_actor)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", ["forward", "weight gradient", "x gradient"])
def test_floor_multiplies_what_a_layer_multiplies(name: str, members: int) -> None:
    from floor import Layer, operands, ways_to_multiply

    a, b = operands(Layer(8, 4, 5, members=members), name)
    sizes = {"forward": (8, 4, 5), "weight gradient": (5, 8, 4), "x gradient": (8, 5, 4)}[name]
    assert (*a.shape[-2:], b.shape[-1]) == sizes
    assert len(ways_to_multiply(a, b)) == (2 if members == 1 else 4)
    for multiply in ways_to_multiply(a, b):
        multiply()


@pytest.mark.parametrize("algo", ["dqn", "ppo", *(task.algo for task in TASKS.values())])
def test_profiled_methods_exist(algo: str) -> None:
    from importlib import import_module

    from ours import ENVS, PARTS

    for path in (f"{ENVS}.step", f"{ENVS}.reset", *(path for paths in PARTS[algo].values() for path in paths)):
        module, _, name = path.partition(":")
        owner, _, method = name.partition(".")
        assert callable(getattr(getattr(import_module(module), owner), method.removesuffix("()"))), path


@pytest.mark.learning
@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        ("dqn", "CartPole-v1"),
        ("dqn", "rl_training/BitFlip-v0"),
        ("rainbow_dqn", "CartPole-v1"),
        ("fqf", "MinAtar/Breakout-v0"),
        ("ppo", "CartPole-v1"),
        ("ppo", "Pendulum-v1"),
        ("sac", "Pendulum-v1"),
        ("td3", "Pendulum-v1"),
    ],
)
def test_ours_trains_and_plays_as_the_harness_asks(algo: str, env_id: str) -> None:
    from harness import Setting, Stopwatch, run_score
    from ours import OurLearner

    off_policy = {"learning_starts": 16, "batch_size": 8, "hidden_sizes": [8]}
    hparams = {"num_steps": 8, "minibatch_size": 16, "hidden_sizes": [8]} if algo == "ppo" else off_policy
    setting = Setting(
        mode="score",
        env_id=env_id,
        steps=64,
        algo=algo,
        num_envs=4,
        hparams=hparams,
        acceleration="eager",
        eval_seeds=[1, 2],
        track_every=30,  # between two rounds of env steps
        track_seeds=[3],
    )
    result = run_score(OurLearner, setting, Stopwatch())
    assert result["env_steps"] == 64
    assert [evaluation["step"] for evaluation in result["tracked"]] == [30, 60]
    assert len(result["returns"]) == 2
    assert np.isfinite(result["returns"]).all()


@pytest.mark.learning
def test_episodes_that_go_on_keep_what_ours_remembers_of_them() -> None:
    """Played side by side, episodes of a recurrent policy that end at different times are as if played alone."""
    from harness import Setting, TrainingEnvs, play
    from ours import OurLearner

    hparams = small_hparams("dreamer", learning_starts=100)
    setting = Setting(
        mode="score", env_id="CartPole-v1", steps=4, algo="dreamer", hparams=hparams, acceleration="eager"
    )
    learner = OurLearner(setting, TrainingEnvs(setting))
    learner.learn()
    assert learner.counter.run is not None
    policy = learner.counter.run.algorithm
    list(policy._parts["actor"].named(policy.state["actor.params"]).values())[-2].mul_(1_000.0)  # type: ignore
    seeds = list(range(8))
    together = play(learner, setting, seeds)
    assert len(set(together)) > 1
    assert together == [play(learner, setting, [seed])[0] for seed in seeds]


def test_plain_iql_trains_and_plays_as_the_harness_asks(tmp_path: Path) -> None:
    from harness import Setting, Stopwatch, run_score
    from plain_iql import PlainLearner

    write_random_rows(tmp_path / "random.npz", 2_000)
    setting = Setting(
        mode="score",
        env_id="HalfCheetah-v5",
        steps=12,
        hparams={**TASKS["iql"].hparams, "hidden_sizes": [8], "reward_scale": "return"},
        eval_seeds=[1],
        dataset=str(tmp_path / "random.npz"),
    )
    result = run_score(PlainLearner, setting, Stopwatch())
    assert result["updates"] == result["env_steps"] == 12
    assert np.isfinite(result["returns"]).all()


def test_plain_sac_trains_and_plays_as_the_harness_asks() -> None:
    from harness import Setting, Stopwatch, run_score
    from plain_sac import PlainLearner

    sizes = {"learning_starts": 16, "batch_size": 8, "hidden_sizes": [8], "buffer_capacity": 50}
    hparams = {**TASKS["sac-pendulum"].hparams, **sizes}
    setting = Setting(mode="score", env_id="Pendulum-v1", steps=64, hparams=hparams, eval_seeds=[1, 2])
    result = run_score(PlainLearner, setting, Stopwatch())
    assert (result["env_steps"], result["updates"]) == (64, 48)
    assert np.isfinite(result["returns"]).all()


def test_replay_steps_follow_on_each_other() -> None:
    from replay_harness import FRAMES, Transitions

    for kind, shape in (("floats", (17,)), ("images", (FRAMES, 84, 84))):
        steps = Transitions(kind, length=10)
        assert steps.obs(0).shape == steps.obs(10).shape == shape
        assert steps.obs(3).flags.c_contiguous
    assert np.array_equal(steps.obs(3)[1:], steps.obs(4)[:-1])


@pytest.mark.process
def test_a_run_whose_update_is_not_the_compiled_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import sys; print('the update runs eagerly from now on', file=sys.stderr); print('{}')")
    run_contender(Contender(name="ours", script=str(script)), {"threads": 1})
    assert "ours: the update runs eagerly" in capsys.readouterr().out
