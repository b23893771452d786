"""Actor-critics on five MuJoCo tasks, after 100k and after 200k env steps, and what the five scores come to together.

A row names the task and the budget; the tasks share the config of the algorithm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.engine import Control, Row
from benchmarks.rows.continuous import mujoco
from benchmarks.suites import Suite

TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
BUDGETS = {100_000: "", 200_000: "-200k"}  # and how the name of a row ends
SAC_AFTER_1M = {"HalfCheetah": 11291, "Hopper": 2651, "Walker2d": 4543, "Ant": 5575, "Humanoid": 4727}

# Ant-v5 and Humanoid-v5 have other observations than version 4. These make Ant-v5 version 4, but for the reward of the
# step on which it falls: 1 less.
AS_V4 = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}


class Published(NamedTuple):
    """The return after 100k env steps, its deviation over seeds, and the return after 200k."""

    after_100k: int
    deviation: int
    after_200k: int

    def after(self, steps: int) -> int:
        return self.after_100k if steps == 100_000 else self.after_200k

    def text(self, steps: int) -> str:
        return f"{self.after_100k} ± {self.deviation}" if steps == 100_000 else str(self.after_200k)


# Of the algorithms' authors, on version 4 of the tasks with 10 seeds, from the result files of the SimBaV2 authors.
# Walker2d-v5 has another friction. SimBaV2 with two updates per env step, REDQ with 20.
PUBLISHED = {
    "sac": {
        "HalfCheetah": Published(6156, 700, 7679),
        "Hopper": Published(1103, 368, 2342),
        "Walker2d": Published(690, 241, 1946),
        "Ant": Published(747, 501, 2296),
        "Humanoid": Published(632, 170, 994),
    },
    "redq": {
        "HalfCheetah": Published(7823, 692, 9095),
        "Hopper": Published(2750, 922, 3543),
        "Walker2d": Published(3459, 1053, 4491),
        "Ant": Published(3287, 1138, 3953),
        "Humanoid": Published(1319, 1245, 3348),
    },
    "crossq": {
        "HalfCheetah": Published(8058, 889, 9494),
        "Hopper": Published(2759, 379, 2605),
        "Walker2d": Published(3486, 1056, 4840),
        "Ant": Published(2686, 946, 4960),
        "Humanoid": Published(3184, 1068, 5725),
    },
    "simbav2": {
        "HalfCheetah": Published(7328, 993, 8913),
        "Hopper": Published(2821, 729, 3144),
        "Walker2d": Published(3023, 1728, 3298),
        "Ant": Published(3881, 938, 5732),
        "Humanoid": Published(1329, 769, 5980),
    },
}
ZOO_TQC = {
    "HalfCheetah": "12090 at 1M steps",
    "Hopper": "3754 at 1M steps",
    "Walker2d": "4381 at 1M steps",
    "Ant": "3339 ± 1970 at 1M steps",
    "Humanoid": "7239 at 2M steps",
}


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """An algorithm on the five tasks.

    `hparams`: changes to the config, by task. `controls`: other changes, by contender and task. `published`: further
    scores of others, by task. `suffix`: of the names of the rows, where a task also has a row with a config of its own.
    """

    config: str
    hparams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    controls: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    suffix: str = ""
    chosen_on: str = "none: the authors' values"


# The values of SimBa's authors; the targets of the entropy are minus half the action dimensions.
SIMBA = {
    "network": "simba",
    "hidden_sizes": [128],
    "critic_hidden_sizes": [512, 512],
    "learning_rate": 1e-4,
    "actor_learning_rate": None,
    "alpha_learning_rate": None,
    "weight_decay": 0.01,
    "initial_alpha": 0.01,
    "gamma": 0.995,
    "gradient_updates_per_step": 2,
}
SIMBA_ENTROPY = {"HalfCheetah": -3.0, "Hopper": -1.5, "Walker2d": -3.0, "Ant": -4.0, "Humanoid": -8.5}

ENTRANTS = {
    "sac": Entrant(
        config="sac/mujoco.yaml",
        suffix="-mujoco",
        controls={"ours-simba": {task: {**SIMBA, "target_entropy": SIMBA_ENTROPY[task]} for task in TASKS}},
        chosen_on="seeds 100 to 102 of HalfCheetah, Hopper, Walker2d and Ant",
    ),
    "td3": Entrant(config="td3/mujoco.yaml", suffix="-mujoco"),
    "redq": Entrant(
        config="redq/hopper.yaml",
        suffix="-mujoco",
        hparams={
            task: {"target_entropy": entropy}
            for task, entropy in zip(TASKS, (-3.0, -1.0, -3.0, -4.0, -2.0), strict=True)
        },
    ),
    "tqc": Entrant(
        config="tqc/mujoco.yaml",
        hparams={task: {"dropped_quantiles": count} for task, count in zip(TASKS, (0, 5, 2, 2, 2), strict=True)},
        published={task: {"zoo": f"{text} (rl-zoo3's table: one run, on {task}-v3)"} for task, text in ZOO_TQC.items()},
    ),
    "crossq": Entrant(config="crossq/mujoco.yaml"),
    "simbav2": Entrant(config="simbav2/mujoco.yaml"),
}


def row_name(algo: str, task: str, steps: int, variant: str = "") -> str:
    return f"{algo}-{task.lower()}{ENTRANTS[algo].suffix}{variant}{BUDGETS[steps]}"


def five_tasks_row(algo: str, task: str, steps: int) -> Row:
    """Build a row whose target is the score of the algorithm's authors, or of SAC's where there is none."""
    entrant = ENTRANTS[algo]
    source = f"on {task}-v4: 10 seeds, from the SimBaV2 authors' files"
    published = {"sac": f"{PUBLISHED['sac'][task].text(steps)} (SAC {source})"}
    if algo in PUBLISHED and algo != "sac":
        published["paper"] = f"{PUBLISHED[algo][task].text(steps)} ({source})"
    target = PUBLISHED.get(algo, PUBLISHED["sac"])[task].after(steps)
    return mujoco(
        entrant.config,
        f"{task}-v5",
        steps,
        f">= {target}",
        hparams=entrant.hparams.get(task, {}),
        controls={
            name: Control(config=entrant.config, hparams=changes[task]) for name, changes in entrant.controls.items()
        },
        threshold=float(target),
        track_every=10_000,
        track_episodes=5,
        chosen_on=entrant.chosen_on,
        published=published | dict(entrant.published.get(task, {})),
    )


def published_mean(algo: str, steps: int) -> float | None:
    """Return the mean over the tasks of the published score over SAC's after 1M steps; None if nothing is published."""
    if algo not in PUBLISHED:
        return None
    return fmean(PUBLISHED[algo][task].after(steps) / SAC_AFTER_1M[task] for task in TASKS)


ROWS = {
    row_name(algo, task, steps): five_tasks_row(algo, task, steps)
    for algo in ENTRANTS
    for steps in BUDGETS
    for task in TASKS
} | {
    row_name(algo, "Ant", steps, "-as_v4"): replace(five_tasks_row(algo, "Ant", steps), env_kwargs=AS_V4)
    for algo in PUBLISHED
    for steps in BUDGETS
}

SUITES = {
    f"{algo}-five_tasks-{steps // 1_000}k": Suite(
        rows=[row_name(algo, task, steps) for task in TASKS],
        steps=steps,
        units={row_name(algo, task, steps): float(SAC_AFTER_1M[task]) for task in TASKS},
        published=published_mean(algo, steps),
    )
    for algo in ENTRANTS
    for steps in BUDGETS
}
