"""Builders of peers that several families use."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.engine import Peer
from benchmarks.launch import D3RLPY, SB3_ACTOR_CRITIC, TIANSHOU, Contender
from rl_training import load_config


def tianshou(algo: str, hparams: dict[str, Any], *, name: str = "tianshou", contender: Contender = TIANSHOU) -> Peer:
    """Build a Tianshou peer. All of its examples collect one step from each environment at a time."""
    envs = hparams["train_frequency"]
    return Peer(contender=replace(contender, name=name), hparams=hparams, num_envs=envs, algo=algo)


def sb3_actor_critic(algo: str, hparams: dict[str, Any], *, name: str = "sb3") -> Peer:
    """Build a stable-baselines3 peer, SAC or TD3, or one of sb3-contrib, TQC or CrossQ."""
    return Peer(contender=replace(SB3_ACTOR_CRITIC, name=name), hparams=hparams, algo=algo)


def d3rlpy(config: str, changes: Mapping[str, Any] | None = None) -> Peer:
    """Build d3rlpy's algorithm of the same name with the hyperparameters of one of our configs, or changes to them."""
    loaded = load_config(config)
    places = {name for name in loaded.hparams.model_dump() if name.startswith("dataset_")}
    hparams = loaded.hparams.model_dump(mode="json", exclude={*places, "held_out"})
    return Peer(contender=D3RLPY, hparams={**hparams, **(changes or {})}, algo=loaded.algo)
