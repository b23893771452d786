"""Offline algorithms from datasets of our own agents, which `python -m benchmarks datasets` records. Steps are updates.

A row of MuJoCo's has a budget of 200k updates; `--steps 50000` makes a shorter run of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.engine import Control, Row
from benchmarks.rows.peers import d3rlpy
from benchmarks.suites import Suite

MUJOCO = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}
ENV_IDS = {"pendulum": "Pendulum-v1", **MUJOCO}
MUJOCO_KINDS = ("random", "medium", "medium-replay", "medium-expert")
PENDULUM_KINDS = ("random", "medium", "medium-replay")
D3RLPY = "mean >= d3rlpy"
D3RLPY_AND_BC = "mean >= d3rlpy, and >= bc + 10 %"
WITH_IQL = "none set; compared with iql"
# ReBRAC's penalties of the actor and of the critics, which its authors chose for each dataset of D4RL.
REBRAC_PENALTIES = {
    "halfcheetah": {
        "random": (0.001, 0.1),
        "medium": (0.001, 0.01),
        "medium-replay": (0.01, 0.001),
        "medium-expert": (0.01, 0.1),
    },
    "hopper": {
        "random": (0.001, 0.01),
        "medium": (0.01, 0.01),
        "medium-replay": (0.05, 0.5),
        "medium-expert": (0.1, 0.01),
    },
    "walker2d": {
        "random": (0.01, 0.0),
        "medium": (0.05, 0.1),
        "medium-replay": (0.05, 0.01),
        "medium-expert": (0.01, 0.01),
    },
}
NOT_CHOSEN = "no seed: the first values tried"
AUTHORS = "no seed: the authors' values"
IQL_PENDULUM_CHOSEN_ON = "two seeds other than those scored; the initialisation on seeds 100 to 107"
MOPO_PENDULUM_CHOSEN_ON = "seeds 100 and 101"
BEYOND_IQL = ">= our iql + 10 normalised points"


def config_of(algo: str, env: str) -> str:
    """Return the name of the config: MuJoCo's tasks share one, but for MOPO."""
    return f"{algo}/{'mujoco' if env in MUJOCO and algo != 'mopo' else env}.yaml"


def offline(algo: str, env: str, kind: str, steps: int, target: str, **more: Any) -> Row:
    return Row(
        config=config_of(algo, env),
        env_id=ENV_IDS[env],
        steps=steps,
        target=target,
        dataset=f"{env}/{kind}",
        track_every=25_000 if env in MUJOCO else steps // 10,
        eval_episodes=100 if env == "pendulum" else 10,
        track_episodes=10 if env == "pendulum" else 5,
        **more,
    )


def iql_and_bc(env: str, kinds: Sequence[str], steps: int, seeds: int, chosen_on: str) -> dict[str, Row]:
    """Build a row of IQL, beside d3rlpy, and one of BC for each dataset of an environment."""
    rows: dict[str, Row] = {}
    for kind in kinds:
        target = D3RLPY_AND_BC if kind == "medium-replay" else D3RLPY
        peers = [d3rlpy(config_of("iql", env))]
        rows[f"iql-{env}-{kind}"] = offline(
            "iql", env, kind, steps, target, peers=peers, seeds=seeds, chosen_on=chosen_on
        )
        rows[f"bc-{env}-{kind}"] = offline("bc", env, kind, steps, WITH_IQL, seeds=seeds)
    return rows


def from_random_actions(algo: str, steps: int, chosen_on: str) -> Row:
    """Build the row of a config for Pendulum with its own dataset: random actions, the same ones for each seed."""
    return Row(
        config=f"{algo}/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=steps,
        target="mean >= -200",  # the pendulum stands from most starts
        threshold=-200.0,
        track_every=steps // 10,
        eval_episodes=100,
        track_episodes=100,  # few starts would shift the whole curve: some are far easier than others
        chosen_on=chosen_on,
    )


def rebrac_hparams(env: str, kind: str) -> dict[str, float]:
    return dict(zip(("actor_penalty", "critic_penalty"), REBRAC_PENALTIES[env][kind], strict=True))


def critics_on_dataset(algo: str) -> dict[str, Row]:
    """Build the rows of an algorithm that climbs critics: two on Pendulum, and on MuJoCo's datasets beside d3rlpy."""
    controls = {"ours-iql": IQL_CONTROL["pendulum"], "ours-bc": Control(config="bc/pendulum.yaml")}
    replay = offline(
        algo, "pendulum", "medium-replay", 20_000, ">= our iql", controls=controls, seeds=5, chosen_on=NOT_CHOSEN
    )
    rows = {f"{algo}-pendulum": from_random_actions(algo, 10_000, NOT_CHOSEN), f"{algo}-pendulum-medium-replay": replay}
    for env in MUJOCO:
        for kind in MUJOCO_KINDS:
            hparams = rebrac_hparams(env, kind) if algo == "rebrac" else {}
            peers = [d3rlpy(config_of(algo, env), hparams)]
            rows[f"{algo}-{env}-{kind}"] = offline(
                algo, env, kind, 200_000, D3RLPY, hparams=hparams, peers=peers, seeds=10, chosen_on=AUTHORS
            )
    return rows


IQL_CONTROL = {env: Control(config=config_of("iql", env)) for env in ENV_IDS}
MUJOCO_IQL_AND_BC = {
    name: row for env in MUJOCO for name, row in iql_and_bc(env, MUJOCO_KINDS, 200_000, 10, AUTHORS).items()
}

ROWS = {
    "bc-cartpole": Row(
        config="bc/cartpole.yaml",
        env_id="CartPole-v1",
        steps=5_000,
        target="none set; imitates random actions",
        threshold=475.0,
        track_every=1_000,
    ),
    "iql_online-pendulum": Row(
        config="iql_online/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=10_000,
        target="none set; from scratch, without init_from",
        threshold=-200.0,
        track_every=1_000,
        eval_episodes=100,
        track_episodes=100,
    ),
    "iql-pendulum": from_random_actions("iql", 20_000, IQL_PENDULUM_CHOSEN_ON),
    **iql_and_bc("pendulum", PENDULUM_KINDS, 50_000, 5, IQL_PENDULUM_CHOSEN_ON),
    **MUJOCO_IQL_AND_BC,
    "iql-halfcheetah-medium-expert": replace(
        MUJOCO_IQL_AND_BC["iql-halfcheetah-medium-expert"],
        controls={"ours-sigma-0.22": Control(config="iql/mujoco.yaml", hparams={"log_std_init": -1.5})},
    ),
    **critics_on_dataset("td3_bc"),
    **critics_on_dataset("rebrac"),
    **critics_on_dataset("cql"),
    "rlpd-pendulum": Row(
        config="rlpd/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=2_000,
        target=">= ours-no-dataset",
        controls={"ours-no-dataset": Control(config="rlpd/pendulum.yaml", hparams={"offline_ratio": 0.0})},
        threshold=-200.0,
        track_every=500,
        eval_episodes=100,
        chosen_on=NOT_CHOSEN,
    ),
    "cal_ql-pendulum": Row(
        config="cal_ql/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=5_000,
        target="none set; from scratch, without init_from",
        controls={"ours-not-calibrated": Control(config="cal_ql/pendulum.yaml", hparams={"calibrated": False})},
        threshold=-200.0,
        track_every=500,
        eval_episodes=100,
        chosen_on=NOT_CHOSEN,
    ),
    "mopo-pendulum": from_random_actions("mopo", 20_000, MOPO_PENDULUM_CHOSEN_ON),
    "mopo-pendulum-medium-replay": offline(
        "mopo",
        "pendulum",
        "medium-replay",
        20_000,
        ">= our iql",
        controls={"ours-iql": IQL_CONTROL["pendulum"], "ours-bc": Control(config="bc/pendulum.yaml")},
        chosen_on=MOPO_PENDULUM_CHOSEN_ON,
    ),
    "mopo-pendulum-medium": offline(
        "mopo",
        "pendulum",
        "medium",
        20_000,
        ">= ours-no-penalty",  # one policy's data are narrow
        controls={"ours-no-penalty": Control(config="mopo/pendulum.yaml", hparams={"penalty_coef": 0.0})},
        chosen_on=MOPO_PENDULUM_CHOSEN_ON,
    ),
    **{
        f"mopo-halfcheetah-{kind}": offline(
            "mopo",
            "halfcheetah",
            kind,
            200_000,
            BEYOND_IQL,
            controls={"ours-iql": IQL_CONTROL["halfcheetah"]},
            seeds=3,
            chosen_on="seed 100",
        )
        for kind in ("medium", "medium-replay")
    },
}


SUITES: Mapping[str, Suite] = {
    "iql-small-50k": Suite(
        rows=[f"iql-{env}-{kind}" for env in ("pendulum", "halfcheetah") for kind in PENDULUM_KINDS], steps=50_000
    ),
    **{
        f"{algo}-mujoco-{steps // 1_000}k": Suite(
            rows=[f"{algo}-{env}-{kind}" for env in MUJOCO for kind in MUJOCO_KINDS], steps=steps
        )
        for algo in ("bc", "iql", "td3_bc", "rebrac", "cql")
        for steps in (50_000, 200_000)
    },
}
