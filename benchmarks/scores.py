"""Scores: train over several seeds, play the final policy greedily on shared reset seeds, compare with the peer.

Some runs at a time, those of all rows together, one thread and one core each. A finished run is kept under
`runs/benchmarks/` and not repeated while its setting, the library's source and the peer's versions stay as they are; so
an interrupted benchmark goes on where it stopped.
"""

import hashlib
import json
import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.datasets import EPISODE, dataset_facts, make_datasets, normalised
from benchmarks.launch import (
    D3RLPY_IQL,
    DQN_CONTENDERS,
    KEPT_RUNS,
    OURS,
    PPO_CONTENDERS,
    SB3_ACTOR_CRITIC,
    SB3_CONTRIB,
    TIANSHOU,
    TIANSHOU_ACTOR_CRITIC,
    Contender,
    ContenderError,
    run_contender,
)
from benchmarks.machine import describe_run, source_digest
from benchmarks.peers import REQUIREMENTS
from benchmarks.speed import write_json
from rl_training import load_config
from rl_training.runtime.seed_runs import summarize

HELD_EVALUATIONS = 3

# The values of rl-zoo3 for stable-baselines3's DQN, in our names. SB3 counts `target_update_interval` in env steps.
ZOO_CARTPOLE = {
    "learning_starts": 1_000,
    "train_frequency": 256,
    "gradient_steps": 128,
    "batch_size": 64,
    "buffer_capacity": 100_000,
    "hidden_sizes": [256, 256],
    "target_update_interval": 10,
    "learning_rate": 2.3e-3,
    "max_grad_norm": 10.0,
    "gamma": 0.99,
    "epsilon_start": 1.0,
    "epsilon_end": 0.04,
    "exploration_fraction": 0.16,
}
ZOO_LUNAR_LANDER = {
    **ZOO_CARTPOLE,
    "learning_starts": 0,
    "train_frequency": 4,
    "gradient_steps": -1,
    "batch_size": 128,
    "buffer_capacity": 50_000,
    "target_update_interval": 250,
    "learning_rate": 6.3e-4,
    "epsilon_end": 0.1,
    "exploration_fraction": 0.12,
}

# The values of rl-zoo3 for stable-baselines3's PPO. What the zoo leaves out is stable-baselines3's default.
ZOO_PPO = {
    "minibatch_size": 64,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "clip_coef": 0.2,
    "clip_schedule": "constant",
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "hidden_sizes": [64, 64],
}
ZOO_PPO_CARTPOLE = {
    **ZOO_PPO,
    "num_steps": 32,
    "minibatch_size": 256,
    "update_epochs": 20,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "clip_schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
}
ZOO_PPO_LUNAR_LANDER = {
    **ZOO_PPO,
    "num_steps": 1_024,
    "update_epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
ZOO_PPO_PENDULUM = {
    **ZOO_PPO,
    "num_steps": 1_024,
    "update_epochs": 10,
    "learning_rate": 1e-3,
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
    "use_sde": True,
    "sde_sample_freq": 4,
}


# rl-zoo3's QR-DQN on CartPole: DQN's values. Clipping and Adam's epsilon are left to sb3-contrib: none, 0.01 / batch.
ZOO_QR_DQN_CARTPOLE = {
    **{name: value for name, value in ZOO_CARTPOLE.items() if name != "max_grad_norm"},
    "num_quantiles": 10,
}

# The values of Tianshou's CartPole examples (its test/discrete scripts), in our names, without their early stop at 195.
# They collect as many steps at a time as there are envs, and the first ones by the policy itself.
TIANSHOU_CARTPOLE = {
    "learning_starts": 640,
    "random_start": False,
    "train_frequency": 10,
    "gradient_steps": 1,
    "batch_size": 64,
    "buffer_capacity": 20_000,
    "target_update_interval": 320,
    "gamma": 0.9,
    "n_step": 3,
    "epsilon_start": 0.1,
    "epsilon_end": 0.01,
    "schedule_steps": [10_000, 50_000],  # of epsilon, and of beta with priorities
}
TIANSHOU_QR_DQN = {
    **TIANSHOU_CARTPOLE,
    "learning_rate": 1e-3,
    "hidden_sizes": [128, 128, 128, 128],
    "num_quantiles": 200,
}
TIANSHOU_IQN = {
    **TIANSHOU_CARTPOLE,
    "learning_rate": 3e-3,
    "trunk_sizes": [64, 64],
    "linear_features": 64,
    "head_sizes": [],
    "num_quantiles": 32,
    "num_tau_samples": 8,
    "embedding_dim": 64,
}
TIANSHOU_FQF = {
    **TIANSHOU_CARTPOLE,
    "learning_rate": 3e-3,
    "trunk_sizes": [64, 64],
    "linear_features": 64,
    "head_sizes": [64, 64, 64],
    "num_quantiles": 32,
    "embedding_dim": 64,
    "entropy_coef": 10.0,
    "fraction_learning_rate": 2.5e-9,
}
TIANSHOU_C51 = {  # the examples of C51 and Rainbow have 8 envs
    **TIANSHOU_CARTPOLE,
    "learning_starts": 512,
    "train_frequency": 8,
    "learning_rate": 1e-3,
    "hidden_sizes": [128, 128, 128, 128],
    "num_atoms": 51,
    "v_min": -10.0,
    "v_max": 10.0,
}
TIANSHOU_RAINBOW = {
    **{name: value for name, value in TIANSHOU_C51.items() if name != "hidden_sizes"},
    "trunk_sizes": [128, 128, 128, 128],
    "head_sizes": [],
    "noisy_trunk": False,
    "noisy_sigma": 0.1,
}
TIANSHOU_PRIORITIZED_RAINBOW = {
    **TIANSHOU_RAINBOW,
    "gamma": 0.95,
    "prioritized": True,
    "prioritized_alpha": 0.6,
    "prioritized_beta_start": 0.4,
    "prioritized_beta_end": 1.0,
}

# The values of rl-zoo3 for stable-baselines3's SAC and TD3. What the zoo leaves out is stable-baselines3's default.
ZOO_ACTOR_CRITIC = {
    "train_frequency": 1,
    "gradient_updates_per_step": 1,
    "batch_size": 256,
    "buffer_capacity": 1_000_000,
    "hidden_sizes": [256, 256],
    "learning_rate": 3e-4,
    "tau": 0.005,
    "gamma": 0.99,
}
ZOO_SAC_PENDULUM = {**ZOO_ACTOR_CRITIC, "learning_starts": 100, "learning_rate": 1e-3}
ZOO_SAC_MUJOCO = {**ZOO_ACTOR_CRITIC, "learning_starts": 10_000}
ZOO_TD3_MUJOCO = {
    **ZOO_ACTOR_CRITIC,
    "learning_starts": 10_000,
    "hidden_sizes": [400, 300],
    "learning_rate": 1e-3,
    "policy_delay": 2,
    "exploration_noise": 0.1,
    "target_noise": 0.2,
    "target_noise_clip": 0.5,
}
ZOO_TD3_PENDULUM = {
    **ZOO_TD3_MUJOCO,
    "learning_starts": 1_000,  # the zoo's 10,000 random steps are all that there are here
    "buffer_capacity": 200_000,
    "gamma": 0.98,
}

# The values of Tianshou's Pendulum example (test/continuous/test_redq.py), without its early stop at -250.
TIANSHOU_REDQ_PENDULUM = {
    "learning_starts": 1_000,
    "train_frequency": 8,
    "gradient_updates_per_step": 3,
    "policy_delay": 3,
    "batch_size": 64,
    "buffer_capacity": 20_000,
    "hidden_sizes": [64, 64],
    "num_critics": 4,
    "subset_size": 2,
    "learning_rate": 1e-3,
    "actor_learning_rate": 1e-4,
    "alpha": 0.2,
    "tau": 0.005,
    "gamma": 0.99,
}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer in a row, with its values. `algo`: which one, where its script holds several."""

    contender: Contender
    hparams: dict[str, Any]
    num_envs: int = 1
    algo: str | None = None


def tianshou(algo: str, hparams: dict[str, Any], *, name: str = "tianshou", contender: Contender = TIANSHOU) -> Peer:
    envs = hparams["train_frequency"]  # in all of the examples
    return Peer(contender=replace(contender, name=name), hparams=hparams, num_envs=envs, algo=algo)


def sb3_actor_critics(sac: dict[str, Any], td3: dict[str, Any]) -> list[Peer]:
    return [
        Peer(contender=replace(SB3_ACTOR_CRITIC, name=f"sb3-{algo}"), hparams=hparams, algo=algo)
        for algo, hparams in (("sac", sac), ("td3", td3))
    ]


def d3rlpy_iql(config: str) -> Peer:
    """Give d3rlpy's IQL with the values of one of our configs."""
    places = {name for name in load_config(config).hparams.model_dump() if name.startswith("dataset_")}
    hparams = load_config(config).hparams.model_dump(mode="json", exclude={*places, "held_out"})
    return Peer(contender=D3RLPY_IQL, hparams=hparams)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the score table.

    `ours`: our contenders, each with its config; `changes`: the hyperparameters that one of them has otherwise than its
    config. `dataset`: what is learnt from, such as pendulum/medium; steps are gradient steps then. `expert`: a dataset,
    too, but to be imitated in the env. `threshold`: the return whose first holding over 3 evaluations is reported.
    `goal`: what the target wants of each seed, where that is another number. `by`: the step at which the target wants
    to see the training evaluation, too. `window`: with more than one, the target speaks of the mean of so many
    evaluations during training: the last ones, and those up to `by`. `quoted`: scores of peers that are not run, with
    their source.
    """

    env_id: str
    steps: int
    target: str
    ours: Mapping[str, str]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: Sequence[Peer] = ()
    dataset: str | None = None
    expert: str | None = None
    threshold: float | None = None
    goal: float | None = None
    by: int | None = None
    window: int = 1
    track_every: int = 0
    eval_episodes: int = 20
    track_episodes: int = 10
    seeds: int = 5
    quoted: Mapping[str, str] = field(default_factory=dict)

    @property
    def contenders(self) -> dict[str, Contender]:
        ours = {name: replace(OURS, name=name, hparams=self.changes.get(name, {})) for name in self.ours}
        return ours | {peer.contender.name: peer.contender for peer in self.peers}

    @property
    def file(self) -> str | None:
        """The dataset that is learnt from in either way."""
        return self.dataset or self.expert

    def setting(self, contender: str, seed: int, *, steps: int) -> dict[str, Any]:
        peer = next((peer for peer in self.peers if peer.contender.name == contender), None)
        # Only what differs from the default: kept runs are found by their setting.
        vector = {} if peer is None or peer.num_envs == 1 else {"num_envs": peer.num_envs}
        algo = {} if peer is None or peer.algo is None else {"algo": peer.algo}
        facts = dataset_facts(self.file) if self.file else {}
        source = {"dataset": facts["path"], "dataset_sha256": facts["sha256"]} if facts else {}
        return {
            **vector,
            **algo,
            **source,
            "mode": "score",
            "env_id": self.env_id,
            "steps": steps,
            "seed": seed,
            "threads": 1,
            "hparams": {} if peer is None else peer.hparams,
            "config": self.ours[contender] if peer is None else None,
            "eval_seeds": list(range(1_000_000, 1_000_000 + self.eval_episodes)),
            "track_every": self.track_every,
            "track_seeds": list(range(2_000_000, 2_000_000 + self.track_episodes)),
        }


def cartpole(
    target: str, goal: float, algos: Sequence[str], *peers: Peer, quoted: Mapping[str, str] | None = None
) -> Row:
    """Give a row of the DQN family: 50,000 steps of CartPole, by each algorithm with its own config."""
    return Row(
        env_id="CartPole-v1",
        steps=50_000,
        target=target,
        ours={f"ours-{algo}": f"{algo}/cartpole.yaml" for algo in algos},
        peers=peers,
        threshold=475.0,
        goal=goal,
        track_every=1_000,
        quoted=quoted or {},
    )


def minatar(game: str, target: str, algos: Sequence[str], *, threshold: float, quoted: str = "") -> Row:
    """Give a row of a million frames, each an env step; the other games are trained with Breakout's config, too."""
    return Row(
        env_id=f"MinAtar/{game}-v{MINATAR_VERSION}",
        steps=1_000_000,
        target=target,
        ours={f"ours-{algo}": f"{algo}/minatar_breakout.yaml" for algo in algos},
        threshold=threshold,
        track_every=50_000,
        eval_episodes=100,
        track_episodes=20,
        seeds=3,
        quoted={"minatar": quoted} if quoted else {},
    )


def pendulum(steps: int, target: str, ours: Mapping[str, str], *peers: Peer, **more: Any) -> Row:
    """Give a row of Pendulum for algorithms that learn it in some thousand steps."""
    # Returns of one policy differ by about 88 from start to start: a hundred episodes, also during training.
    return Row(
        env_id="Pendulum-v1",
        steps=steps,
        target=target,
        ours=ours,
        peers=peers,
        track_every=500,
        eval_episodes=100,
        track_episodes=100,
        **more,
    )


def mujoco(env_id: str, steps: int, target: str, ours: Mapping[str, str], *peers: Peer, **more: Any) -> Row:
    return Row(env_id=env_id, steps=steps, target=target, ours=ours, peers=peers, eval_episodes=10, **more)


def offline(dataset: str, steps: int, target: str, ours: Mapping[str, str], **more: Any) -> Row:
    """Give a row of one dataset, whose first part names the environment's configs; `ours`: the algorithms."""
    name = dataset.partition("/")[0]
    configs = {contender: f"{algo}/{name}.yaml" for contender, algo in ours.items()}
    return Row(
        env_id=load_config(configs["ours"]).env_id,
        steps=steps,
        target=target,
        ours=configs,
        dataset=dataset,
        eval_episodes=100 if name == "pendulum" else 10,
        **more,
    )


def imitation(name: str, steps: int, target: str, **more: Any) -> Row:
    """Give a row of GAIL, which imitates one episode, beside itself with labels that tell it nothing."""
    config = f"gail/{name}.yaml"
    return Row(
        env_id=load_config(config).env_id,
        steps=steps,
        target=target,
        ours={"ours": config, "ours-shuffled": config},
        changes={"ours-shuffled": {"expert_shuffle": "labels"}},
        expert=f"{name}/{EPISODE}",
        **more,
    )


def iql_rows(
    row: str, names: Sequence[str], kinds: Sequence[str], *, steps: int, target: str, seeds: int
) -> dict[str, Row]:
    """Give rows of IQL, BC and d3rlpy's IQL, one per environment and kind of dataset."""
    ours = {"ours": "iql", "ours-bc": "bc"}
    return {
        f"{row}_{name}_{kind.replace('-', '_')}": offline(
            f"{name}/{kind}", steps, target, ours, peers=[d3rlpy_iql(f"iql/{name}.yaml")], seeds=seeds
        )
        for name in names
        for kind in kinds
    }


DOPAMINE = "(Dopamine's SAC: training episodes, 5 seeds)"
MINATAR_FIGURE = "(DQN in the MinAtar paper's learning curves, read off at a million frames)"
MINATAR_VERSION = 0  # all six actions, as in the published scores
DISTRIBUTIONAL = ("qr_dqn", "iqn", "fqf", "rainbow_dqn")
MOPO_AND_IQL = {"ours": "mopo", "ours-iql": "iql"}
BEYOND_IQL = "our IQL + 10 normalised points"
BEYOND_DQN = "each >= our dqn (M13) on the mean; iqn, fqf >= qr_dqn"

ROWS = {
    "C1": Row(
        env_id="CartPole-v1",
        steps=50_000,
        target="500 on 5/5 seeds; first held at 475+ by 20k",
        ours={"ours": "dqn/cartpole.yaml"},
        peers=[Peer(contender=DQN_CONTENDERS["sb3"], hparams=ZOO_CARTPOLE)],
        threshold=475.0,
        track_every=1_000,
    ),
    # dqn itself is here to be compared with: the same code, at the same time.
    "C2": cartpole(
        "500 on 5/5 seeds, 475 first held no later than by dqn",
        500.0,
        ("dqn", "double_dqn", "dueling_dqn", "n_step_dqn", "prioritized_dqn"),
    ),
    "C3": cartpole(">= 475 on 5/5 seeds without epsilon", 475.0, ("noisy_dqn",)),
    "C4": cartpole(
        ">= 495",
        495.0,
        ("c51_dqn",),
        tianshou("c51_dqn", TIANSHOU_C51),
        quoted={"cleanrl": "481.2 ± 20.5 after 500k steps (CleanRL's documentation: training episodes, 3 seeds)"},
    ),
    "C5": cartpole(
        ">= 495 on 5/5 seeds",
        495.0,
        ("rainbow_dqn",),
        tianshou("rainbow_dqn", TIANSHOU_RAINBOW),
        tianshou("rainbow_dqn", TIANSHOU_PRIORITIZED_RAINBOW, name="tianshou-prioritized"),
    ),
    "C6": cartpole(
        ">= 495 on 5/5 seeds",
        495.0,
        ("qr_dqn",),
        Peer(contender=SB3_CONTRIB, hparams=ZOO_QR_DQN_CARTPOLE),
        tianshou("qr_dqn", TIANSHOU_QR_DQN),
        quoted={"sb3_contrib": "386 ± 64 (the table of its pull request: 5 seeds)"},
    ),
    "C7": cartpole(
        ">= 495 on 5/5 seeds",
        495.0,
        ("iqn", "fqf"),
        tianshou("iqn", TIANSHOU_IQN, name="tianshou-iqn"),
        tianshou("fqf", TIANSHOU_FQF, name="tianshou-fqf"),
    ),
    "C13": Row(
        env_id="LunarLander-v3",
        steps=100_000,
        target=">= 215",
        ours={"ours": "dqn/lunarlander.yaml"},
        peers=[Peer(contender=DQN_CONTENDERS["sb3"], hparams=ZOO_LUNAR_LANDER)],
        threshold=200.0,
        track_every=5_000,
    ),
    "C8": Row(
        env_id="CartPole-v1",
        steps=100_000,
        target="500 on 5/5 seeds by 50k",
        ours={"ours": "ppo/cartpole.yaml"},
        peers=[Peer(contender=PPO_CONTENDERS["sb3"], hparams=ZOO_PPO_CARTPOLE, num_envs=8)],
        threshold=475.0,
        by=50_000,
        track_every=1_000,
    ),
    "C16": Row(
        env_id="LunarLander-v3",
        steps=1_000_000,
        target=">= 250, or >= 200 by 300k",
        ours={"ours": "ppo/lunarlander.yaml"},
        peers=[Peer(contender=PPO_CONTENDERS["sb3"], hparams=ZOO_PPO_LUNAR_LANDER, num_envs=16)],
        threshold=200.0,
        by=300_000,
        track_every=20_000,
    ),
    "C21": Row(
        env_id="Pendulum-v1",
        steps=100_000,
        target=">= -165",
        ours={"ours": "ppo/pendulum.yaml"},
        peers=[Peer(contender=PPO_CONTENDERS["sb3"], hparams=ZOO_PPO_PENDULUM, num_envs=4)],
        threshold=-165.0,
        track_every=5_000,
        eval_episodes=100,
        track_episodes=100,
    ),
    "C17": pendulum(
        10_000,
        "sac: >= -160 by 5k, >= -150 at 10k",
        {"ours-sac": "sac/pendulum.yaml", "ours-td3": "td3/pendulum.yaml"},
        *sb3_actor_critics(ZOO_SAC_PENDULUM, ZOO_TD3_PENDULUM),
        threshold=-150.0,
        by=5_000,
        quoted={
            "zoo-sac": "-157.0 ± 88.7 at 20k steps (rl-zoo3's table: one run, deviation over episodes)",
            "zoo-td3": "-151.9 ± 90 at 20k steps (the same table)",
        },
    ),
    "C19": pendulum(
        3_000,
        ">= -155",
        {"ours": "redq/pendulum.yaml"},
        tianshou("redq", TIANSHOU_REDQ_PENDULUM, contender=TIANSHOU_ACTOR_CRITIC),
        threshold=-155.0,
    ),
    "C20_pendulum": pendulum(3_000, ">= -160", {"ours": "mbpo/pendulum.yaml"}, threshold=-160.0),
    "C20_inverted_pendulum": Row(
        env_id="InvertedPendulum-v5",
        steps=8_000,
        target="1000",
        ours={"ours": "mbpo/inverted_pendulum.yaml"},
        threshold=1_000.0,
        track_every=500,
        quoted={"mbpo": "1000 well inside 20k steps (the MBPO paper's learning curves)"},
    ),
    "C27": Row(
        env_id="rl_training/Catch-v0",
        steps=10_000,
        target=">= 0.95 of the balls caught within 20k steps and 15 minutes of one core",
        ours={"ours": "dreamer/catch.yaml"},
        threshold=0.95,
        track_every=1_000,
        eval_episodes=200,
        track_episodes=100,
    ),
    "C29": mujoco(
        "HalfCheetah-v5",
        50_000,
        ">= 3600",
        {"ours": "sac/halfcheetah.yaml"},
        *sb3_actor_critics(ZOO_SAC_MUJOCO, ZOO_TD3_MUJOCO),
        threshold=3_600.0,
        track_every=5_000,
        quoted={"dopamine": f"2679 ± 330 {DOPAMINE}"},
    ),
    "M1": mujoco(
        "HalfCheetah-v5",
        100_000,
        ">= 6000",
        {"ours": "sac/halfcheetah.yaml"},
        threshold=6_000.0,
        track_every=5_000,
        seeds=3,
        quoted={"dopamine": f"5470 ± 490 {DOPAMINE}"},
    ),
    "M8": mujoco(
        "Hopper-v5",
        125_000,
        ">= 3500; >= 3000 by 60k",
        {"ours": "redq/hopper.yaml"},
        threshold=3_000.0,
        goal=3_500.0,
        by=60_000,
        track_every=5_000,
        seeds=3,
        quoted={
            "redq": "3517 (the REDQ paper's score at 125k steps)",
            "nnabla-rl": "3341.7 ± 45.4 at 120k steps (nnabla-rl's table)",
        },
    ),
    "M11": mujoco(
        "Hopper-v5",
        125_000,
        "mean of the final window >= 3350; >= 3150 by 75k",
        {"ours": "mbpo/hopper.yaml"},
        threshold=3_150.0,
        goal=3_350.0,
        by=75_000,
        window=10,
        track_every=1_000,
        seeds=3,
        quoted={"mbpo": "about 3300 (the MBPO paper's learning curves); about 3100 at 75k in a later implementation"},
    ),
    "M6": Row(
        env_id="HalfCheetah-v5",
        steps=1_000_000,
        target=">= 5900",
        ours={"ours": "ppo/halfcheetah.yaml"},
        threshold=5_900.0,
        track_every=50_000,
        eval_episodes=10,
        seeds=3,
        quoted={
            "tianshou": "5783.9 ± 1244 (Tianshou's benchmark page: best point of the evaluation curve, 10 seeds)",
            "sb3": "5819 ± 664 (rl-zoo3's table: HalfCheetah-v3, one run, deviation over episodes)",
            "cleanrl": "1442.6 ± 46 (CleanRL's documentation: HalfCheetah-v4, training episodes, 3 seeds)",
        },
    ),
    "M13_breakout": minatar("Breakout", ">= 10", ("dqn",), threshold=10.0, quoted=f"9 {MINATAR_FIGURE}"),
    "M13_asterix": minatar("Asterix", ">= 10", ("dqn",), threshold=10.0, quoted=f"6 to 7 {MINATAR_FIGURE}"),
    "M13_space_invaders": minatar("SpaceInvaders", ">= 40", ("dqn",), threshold=40.0, quoted=f"33 {MINATAR_FIGURE}"),
    "M14_breakout": minatar("Breakout", BEYOND_DQN, DISTRIBUTIONAL, threshold=10.0),
    "M14_asterix": minatar("Asterix", BEYOND_DQN, DISTRIBUTIONAL, threshold=10.0),
    "M14_space_invaders": minatar("SpaceInvaders", BEYOND_DQN, DISTRIBUTIONAL, threshold=40.0),
    "C25": imitation(
        "cartpole",
        150_000,
        "500; the shuffled-expert control is shown beside it",
        threshold=475.0,
        goal=500.0,
        track_every=5_000,
        quoted={"imitation": "needs 800k steps for the expert's 500 (its CartPole example)"},
    ),
    "C26": imitation(
        "mountaincar",
        300_000,
        "within 5 of the expert's mean return; the shuffled-expert control fails",
        threshold=-110.0,
        track_every=10_000,
        eval_episodes=100,
        quoted={"paper": "-101.6 of an expert's -98.8 (Ho and Ermon's result files: TRPO, 1.5M steps)"},
    ),
    **iql_rows(
        "C23",
        ("pendulum", "halfcheetah"),
        ("random", "medium", "medium-replay"),
        steps=50_000,
        target="mean >= d3rlpy; on medium-replay >= BC + 10 %",
        seeds=5,
    ),
    "C24_pendulum_medium_replay": offline(
        "pendulum/medium-replay",
        20_000,
        ">= our IQL",
        {**MOPO_AND_IQL, "ours-bc": "bc"},
    ),
    "C24_pendulum_medium": offline(
        "pendulum/medium",
        20_000,
        "without the penalty it is worse: one policy's data are narrow",
        {"ours": "mopo", "ours-no-penalty": "mopo"},
        changes={"ours-no-penalty": {"penalty_coef": 0.0}},
    ),
    **iql_rows(
        "M16",
        ("hopper", "halfcheetah"),
        ("medium", "medium-replay", "medium-expert"),
        steps=200_000,
        target=">= d3rlpy on 5 of the 6 datasets, and a higher sum of normalised scores",
        seeds=3,
    ),
    "M17_halfcheetah_medium": offline("halfcheetah/medium", 200_000, BEYOND_IQL, MOPO_AND_IQL, seeds=3),
    "M17_halfcheetah_medium_replay": offline("halfcheetah/medium-replay", 200_000, BEYOND_IQL, MOPO_AND_IQL, seeds=3),
}


def rows_named(name: str) -> list[str]:
    """Give the rows that a name stands for: one, or all that begin with it, as C23_pendulum_medium does with C23."""
    return [name] if name in ROWS else [row for row in ROWS if row.startswith(f"{name}_")]


@dataclass(frozen=True, kw_only=True)
class RowRuns:
    """The runs of a row that are wanted, and where its results go."""

    name: str
    contenders: Sequence[str]
    seeds: Sequence[int]
    steps: int
    out: Path
    matmul_precision: str | None = None  # of ours; None: the config's

    @property
    def row(self) -> Row:
        return ROWS[self.name]

    @property
    def cells(self) -> list[tuple[str, int]]:
        return [(contender, seed) for seed in self.seeds for contender in self.contenders]

    def setting(self, contender: str, seed: int, device: str) -> dict[str, Any]:
        setting = self.row.setting(contender, seed, steps=self.steps)
        if device != "cpu" and self.row.contenders[contender].any_device:
            setting["device"] = device
        if self.matmul_precision and contender in self.row.ours:
            setting["matmul_precision"] = self.matmul_precision
        return setting


class RowResults:
    """What has come of a row so far; written anew after every run."""

    def __init__(self, wanted: RowRuns) -> None:
        self.wanted, self.failures = wanted, list[str]()
        self.finished: dict[tuple[str, int], dict[str, Any]] = {}
        row = wanted.row
        self._header = {
            "benchmark": f"scores {wanted.name}",
            **describe_run(),
            "env_id": row.env_id,
            "steps": wanted.steps,
            "target": row.target,
            **({"dataset": dataset_facts(row.dataset)} if row.dataset else {}),
            **({"expert": dataset_facts(row.expert)} if row.expert else {}),
            "threshold": row.threshold,
            "goal": row.goal,
            "seeds": list(wanted.seeds),
            "quoted": dict(row.quoted),
        }

    @property
    def complete(self) -> bool:
        return len(self.finished) + len(self.failures) == len(self.wanted.cells)

    def add(self, contender: str, seed: int, run: "Future[dict[str, Any]]") -> None:
        title = f"  {self.wanted.name:8} {contender:20} seed {seed}"
        try:
            result = run.result()
        except ContenderError as error:
            self.failures.append(str(error))
            print(f"{title}: FAILED: {error}", flush=True)
        else:
            self.finished[contender, seed] = result
            print(f"{title}: {fmean(result['returns']):8.2f} {result['kept']}", flush=True)
        results = self.write()
        if self.complete:
            print_table(results)
            print(f"written: {self.wanted.out}", flush=True)

    def write(self) -> dict[str, Any]:
        runs = collect(self.finished, self.wanted.contenders, self.wanted.row)
        results = {**self._header, "failures": self.failures, **runs}
        write_json(self.wanted.out, results)
        return results


def run_scores(wanted: Sequence[RowRuns], *, jobs: int, device: str = "cpu") -> bool:
    """Run what is missing of some rows, `jobs` runs at a time; print, and write the results. Give whether all is well.

    `device`: where ours learns; the peers that cannot choose stay on the CPU.
    """
    make_datasets([each.row.file for each in wanted if each.row.file], device=device, jobs=jobs)
    for each in wanted:
        size = f"{each.steps} steps, {len(each.cells)} runs, {jobs} at a time"
        print(f"scores {each.name}: {each.row.env_id}, {size}", flush=True)
    results = {each.name: RowResults(each) for each in wanted}
    pool, cores = ThreadPoolExecutor(jobs), FreeCores(jobs)
    pending = {
        pool.submit(
            run_or_recall, each.row.contenders[contender], each.setting(contender, seed, device), each.name, cores
        ): (each.name, contender, seed)
        for each in wanted
        for contender, seed in each.cells
    }
    try:
        for future in as_completed(pending):
            name, contender, seed = pending[future]
            results[name].add(contender, seed, future)
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C, do not start the runs that still wait
    return not any(result.failures for result in results.values())


class FreeCores:
    """The cores this process may use, dealt out to `jobs` runs: one each as long as there are enough."""

    def __init__(self, jobs: int) -> None:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._free: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        for job in range(jobs):
            self._free.put((allowed[job % len(allowed)],) if allowed else ())

    def run(self, contender: Contender, setting: Mapping[str, Any]) -> dict[str, Any]:
        cores = self._free.get()
        try:
            return run_contender(contender, setting, cores=cores)
        finally:
            self._free.put(cores)


def run_or_recall(
    contender: Contender, setting: Mapping[str, Any], row_name: str, free_cores: FreeCores
) -> dict[str, Any]:
    """Give the kept result of this very run, or run it and keep the result."""
    setting = contender.apply(setting)
    code = (REQUIREMENTS / f"{contender.peer}.txt").read_text() if contender.peer else source_digest()
    identity = hashlib.sha256(json.dumps([setting, code], sort_keys=True).encode()).hexdigest()[:12]
    path = KEPT_RUNS / row_name / contender.name / f"seed{setting['seed']}_{identity}.json"
    if path.is_file():
        return {**json.loads(path.read_text()), "kept": "(kept from before)"}
    result = free_cores.run(contender, setting)
    result["code"] = None if contender.peer else code
    write_json(path, result)
    return {**result, "kept": ""}


def first_held(tracked: Sequence[dict[str, Any]], threshold: float) -> int | None:
    """Give the step of the first of 3 consecutive evaluations with a mean return of `threshold` or more."""
    good = [fmean(evaluation["returns"]) >= threshold for evaluation in tracked]
    for start in range(len(good) - HELD_EVALUATIONS + 1):
        if all(good[start : start + HELD_EVALUATIONS]):
            return int(tracked[start]["step"])
    return None


def median_step(steps: Sequence[int | None]) -> float | None:
    """Give the median of steps of which some were never reached; None if the median is one of those."""
    middle = median(float("inf") if step is None else step for step in steps)
    return None if middle == float("inf") else middle


def return_at(tracked: Sequence[dict[str, Any]], step: int, window: int = 1) -> float | None:
    """Give the mean return of the evaluation during training at `step`, or of the `window` last ones up to it."""
    until = [fmean(evaluation["returns"]) for evaluation in tracked if evaluation["step"] <= step]
    there = any(evaluation["step"] == step for evaluation in tracked)
    return fmean(until[-window:]) if there and len(until) >= window else None


def returns_at(runs: Sequence[dict[str, Any]], row: Row) -> dict[str, list[float | None]]:
    """Give what the target says about evaluations during training, per seed."""
    places = {f"mean_returns_at_{row.by}": row.by} if row.by else {}
    if row.window > 1:
        places["final_window_means"] = max((evaluation["step"] for evaluation in runs[0]["tracked"]), default=0)
    return {name: [return_at(run["tracked"], step, row.window) for run in runs] for name, step in places.items()}


def held_from(run: dict[str, Any], row: Row) -> dict[str, int | None]:
    return {} if row.threshold is None else {"first_held_step": first_held(run["tracked"], row.threshold)}


def thresholds_reached(runs: Sequence[dict[str, Any]], means: Sequence[float], row: Row) -> dict[str, Any]:
    """Give how many final policies are as good as the row wants, and since when the runs have held it."""
    goal = {"seeds_at_goal": sum(mean >= row.goal for mean in means)} if row.goal is not None else {}
    if row.threshold is None:
        return goal
    threshold = row.threshold
    held = [first_held(run["tracked"], threshold) for run in runs]
    return {
        "seeds_at_threshold": sum(mean >= threshold for mean in means),
        **goal,
        "first_held_steps": held,
        "first_held_median": median_step(held),
    }


def normalised_scores(means: Sequence[float], row: Row) -> dict[str, Any]:
    """Give the seeds' means as scores between the random policy (0) and the expert (100), in rows with a dataset."""
    if row.dataset is None:
        return {}
    scores = [normalised(mean, dataset_facts(row.dataset)) for mean in means]
    return {"normalised_mean": fmean(scores), "normalised_scores": scores}


def collect(finished: dict[tuple[str, int], dict[str, Any]], contenders: Sequence[str], row: Row) -> dict[str, Any]:
    """Put the runs together per contender: summary over seeds first, then every seed."""
    per_contender: dict[str, Any] = {}
    for contender in contenders:
        runs = [finished[key] for key in sorted(finished) if key[0] == contender]
        if not runs:
            continue
        means = [fmean(run["returns"]) for run in runs]
        per_contender[contender] = {
            **asdict(summarize(means)),
            **normalised_scores(means, row),
            **thresholds_reached(runs, means, row),
            **returns_at(runs, row),
            "versions": runs[0]["versions"],
            "hparams": runs[0].get("resolved_config")
            or {"num_envs": runs[0]["setting"].get("num_envs", 1), **runs[0]["setting"]["hparams"]},
            "code": sorted({run["code"] for run in runs if run["code"]}),
            "per_seed": [
                {
                    "seed": run["setting"]["seed"],
                    "mean_return": mean,
                    **held_from(run, row),
                    "returns": run["returns"],
                    "tracked": [
                        {"step": evaluation["step"], "mean_return": fmean(evaluation["returns"])}
                        for evaluation in run["tracked"]
                    ],
                    "env_steps": run["env_steps"],
                    "updates": run["updates"],
                    "learn_s": run["learn_s"],
                    "date": run.get("date"),  # of its start; this command may have found it kept from before
                }
                for run, mean in zip(runs, means, strict=True)
            ],
        }
    return {"contenders": per_contender}


def print_table(results: dict[str, Any]) -> None:
    threshold, dataset, expert = results["threshold"], results.get("dataset"), results.get("expert")
    print(f"\ntarget: {results['target']}")
    if dataset:
        print(f"dataset: {dataset['name']}, mean return {dataset['mean_return']:.1f}, {dataset['rows']} rows")
    if expert:
        print(f"expert: {expert['expert_return']:.1f} on average, {expert['mean_return']:.1f} in what is imitated")
    last_title = "normalised" if threshold is None else f"first held at {threshold:g}+ (per seed)"
    print(f"{'contender':20} {'mean':>8} {'std':>7} {'IQM':>8} {'95 % interval':>18}  {last_title}")
    digits = 3 if threshold is not None and abs(threshold) <= 1.0 else 1
    for name, row in results["contenders"].items():
        low, high = row["interval"]
        held = ("-" if step is None else f"{step / 1000:g}k" for step in row.get("first_held_steps", ()))
        last = f"{row['normalised_mean']:.1f}" if dataset else " ".join(held)
        interval = f"{low:.{digits}f}..{high:.{digits}f}"
        figures = f"{row['mean']:8.{digits}f} {row['std']:7.{digits}f} {row['iqm']:8.{digits}f}"
        print(f"{name:20} {figures} {interval:>18}  {last}")
    for name, score in results["quoted"].items():
        print(f"{name:20} quoted: {score}")
