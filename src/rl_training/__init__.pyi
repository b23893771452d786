"""Reinforcement-learning training: one config, one CLI, one API, exact resume."""

# Written by `python -m rl_training.api.stubs` from the registry and api/exports.py.

from typing import ClassVar

from rl_training.api.algorithms import ManagedAlgorithm as ManagedAlgorithm
from rl_training.core.version import __version__ as __version__
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer as RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer as ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer as RolloutBuffer
from rl_training.datasets.transition_dataset import TransitionDataset as TransitionDataset
from rl_training.experiment.config import TrainConfig as TrainConfig
from rl_training.experiment.config_files import load_config as load_config
from rl_training.experiment.population import PopulationConfig as PopulationConfig
from rl_training.launching.populations import PopulationResult as PopulationResult
from rl_training.launching.populations import resume_population as resume_population
from rl_training.launching.populations import train_population as train_population
from rl_training.runtime.callbacks import Callback as Callback
from rl_training.runtime.dataset_loading import load_transition_dataset as load_transition_dataset
from rl_training.runtime.evaluation import EvalEpisode as EvalEpisode
from rl_training.runtime.result import TrainResult as TrainResult
from rl_training.runtime.run import Run as Run
from rl_training.runtime.setup import RunOptions as RunOptions
from rl_training.runtime.stopping import EarlyStopping as EarlyStopping
from rl_training.runtime.stopping import StopOnPlateau as StopOnPlateau
from rl_training.runtime.trainer import resume as resume
from rl_training.runtime.trainer import train as train

class DQN(ManagedAlgorithm):
    """Deep Q-learning with a replay buffer and a target network.

    Mnih et al. 2015, Human-level control through deep reinforcement learning.

    Example:

        agent = DQN("configs/dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "dqn"

class DoubleDQN(ManagedAlgorithm):
    """DQN whose online network selects the action in the target.

    van Hasselt et al. 2016, Deep reinforcement learning with double Q-learning.

    Example:

        agent = DoubleDQN("configs/double_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "double_dqn"

class DuelingDQN(ManagedAlgorithm):
    """Double DQN with separate streams for state value and action advantages.

    Wang et al. 2016, Dueling network architectures for deep reinforcement learning.

    Example:

        agent = DuelingDQN("configs/dueling_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "dueling_dqn"

class NoisyDQN(ManagedAlgorithm):
    """DQN that explores by learned noise on its weights.

    Fortunato et al. 2018, Noisy networks for exploration.

    Example:

        agent = NoisyDQN("configs/noisy_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "noisy_dqn"

class PrioritizedDQN(ManagedAlgorithm):
    """DQN that samples transitions by their TD error.

    Schaul et al. 2016, Prioritized experience replay.

    Example:

        agent = PrioritizedDQN("configs/prioritized_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "prioritized_dqn"

class NStepDQN(ManagedAlgorithm):
    """DQN with three-step returns.

    Sutton 1988, Learning to predict by the methods of temporal differences.

    Example:

        agent = NStepDQN("configs/n_step_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "n_step_dqn"

class C51DQN(ManagedAlgorithm):
    """Distributional DQN: probabilities of fixed returns (atoms).

    Bellemare et al. 2017, A distributional perspective on reinforcement learning.

    Example:

        agent = C51DQN("configs/c51_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "c51_dqn"

class RainbowDQN(ManagedAlgorithm):
    """C51 with double, dueling, noisy, prioritized and three-step learning.

    Hessel et al. 2018, Rainbow: combining improvements in deep reinforcement learning.

    Example:

        agent = RainbowDQN("configs/rainbow_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "rainbow_dqn"

class BBF(ManagedAlgorithm):
    """C51 for few env steps: many updates, resets, annealed returns, a wide residual network.

    Schwarzer et al. 2023, Bigger, better, faster: human-level Atari with human-level efficiency.

    Example:

        agent = BBF("configs/bbf/catch.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "bbf"

class QRDQN(ManagedAlgorithm):
    """Distributional DQN: quantiles of the return, by quantile regression.

    Dabney et al. 2018, Distributional reinforcement learning with quantile regression.

    Example:

        agent = QRDQN("configs/qr_dqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "qr_dqn"

class IQN(ManagedAlgorithm):
    """Distributional DQN: the quantile function of the return, at random fractions.

    Dabney et al. 2018, Implicit quantile networks for distributional reinforcement learning.

    Example:

        agent = IQN("configs/iqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "iqn"

class FQF(ManagedAlgorithm):
    """IQN with fractions proposed by a network.

    Yang et al. 2019, Fully parameterized quantile function for distributional reinforcement learning.

    Example:

        agent = FQF("configs/fqf/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "fqf"

class PPO(ManagedAlgorithm):
    """Proximal policy optimization: clipped policy gradient on rollouts.

    Schulman et al. 2017, Proximal policy optimization algorithms.

    Example:

        agent = PPO("configs/ppo/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "ppo"

class RecurrentPPO(ManagedAlgorithm):
    """PPO with an LSTM or GRU, for tasks that need memory.

    Schulman et al. 2017, Proximal policy optimization algorithms.

    Example:

        agent = RecurrentPPO("configs/recurrent_ppo/cartpole_no_velocity.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "recurrent_ppo"

class PQN(ManagedAlgorithm):
    """Q-learning on rollouts of many environments, without replay and target network.

    Gallici et al. 2025, Simplifying deep temporal difference learning.

    Example:

        agent = PQN("configs/pqn/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "pqn"

class GAIL(ManagedAlgorithm):
    """Imitation: PPO rewarded by a discriminator between expert and policy.

    Ho and Ermon 2016, Generative adversarial imitation learning.

    Example:

        agent = GAIL("configs/gail/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "gail"

class SAC(ManagedAlgorithm):
    """Soft actor-critic: two critics and an actor rewarded for its entropy.

    Haarnoja et al. 2018, Soft actor-critic algorithms and applications.

    Example:

        agent = SAC("configs/sac/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "sac"

class TD3(ManagedAlgorithm):
    """Deterministic actor that learns less often than its two critics.

    Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods.

    Example:

        agent = TD3("configs/td3/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "td3"

class REDQ(ManagedAlgorithm):
    """SAC with an ensemble of critics and many updates per env step.

    Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model.

    Example:

        agent = REDQ("configs/redq/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "redq"

class TQC(ManagedAlgorithm):
    """SAC with critics of quantiles; targets leave out the largest ones.

    Kuznetsov et al. 2020, Controlling overestimation bias with truncated mixture of continuous distributional
    quantile critics.

    Example:

        agent = TQC("configs/tqc/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "tqc"

class CrossQ(ManagedAlgorithm):
    """SAC without target networks, whose wide critics have batch normalization.

    Bhatt et al. 2024, CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
    simplicity.

    Example:

        agent = CrossQ("configs/crossq/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "crossq"

class SimBaV2(ManagedAlgorithm):
    """SAC with hyperspherical networks, categorical critics and running normalization.

    Lee et al. 2025, Hyperspherical normalization for scalable deep reinforcement learning.

    Example:

        agent = SimBaV2("configs/simbav2/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "simbav2"

class DiscreteSAC(ManagedAlgorithm):
    """SAC for discrete actions: a stochastic policy that learns from replay.

    Christodoulou 2019, Soft actor-critic for discrete action settings.

    Example:

        agent = DiscreteSAC("configs/discrete_sac/cartpole.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "discrete_sac"

class RLPD(ManagedAlgorithm):
    """SAC with an ensemble of critics, and half of each batch from a dataset.

    Ball et al. 2023, Efficient online reinforcement learning with offline data.

    Example:

        agent = RLPD("configs/rlpd/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "rlpd"

class MBPO(ManagedAlgorithm):
    """SAC on short rollouts through an ensemble of learned dynamics models.

    Janner et al. 2019, When to trust your model: model-based policy optimization.

    Example:

        agent = MBPO("configs/mbpo/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "mbpo"

class MOPO(ManagedAlgorithm):
    """Offline MBPO: rollout rewards are reduced by a penalty for model uncertainty.

    Yu et al. 2020, MOPO: model-based offline policy optimization.

    Example:

        agent = MOPO("configs/mopo/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "mopo"

class Dreamer(ManagedAlgorithm):
    """Actor and critic that learn from trajectories imagined by a recurrent world model.

    Hafner et al. 2025, Mastering diverse control tasks through world models.

    Example:

        agent = Dreamer("configs/dreamer/catch.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "dreamer"

class IQL(ManagedAlgorithm):
    """Implicit Q-learning: offline, with values of the dataset's own actions only.

    Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning.

    Example:

        agent = IQL("configs/iql/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "iql"

class IQLOnline(ManagedAlgorithm):
    """IQL that continues in an environment after training on a dataset.

    Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning.

    Example:

        agent = IQLOnline("configs/iql_online/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "iql_online"

class BC(ManagedAlgorithm):
    """Behavioural cloning: imitates the actions of a dataset.

    Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation.

    Example:

        agent = BC("configs/bc/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "bc"

class TD3BC(ManagedAlgorithm):
    """TD3 on a dataset, with a term that imitates its actions.

    Fujimoto and Gu 2021, A minimalist approach to offline reinforcement learning.

    Example:

        agent = TD3BC("configs/td3_bc/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "td3_bc"

class ReBRAC(ManagedAlgorithm):
    """TD3+BC that also penalizes the target, with deeper networks and normalized critics.

    Tarasov et al. 2023, Revisiting the minimalist approach to offline reinforcement learning.

    Example:

        agent = ReBRAC("configs/rebrac/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "rebrac"

class CQL(ManagedAlgorithm):
    """SAC on a dataset, with low values for actions that it does not contain.

    Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning.

    Example:

        agent = CQL("configs/cql/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "cql"

class CalQL(ManagedAlgorithm):
    """CQL that continues in an environment, with values that the returns of the data bound below.

    Nakamoto et al. 2023, Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning.

    Example:

        agent = CalQL("configs/cal_ql/pendulum.yaml")
        agent.learn()
        agent.evaluate()
    """

    algo_name: ClassVar[str] = "cal_ql"

def train_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train DQN or another algorithm of its family from a config, in a new run folder."""

def train_double_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train DoubleDQN from a config, in a new run folder."""

def train_dueling_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train DuelingDQN from a config, in a new run folder."""

def train_noisy_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train NoisyDQN from a config, in a new run folder."""

def train_prioritized_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train PrioritizedDQN from a config, in a new run folder."""

def train_n_step_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train NStepDQN from a config, in a new run folder."""

def train_c51_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train C51DQN from a config, in a new run folder."""

def train_rainbow_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train RainbowDQN from a config, in a new run folder."""

def train_bbf(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train BBF from a config, in a new run folder."""

def train_qr_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train QRDQN from a config, in a new run folder."""

def train_iqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train IQN from a config, in a new run folder."""

def train_fqf(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train FQF from a config, in a new run folder."""

def train_ppo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train PPO from a config, in a new run folder."""

def train_recurrent_ppo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train RecurrentPPO from a config, in a new run folder."""

def train_pqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train PQN from a config, in a new run folder."""

def train_gail(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train GAIL from a config, in a new run folder."""

def train_sac(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train SAC or another algorithm of its family from a config, in a new run folder."""

def train_td3(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train TD3 from a config, in a new run folder."""

def train_redq(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train REDQ from a config, in a new run folder."""

def train_tqc(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train TQC from a config, in a new run folder."""

def train_crossq(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train CrossQ from a config, in a new run folder."""

def train_simbav2(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train SimBaV2 from a config, in a new run folder."""

def train_discrete_sac(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train DiscreteSAC from a config, in a new run folder."""

def train_rlpd(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train RLPD from a config, in a new run folder."""

def train_mbpo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train MBPO from a config, in a new run folder."""

def train_mopo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train MOPO from a config, in a new run folder."""

def train_dreamer(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train Dreamer from a config, in a new run folder."""

def train_iql(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train IQL from a config, in a new run folder."""

def train_iql_online(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train IQLOnline from a config, in a new run folder."""

def train_bc(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train BC from a config, in a new run folder."""

def train_td3_bc(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train TD3BC from a config, in a new run folder."""

def train_rebrac(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train ReBRAC from a config, in a new run folder."""

def train_cql(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train CQL from a config, in a new run folder."""

def train_cal_ql(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train CalQL from a config, in a new run folder."""
