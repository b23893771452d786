"""PPO of Tianshou, for discrete actions."""

import numpy as np
import torch
from harness import Learner, Setting, TrainingEnvs, discrete, main
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn


def make_orthogonal(network: nn.Module, output_gain: float) -> None:
    """Initialise hidden layers with gain sqrt(2) and the last one with `output_gain`, as stable-baselines3 does."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, output_gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)


class TianshouLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        np.random.seed(setting.seed)
        torch.manual_seed(setting.seed)
        self.setting = setting
        hparams, env = setting.hparams, training.envs[0]

        def trunk() -> Net:
            return Net(
                state_shape=env.observation_space.shape, hidden_sizes=hparams["hidden_sizes"], activation=nn.Tanh
            )

        actor = DiscreteActor(
            preprocess_net=trunk(), action_shape=int(discrete(env.action_space).n), softmax_output=False
        )
        critic = DiscreteCritic(preprocess_net=trunk())
        make_orthogonal(actor, output_gain=0.01)
        make_orthogonal(critic, output_gain=1.0)
        self.policy = DiscreteActorPolicy(
            actor=actor,
            action_space=env.action_space,
            observation_space=env.observation_space,
            deterministic_eval=True,
        )
        self.algorithm = PPO(
            policy=self.policy,
            critic=critic,
            optim=AdamOptimizerFactory(lr=hparams["learning_rate"], eps=1e-5),
            eps_clip=hparams["clip_coef"],
            vf_coef=hparams["vf_coef"],
            ent_coef=hparams["ent_coef"],
            max_grad_norm=hparams["max_grad_norm"],
            gae_lambda=hparams["gae_lambda"],
            gamma=hparams["gamma"],
            max_batchsize=setting.rollout,  # values of the whole rollout in one batch, the fastest way
        )
        self.updates = 0
        self.algorithm.optim._optim.register_step_post_hook(self._count_update)
        envs = DummyVectorEnv(training.factories())
        envs.seed(setting.seed)
        buffer = VectorReplayBuffer(setting.rollout, setting.num_envs)
        self.collector = Collector(self.policy, envs, buffer)

    def learn(self) -> None:
        self.collector.reset()
        self.algorithm.run_training(
            OnPolicyTrainerParams(
                max_epochs=1,
                epoch_num_steps=self.setting.steps,
                training_collector=self.collector,
                collection_step_num_env_steps=self.setting.rollout,
                update_step_num_repetitions=self.setting.hparams["update_epochs"],
                batch_size=self.setting.hparams["minibatch_size"],
                show_progress=False,
                verbose=False,
            )
        )

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            actions: np.ndarray = self.policy(Batch(obs=obs, info=Batch())).act.numpy()
        return actions

    def num_updates(self) -> int:
        return self.updates

    def _count_update(self, *_: object) -> None:
        self.updates += 1


if __name__ == "__main__":
    main(TianshouLearner, ["tianshou", "torch", "gymnasium", "numpy"])
