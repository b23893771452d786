"""Offline algorithms from datasets of our own SAC; `python -m benchmarks datasets` records them. Steps are updates.

The budget ends a row's name where the same task has a second one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.engine import Control, Row
from benchmarks.rows.peers import d3rlpy_iql

ENV_IDS = {"pendulum": "Pendulum-v1", "halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}
BC_ENVS = ("pendulum", "halfcheetah")
D3RLPY = "mean >= d3rlpy"
D3RLPY_AND_BC = "mean >= d3rlpy, and >= bc + 10 %"
FIVE_OF_SIX = ">= d3rlpy on 5 of the 6 datasets, and a higher sum of normalised scores"
NOT_CHOSEN = "no seed: the first values tried"
IQL_PENDULUM_CHOSEN_ON = "two seeds other than those scored; the initialisation on seeds 100 to 107"
MOPO_PENDULUM_CHOSEN_ON = "seeds 100 and 101"
BEYOND_IQL = "our iql + 10 normalised points"


def offline(algo: str, env: str, kind: str, steps: int, target: str, **more: Any) -> Row:
    return Row(
        config=f"{algo}/{env}.yaml",
        env_id=ENV_IDS[env],
        steps=steps,
        target=target,
        dataset=f"{env}/{kind}",
        track_every=steps // 10,
        eval_episodes=100 if env == "pendulum" else 10,
        **more,
    )


def iql(env: str, kind: str, steps: int, target: str, seeds: int) -> Row:
    peers = [d3rlpy_iql(f"iql/{env}.yaml")]
    chosen_on = IQL_PENDULUM_CHOSEN_ON if env == "pendulum" else ""
    return offline("iql", env, kind, steps, target, peers=peers, seeds=seeds, chosen_on=chosen_on)


def iql_and_bc(envs: Sequence[str], kinds: Sequence[str], steps: int, seeds: int, ending: str = "") -> dict[str, Row]:
    """Build an IQL row for each environment and dataset, and a BC row where a config exists. `ending`: of the names."""
    rows: dict[str, Row] = {}
    for env in envs:
        for kind in kinds:
            small = D3RLPY_AND_BC if kind == "medium-replay" else D3RLPY
            target = small if steps == 50_000 else FIVE_OF_SIX
            rows[f"iql-{env}-{kind}{ending}"] = iql(env, kind, steps, target, seeds)
            if env in BC_ENVS:
                rows[f"bc-{env}-{kind}{ending}"] = offline(
                    "bc", env, kind, steps, "none set; compared with iql", seeds=seeds
                )
    return rows


def from_random_actions(algo: str, steps: int, chosen_on: str) -> Row:
    """Build the row of a config for Pendulum with its own dataset: random actions, the same ones for each seed."""
    return Row(
        config=f"{algo}/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=steps,
        target="mean >= -200, where the pendulum stands from most starts",
        threshold=-200.0,
        track_every=steps // 10,
        eval_episodes=100,
        track_episodes=100,  # few starts would shift the whole curve: some are far easier than others
        chosen_on=chosen_on,
    )


def critics_on_dataset(algo: str, chosen_on: str) -> dict[str, Row]:
    """Build the rows of an algorithm that climbs critics: Pendulum by its config, MuJoCo tasks by its defaults."""
    controls = {"ours-iql": IQL_CONTROL["pendulum"], "ours-bc": Control(config="bc/pendulum.yaml")}
    replay = offline(
        algo, "pendulum", "medium-replay", 20_000, ">= our iql", controls=controls, seeds=5, chosen_on=chosen_on
    )
    rows = {f"{algo}-pendulum": from_random_actions(algo, 10_000, chosen_on), f"{algo}-pendulum-medium-replay": replay}
    for env in ("halfcheetah", "hopper"):
        for kind in ("medium", "medium-replay", "medium-expert"):
            by_defaults = offline(algo, env, kind, 200_000, "none set; compared with iql", seeds=3)
            rows[f"{algo}-{env}-{kind}-defaults"] = replace(by_defaults, config="", algo=algo)
    return rows


IQL_CONTROL = {env: Control(config=f"iql/{env}.yaml") for env in ENV_IDS}

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
    **iql_and_bc(("pendulum", "halfcheetah"), ("random", "medium", "medium-replay"), 50_000, 5),
    **iql_and_bc(("hopper",), ("medium", "medium-replay", "medium-expert"), 200_000, 3),
    **iql_and_bc(("halfcheetah",), ("medium", "medium-replay", "medium-expert"), 200_000, 3, "-200k"),
    **critics_on_dataset("td3_bc", NOT_CHOSEN),
    **critics_on_dataset("rebrac", NOT_CHOSEN),
    **critics_on_dataset("cql", NOT_CHOSEN),
    "rlpd-pendulum": Row(
        config="rlpd/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=2_000,
        target="above the same without the dataset",
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
        "worse without the penalty: one policy's data are narrow",
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

# Rows whose normalised scores are also summarised together.
SUITES = {
    "iql-50k": [name for name, row in ROWS.items() if name.startswith("iql-") and row.steps == 50_000],
    "iql-200k": [name for name, row in ROWS.items() if name.startswith("iql-") and row.steps == 200_000],
}
