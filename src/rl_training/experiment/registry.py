"""One row per algorithm; CLI, API classes, entry points, validation, schema, docs and tests are derived from the rows.

Importing this module imports neither torch nor gymnasium: builders are named as "module:function" and resolved
when a run starts.
"""

import difflib
import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal

from rl_training.core.kinds import ActionKind, ObservationKind
from rl_training.errors import ConfigError, text_of
from rl_training.hparams.actor_critic import REDQHParams, RLPDHParams, SACHParams, TD3HParams
from rl_training.hparams.base import HParams
from rl_training.hparams.dqn import (
    C51HParams,
    DoubleDQNHParams,
    DQNHParams,
    DuelingDQNHParams,
    FQFHParams,
    IQNHParams,
    NoisyDQNHParams,
    NStepDQNHParams,
    PrioritizedDQNHParams,
    QRDQNHParams,
    RainbowDQNHParams,
)
from rl_training.hparams.dreamer import DreamerHParams
from rl_training.hparams.gail import GAILHParams
from rl_training.hparams.mbpo import MBPOHParams, MOPOHParams
from rl_training.hparams.offline import BCHParams, CQLHParams, IQLHParams, IQLOnlineHParams, ReBRACHParams, TD3BCHParams
from rl_training.hparams.ppo import PPOHParams
from rl_training.hparams.pqn import PQNHParams
from rl_training.hparams.schedules import (
    actor_critic_updates,
    dreamer_updates,
    iql_online_updates,
    offline_updates,
    ppo_updates,
    q_learning_updates,
)

if TYPE_CHECKING:
    from rl_training.core.setup import Setup
    from rl_training.core.types import Algorithm, GreedyPolicy, Memory
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.run import Run
    from rl_training.runtime.setup import PreparedRun, RunOptions

ENTRY_POINT_GROUP = "rl_training.algorithms"

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec:
    """All that the library knows about an algorithm."""

    name: str
    class_name: str
    summary: str
    paper: str
    family: str = ""  # the algorithm whose `train_<algo>` also trains this one; empty: only its own does
    loop: Literal["off_policy", "on_policy", "offline"]
    actions: frozenset[ActionKind]
    observations: frozenset[ObservationKind]
    hparams: type[HParams]
    action_masks: bool = False  # whether it keeps to the actions that an env's masks allow
    stochastic: bool = False  # whether its policy is a distribution from which actions can be sampled
    build: str  # "module:function", Setup -> Algorithm
    memory: str  # "module:function", Setup -> Memory
    updates_until: Callable[
        [Any, int], int
    ]  # (hparams, step) -> updates owed since the run began (hparams/schedules.py)
    updates_at_once: bool = False  # whether one call of `update` makes all the updates that are due
    # Compiling takes 10 to 20 s once; an update of small networks then takes 0.2 ms instead of 1.2 (2-core EPYC, DQN
    # with 120x84 units, batch 128), so that the second run of this length is faster for it, if not the first.
    min_updates_to_compile: int = 10_000
    device_loop: bool = False  # whether it can learn on the device from tensor environments (`on_device`)
    # Settings that may differ between the members of a stack, where the step reads them from its state; those of an
    # algorithm that cannot be stacked are empty (learners/member_settings.py).
    per_member: frozenset[str] = frozenset()
    intervals: tuple[str, ...] = ()  # settings: gradient steps between what an offline algorithm does beside updates
    begin: str | None = None  # "module:function", (PreparedRun, RunOptions): prepares a new run before its first step
    callbacks: str | None = None  # "module:function", Run -> callbacks that its runs need in addition to the loop
    policy_module: str | None = None  # "module:function", Algorithm -> GreedyPolicy; None: it cannot be exported
    reference_config: str

    @property
    def entry_point(self) -> str:
        return f"train_{self.name}"

    @property
    def class_doc(self) -> str:
        """The docstring of the algorithm's class in the API: what it is, the paper, an example."""
        return f"""{self.summary[:1].upper()}{self.summary[1:]}.

{self.paper}.

Example:

    agent = {self.class_name}("configs/{self.reference_config}")
    agent.learn()
    agent.evaluate()
"""

    @property
    def entry_point_doc(self) -> str:
        """The docstring of the algorithm's `train_<algo>`."""
        family = " or another algorithm of its family" if self.family == self.name else ""
        return f"Train {self.class_name}{family} from a config, in a new run folder."

    def trains(self, other: "AlgorithmSpec") -> bool:
        """Return whether this row's entry point trains `other`: itself or a member of its family."""
        return self.name in (other.name, other.family)

    def build_algorithm(self, setup: "Setup[Any]") -> "Algorithm":
        return _resolve(self.build)(setup)  # type: ignore[no-any-return]

    def build_memory(self, setup: "Setup[Any]") -> "Memory":
        return _resolve(self.memory)(setup)  # type: ignore[no-any-return]

    def begin_run(self, prepared: "PreparedRun", options: "RunOptions") -> None:
        if self.begin:
            _resolve(self.begin)(prepared, options)

    def build_policy_module(self, algorithm: "Algorithm") -> "GreedyPolicy":
        """Return the policy without exploration as a module that shares the parameters of the algorithm."""
        if self.policy_module is None:
            raise ConfigError(
                f"{self.name} cannot be exported: its row of the registry names no policy_module (docs/extending.md)"
            )
        return _resolve(self.policy_module)(algorithm)  # type: ignore[no-any-return]

    def build_callbacks(self, run: "Run") -> "list[Callback]":
        return _resolve(self.callbacks)(run) if self.callbacks else []


def _resolve(reference: str) -> Callable[..., Any]:
    module, _, attribute = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


_ACTOR_CRITIC_UPDATES_TO_COMPILE = 5_000  # SAC with the defaults: 6.6 ms instead of 11.4; offline updates are as large
_ALL_OBSERVATIONS: frozenset[ObservationKind] = frozenset({"vector", "image", "discrete", "dict"})


def _q_learning(
    name: str, class_name: str, summary: str, paper: str, hparams: type[HParams], build: str
) -> AlgorithmSpec:
    """Build a row of the DQN family."""
    return AlgorithmSpec(
        name=name,
        class_name=class_name,
        summary=summary,
        paper=paper,
        family="dqn",
        loop="off_policy",
        actions=frozenset({"discrete"}),
        observations=_ALL_OBSERVATIONS,
        hparams=hparams,
        action_masks=True,
        build=f"rl_training.algorithms.{build}",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=q_learning_updates,
        policy_module="rl_training.learners.q_learning:q_policy",
        reference_config=f"{name}/cartpole.yaml",
    )


def _actor_critic(
    name: str, summary: str, paper: str, hparams: type[HParams], *, stochastic: bool = True
) -> AlgorithmSpec:
    """Build a row of the off-policy actor-critics."""
    return AlgorithmSpec(
        name=name,
        class_name=name.upper(),
        summary=summary,
        paper=paper,
        family="sac",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=_ALL_OBSERVATIONS,
        hparams=hparams,
        stochastic=stochastic,
        build=f"rl_training.algorithms.{name}:build_{name}",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=actor_critic_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        updates_at_once=True,
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        reference_config=f"{name}/pendulum.yaml",
    )


def _offline(
    name: str,
    summary: str,
    paper: str,
    hparams: type[HParams],
    actions: frozenset[ActionKind],
    per_member: frozenset[str],
) -> AlgorithmSpec:
    """Build a row of the algorithms that learn from a dataset."""
    return AlgorithmSpec(
        name=name,
        class_name=name.upper(),
        summary=summary,
        paper=paper,
        loop="offline",
        actions=actions,
        observations=_ALL_OBSERVATIONS,
        hparams=hparams,
        stochastic=True,
        build=f"rl_training.algorithms.{name}:build_{name}",
        memory="rl_training.data.dataset_memory:build_dataset_memory",
        updates_until=offline_updates,
        policy_module="rl_training.learners.offline:offline_policy",
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        per_member=per_member,
        callbacks="rl_training.runtime.offline_evaluation:held_out_evaluation",
        reference_config=f"{name}/pendulum.yaml",
    )


def _critics_on_dataset(
    name: str,
    class_name: str,
    summary: str,
    paper: str,
    hparams: type[HParams],
    *,
    build: str,
    memory: str = "build_dataset_memory",
    stochastic: bool = False,
) -> AlgorithmSpec:
    """Build a row of the off-policy actor-critics that learn from a dataset."""
    return AlgorithmSpec(
        name=name,
        class_name=class_name,
        summary=summary,
        paper=paper,
        loop="offline",
        actions=frozenset({"box"}),
        observations=_ALL_OBSERVATIONS,
        hparams=hparams,
        stochastic=stochastic,
        build=f"rl_training.algorithms.{build}",
        memory=f"rl_training.data.dataset_memory:{memory}",
        updates_until=offline_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        callbacks="rl_training.runtime.offline_evaluation:held_out_evaluation",
        reference_config=f"{name}/pendulum.yaml",
    )


ROWS = (  # of the library itself
    _q_learning(
        "dqn",
        "DQN",
        "deep Q-learning with a replay buffer and a target network",
        "Mnih et al. 2015, Human-level control through deep reinforcement learning",
        DQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "double_dqn",
        "DoubleDQN",
        "DQN whose online network selects the action in the target",
        "van Hasselt et al. 2016, Deep reinforcement learning with double Q-learning",
        DoubleDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "dueling_dqn",
        "DuelingDQN",
        "double DQN with separate streams for state value and action advantages",
        "Wang et al. 2016, Dueling network architectures for deep reinforcement learning",
        DuelingDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "noisy_dqn",
        "NoisyDQN",
        "DQN that explores by learned noise on its weights",
        "Fortunato et al. 2018, Noisy networks for exploration",
        NoisyDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "prioritized_dqn",
        "PrioritizedDQN",
        "DQN that samples transitions by their TD error",
        "Schaul et al. 2016, Prioritized experience replay",
        PrioritizedDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "n_step_dqn",
        "NStepDQN",
        "DQN with three-step returns",
        "Sutton 1988, Learning to predict by the methods of temporal differences",
        NStepDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "c51_dqn",
        "C51DQN",
        "distributional DQN: probabilities of fixed returns (atoms)",
        "Bellemare et al. 2017, A distributional perspective on reinforcement learning",
        C51HParams,
        "c51_dqn:build_c51_dqn",
    ),
    _q_learning(
        "rainbow_dqn",
        "RainbowDQN",
        "C51 with double, dueling, noisy, prioritized and three-step learning",
        "Hessel et al. 2018, Rainbow: combining improvements in deep reinforcement learning",
        RainbowDQNHParams,
        "c51_dqn:build_c51_dqn",
    ),
    _q_learning(
        "qr_dqn",
        "QRDQN",
        "distributional DQN: quantiles of the return, by quantile regression",
        "Dabney et al. 2018, Distributional reinforcement learning with quantile regression",
        QRDQNHParams,
        "qr_dqn:build_qr_dqn",
    ),
    _q_learning(
        "iqn",
        "IQN",
        "distributional DQN: the quantile function of the return, at random fractions",
        "Dabney et al. 2018, Implicit quantile networks for distributional reinforcement learning",
        IQNHParams,
        "iqn:build_iqn",
    ),
    _q_learning(
        "fqf",
        "FQF",
        "IQN with fractions proposed by a network",
        "Yang et al. 2019, Fully parameterized quantile function for distributional reinforcement learning",
        FQFHParams,
        "fqf:build_fqf",
    ),
    AlgorithmSpec(
        name="ppo",
        class_name="PPO",
        summary="proximal policy optimization: clipped policy gradient on rollouts",
        paper="Schulman et al. 2017, Proximal policy optimization algorithms",
        loop="on_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=_ALL_OBSERVATIONS,
        hparams=PPOHParams,
        action_masks=True,
        stochastic=True,
        build="rl_training.algorithms.ppo:build_ppo",
        memory="rl_training.data.rollout_buffer:build_rollout_buffer",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.ppo:ppo_policy",
        device_loop=True,
        reference_config="ppo/cartpole.yaml",
    ),
    AlgorithmSpec(
        name="pqn",
        class_name="PQN",
        summary="Q-learning on rollouts of many environments, without replay and target network",
        paper="Gallici et al. 2025, Simplifying deep temporal difference learning",
        loop="on_policy",
        actions=frozenset({"discrete"}),
        observations=_ALL_OBSERVATIONS,
        hparams=PQNHParams,
        build="rl_training.algorithms.pqn:build_pqn",
        memory="rl_training.data.rollout_buffer:build_rollout_buffer",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.pqn:pqn_policy",
        device_loop=True,
        reference_config="pqn/cartpole.yaml",
    ),
    AlgorithmSpec(
        name="gail",
        class_name="GAIL",
        summary="imitation: PPO rewarded by a discriminator between expert and policy",
        paper="Ho and Ermon 2016, Generative adversarial imitation learning",
        loop="on_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=_ALL_OBSERVATIONS,
        hparams=GAILHParams,
        action_masks=True,
        stochastic=True,
        build="rl_training.algorithms.gail:build_gail",
        memory="rl_training.data.expert_rollouts:build_expert_rollouts",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.gail:gail_policy",
        min_updates_to_compile=20_000,  # two programs: PPO's step and the discriminator's
        reference_config="gail/cartpole.yaml",
    ),
    _actor_critic(
        "sac",
        "soft actor-critic: two critics and an actor rewarded for its entropy",
        "Haarnoja et al. 2018, Soft actor-critic algorithms and applications",
        SACHParams,
    ),
    _actor_critic(
        "td3",
        "deterministic actor that learns less often than its two critics",
        "Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
        TD3HParams,
        stochastic=False,
    ),
    _actor_critic(
        "redq",
        "SAC with an ensemble of critics and many updates per env step",
        "Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model",
        REDQHParams,
    ),
    AlgorithmSpec(
        name="rlpd",
        class_name="RLPD",
        summary="SAC with an ensemble of critics, and half of each batch from a dataset",
        paper="Ball et al. 2023, Efficient online reinforcement learning with offline data",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=RLPDHParams,
        stochastic=True,
        build="rl_training.algorithms.rlpd:build_rlpd",
        memory="rl_training.data.mixed_source:build_online_and_dataset",
        updates_until=actor_critic_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        updates_at_once=True,
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        reference_config="rlpd/pendulum.yaml",
    ),
    AlgorithmSpec(
        name="mbpo",
        class_name="MBPO",
        summary="SAC on short rollouts through an ensemble of learned dynamics models",
        paper="Janner et al. 2019, When to trust your model: model-based policy optimization",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=MBPOHParams,
        stochastic=True,
        build="rl_training.algorithms.mbpo:build_mbpo",
        memory="rl_training.data.mixed_source:build_mixed_source",
        updates_until=actor_critic_updates,
        policy_module="rl_training.algorithms.mbpo:mbpo_policy",
        updates_at_once=True,
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        callbacks="rl_training.runtime.model_training:model_training",
        reference_config="mbpo/pendulum.yaml",
    ),
    AlgorithmSpec(
        name="mopo",
        class_name="MOPO",
        summary="offline MBPO: rollout rewards are reduced by a penalty for model uncertainty",
        paper="Yu et al. 2020, MOPO: model-based offline policy optimization",
        loop="offline",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=MOPOHParams,
        stochastic=True,
        build="rl_training.algorithms.mopo:build_mopo",
        memory="rl_training.data.mixed_source:build_mixed_dataset",
        updates_until=offline_updates,
        policy_module="rl_training.algorithms.mbpo:mbpo_policy",
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        intervals=("rollout_refresh_interval", "model_train_frequency"),
        callbacks="rl_training.runtime.model_training:offline_model_training",
        reference_config="mopo/pendulum.yaml",
    ),
    AlgorithmSpec(
        name="dreamer",
        class_name="Dreamer",
        summary="actor and critic that learn from trajectories imagined by a recurrent world model",
        paper="Hafner et al. 2025, Mastering diverse control tasks through world models",
        loop="off_policy",
        actions=frozenset({"discrete"}),
        observations=frozenset({"image", "vector"}),
        hparams=DreamerHParams,
        stochastic=True,
        build="rl_training.algorithms.dreamer:build_dreamer",
        memory="rl_training.data.recurrent_replay_buffer:build_recurrent_replay_buffer",
        updates_until=dreamer_updates,
        policy_module="rl_training.algorithms.dreamer:dreamer_policy",
        min_updates_to_compile=50_000,  # the compiler unrolls the scan over a sequence and the imagination: minutes
        reference_config="dreamer/catch.yaml",
    ),
    _offline(
        "iql",
        "implicit Q-learning: offline, with values of the dataset's own actions only",
        "Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning",
        IQLHParams,
        frozenset({"box"}),
        per_member=frozenset({"learning_rate", "gamma", "tau", "expectile", "beta", "reward_scale", "reward_shift"}),
    ),
    AlgorithmSpec(
        name="iql_online",
        class_name="IQLOnline",
        summary="IQL that continues in an environment after training on a dataset",
        paper="Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=_ALL_OBSERVATIONS,
        hparams=IQLOnlineHParams,
        stochastic=True,
        build="rl_training.algorithms.iql:build_iql",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=iql_online_updates,
        policy_module="rl_training.learners.offline:offline_policy",
        updates_at_once=True,
        min_updates_to_compile=_ACTOR_CRITIC_UPDATES_TO_COMPILE,
        begin="rl_training.runtime.offline_to_online:begin_from_offline_run",
        reference_config="iql_online/pendulum.yaml",
    ),
    _offline(
        "bc",
        "behavioural cloning: imitates the actions of a dataset",
        "Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation",
        BCHParams,
        frozenset({"box", "discrete"}),
        per_member=frozenset({"learning_rate"}),
    ),
    _critics_on_dataset(
        "td3_bc",
        "TD3BC",
        "TD3 on a dataset, with a term that imitates its actions",
        "Fujimoto and Gu 2021, A minimalist approach to offline reinforcement learning",
        TD3BCHParams,
        build="rebrac:build_td3_bc",
    ),
    _critics_on_dataset(
        "rebrac",
        "ReBRAC",
        "TD3+BC that also penalizes the target, with deeper networks and normalized critics",
        "Tarasov et al. 2023, Revisiting the minimalist approach to offline reinforcement learning",
        ReBRACHParams,
        build="rebrac:build_rebrac",
        memory="build_memory_with_next_actions",
    ),
    _critics_on_dataset(
        "cql",
        "CQL",
        "SAC on a dataset, with low values for actions that it does not contain",
        "Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning",
        CQLHParams,
        build="cql:build_cql",
        stochastic=True,
    ),
)


@cache
def registry() -> dict[str, AlgorithmSpec]:
    """Return every row by name: the library's, then those of packages with the entry point `rl_training.algorithms`."""
    rows = {spec.name: spec for spec in ROWS}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            spec = _load_row(entry_point, rows)
        except ConfigError as error:  # the other algorithms are not affected
            _broken[entry_point.name] = str(error)
            log.warning("%s; this algorithm is left out", error)
        else:
            rows[spec.name] = spec
    return rows


_broken: dict[str, str] = {}  # entry points that could not be loaded, and why


def _load_row(entry_point: EntryPoint, rows: Mapping[str, AlgorithmSpec]) -> AlgorithmSpec:
    """Load the row of another package; raise `ConfigError` if it cannot be added to `rows`."""
    try:
        spec = entry_point.load()
    except Exception as error:  # code of another package: it may raise anything
        raise ConfigError(f"entry point {entry_point.value!r} cannot be loaded: {text_of(error)}") from error
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(
            f"entry point {entry_point.name!r} of group {ENTRY_POINT_GROUP!r} must be an AlgorithmSpec, "
            f"got {type(spec).__name__}"
        )
    if spec.name in rows:
        raise ConfigError(f"entry point {entry_point.value!r}: an algorithm named {spec.name!r} exists already")
    if spec.class_name in {row.class_name for row in rows.values()}:
        raise ConfigError(
            f"entry point {entry_point.value!r}: an algorithm with the class {spec.class_name} exists already"
        )
    return spec


def find_spec(name: str) -> AlgorithmSpec:
    rows = registry()
    if name not in rows and name in _broken:
        raise ConfigError(f"algo: {name!r} cannot be used: {_broken[name]}")
    if name not in rows:
        close = difflib.get_close_matches(name, rows, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(rows))}"
        raise ConfigError(f"algo: unknown algorithm {name!r}; {hint}")
    return rows[name]
