"""The DQN family of Tianshou: DQN, C51, Rainbow, QR-DQN, IQN and FQF; `Setting.algo` names one.

`hidden_sizes` are laid out as in our networks for vectors: with IQN and FQF all come before the fractions, with Rainbow
the last one is the width of each stream. `trunk_sizes`, `linear_features`, `head_sizes` and `noisy_trunk` describe the
networks of Tianshou's own examples. Its distributional heads always select the next action with the online network, as
our `double_q` does.
"""

from typing import Any

from harness import Setting, TrainingEnvs, discrete, main
from tianshou.algorithm import C51, DQN, FQF, IQN, QRDQN, Algorithm, RainbowDQN
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.fqf import FQFPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, OptimizerFactory, RMSpropOptimizerFactory
from tianshou.data import PrioritizedVectorReplayBuffer, ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import (
    FractionProposalNetwork,
    FullQuantileFunction,
    ImplicitQuantileNetwork,
    NoisyLinear,
)
from tianshou_interface import OffPolicyLearner


class Family:
    """Builds the policy and the algorithm of one head: a method per `Setting.algo`."""

    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        env, self.hparams = training.envs[0], setting.hparams
        self.spaces = {"action_space": env.action_space, "observation_space": env.observation_space}
        self.obs_shape, self.num_actions = env.observation_space.shape, int(discrete(env.action_space).n)
        self.hidden_sizes = self.hparams.get("hidden_sizes", ())
        self.shared = {
            "optim": AdamOptimizerFactory(lr=self.hparams["learning_rate"]),
            "gamma": self.hparams["gamma"],
            "n_step_return_horizon": self.hparams.get("n_step", 1),
            "target_update_freq": self.hparams["target_update_interval"],  # counted in updates here
        }

    def dqn(self) -> Algorithm:
        policy = DiscreteQLearningPolicy(model=self._net(), **self.spaces)
        return self._clipped(DQN, policy=policy, is_double=False, huber_loss_delta=1.0)

    def c51_dqn(self) -> Algorithm:
        return self._clipped(C51, policy=self._c51_policy(self._net(num_atoms=self.hparams["num_atoms"], softmax=True)))

    def rainbow_dqn(self) -> Algorithm:
        noisy_sigma = self.hparams["noisy_sigma"]

        def noisy(width_in: int, width_out: int) -> NoisyLinear:
            return NoisyLinear(width_in, width_out, noisy_sigma)

        stream = {"hidden_sizes": self.hparams.get("head_sizes", self.hidden_sizes[-1:]), "linear_layer": noisy}
        noisy_trunk = {"linear_layer": noisy} if self.hparams.get("noisy_trunk", True) else {}  # ours is, for vectors
        model = Net(
            state_shape=self.obs_shape,
            action_shape=self.num_actions,
            hidden_sizes=self.hparams.get("trunk_sizes", self.hidden_sizes[:-1]),
            **noisy_trunk,
            num_atoms=self.hparams["num_atoms"],
            softmax=True,
            dueling_param=(stream, stream),
        )
        return self._clipped(RainbowDQN, policy=self._c51_policy(model))

    def qr_dqn(self) -> Algorithm:
        num_quantiles = self.hparams["num_quantiles"]
        policy = QRDQNPolicy(model=self._net(num_atoms=num_quantiles), **self.spaces)
        return self._clipped(QRDQN, policy=policy, num_quantiles=num_quantiles)

    def iqn(self) -> Algorithm:
        policy = IQNPolicy(
            model=self._fraction_network(ImplicitQuantileNetwork),
            sample_size=self.hparams["num_quantiles"],
            online_sample_size=self.hparams["num_tau_samples"],
            target_sample_size=self.hparams["num_tau_samples"],
            **self.spaces,
        )
        return self._clipped(IQN, policy=policy)

    def fqf(self) -> Algorithm:
        model, num_quantiles = self._fraction_network(FullQuantileFunction), self.hparams["num_quantiles"]
        policy = FQFPolicy(
            model=model, fraction_model=FractionProposalNetwork(num_quantiles, model.input_dim), **self.spaces
        )
        return self._clipped(
            FQF,
            policy=policy,
            fraction_optim=RMSpropOptimizerFactory(lr=self.hparams["fraction_learning_rate"]),
            num_fractions=num_quantiles,
            ent_coef=self.hparams["entropy_coef"],
        )

    def _net(self, **kwargs: Any) -> Net:
        sizes = {"state_shape": self.obs_shape, "action_shape": self.num_actions, "hidden_sizes": self.hidden_sizes}
        return Net(**sizes, **kwargs)

    def _c51_policy(self, model: Net) -> C51Policy:
        support = {name: self.hparams[name] for name in ("num_atoms", "v_min", "v_max")}
        return C51Policy(model=model, **support, **self.spaces)

    def _fraction_network(self, network: type[ImplicitQuantileNetwork]) -> ImplicitQuantileNetwork:
        # `linear_features` is the size of a layer after the trunk, without an activation.
        trunk = Net(
            state_shape=self.obs_shape,
            action_shape=self.hparams.get("linear_features", 0),
            hidden_sizes=self.hparams.get("trunk_sizes", self.hidden_sizes),
        )
        return network(
            preprocess_net=trunk,
            action_shape=self.num_actions,
            hidden_sizes=self.hparams.get("head_sizes", ()),
            num_cosines=self.hparams["embedding_dim"],
        )

    def _clipped(self, algorithm: type[Algorithm], **kwargs: Any) -> Algorithm:
        """Build the algorithm with gradient clipping, which Tianshou's optimizer supports but these do not pass on."""
        max_grad_norm = self.hparams.get("max_grad_norm")  # None: no clipping

        class Clipped(algorithm):  # type: ignore[misc]
            def _create_policy_optimizer(self, optim: OptimizerFactory) -> Algorithm.Optimizer:
                return self._create_optimizer(self.policy.model, optim, max_grad_norm=max_grad_norm)

        return Clipped(**kwargs, **self.shared)


class TianshouLearner(OffPolicyLearner):
    def build(self, training: TrainingEnvs) -> Algorithm:
        return getattr(Family(self.setting, training), self.setting.algo_name)()

    @property
    def updates_per_step(self) -> float:
        return float(self.setting.hparams["gradient_steps"] / self.setting.hparams["train_frequency"])

    @property
    def prioritized(self) -> bool:
        return bool(self.setting.hparams.get("prioritized", False))

    def make_buffer(self) -> ReplayBuffer:
        hparams = self.setting.hparams
        if not self.prioritized:
            return super().make_buffer()
        return PrioritizedVectorReplayBuffer(
            hparams["buffer_capacity"],
            self.setting.num_envs,
            alpha=hparams["prioritized_alpha"],
            beta=hparams["prioritized_beta_start"],
            weight_norm=True,
        )

    def set_schedules(self, epoch: int, step_after_start: int) -> None:
        """Move epsilon, and beta of prioritized replay, linearly over the part of the run in `schedule_steps`."""
        hparams, steps = self.setting.hparams, self.setting.steps
        step = step_after_start + hparams["learning_starts"]
        begin, end = hparams.get("schedule_steps") or (0, hparams["exploration_fraction"] * steps)
        self.policy.set_eps_training(ramp(step, (begin, end), hparams["epsilon_start"], hparams["epsilon_end"]))
        if self.prioritized:
            span = hparams.get("schedule_steps") or (0, steps)
            first, last = hparams["prioritized_beta_start"], hparams["prioritized_beta_end"]
            self.buffer.set_beta(ramp(step, span, first, last))

    def num_updates(self) -> int:
        return int(self.algorithm._iter)


def ramp(step: int, span: tuple[float, float], first: float, last: float) -> float:
    begin, end = span
    return first + min(1.0, max(0.0, (step - begin) / max(end - begin, 1))) * (last - first)


if __name__ == "__main__":
    main(TianshouLearner, ["tianshou", "torch", "gymnasium", "numpy"])
