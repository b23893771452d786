"""The work of device_ours.py in JAX: PPO on a batched CartPole, one jitted iteration, `members` by vmap.

Written for this comparison: `lax.scan` over steps, GAE that bootstraps through time limits, a new permutation per
epoch and member, Adam with a clipped gradient.
"""

import itertools
import json
import sys
import time
from functools import partial
from typing import Any

STARTED = time.perf_counter()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

LIMIT, X_LIMIT, ANGLE_LIMIT = 500, 2.4, 12 * 2 * jnp.pi / 360


def cartpole(state: Any, action: Any) -> Any:
    x, x_dot, theta, theta_dot = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    push = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = push - 0.05 * theta_acc * cos / 1.1
    new = (x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc)
    return new, (jnp.abs(new[0]) > X_LIMIT) | (jnp.abs(new[2]) > ANGLE_LIMIT)


def layers(key: Any, sizes: tuple[int, ...], last_gain: float) -> list[Any]:
    gains = [jnp.sqrt(2.0)] * (len(sizes) - 2) + [last_gain]
    keys = jax.random.split(key, len(gains))
    make = [jax.nn.initializers.orthogonal(gain) for gain in gains]
    shapes = itertools.pairwise(sizes)
    return [(build(k, shape), jnp.zeros(shape[1])) for build, k, shape in zip(make, keys, shapes, strict=True)]


def forward(params: list[Any], x: Any) -> Any:
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


def start(key: Any, envs: int) -> Any:
    actor, critic, first, rest = jax.random.split(key, 4)
    params = {"actor": layers(actor, (4, 64, 64, 2), 0.01), "critic": layers(critic, (4, 64, 64, 1), 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = tuple(jax.random.uniform(first, (4, envs), minval=-0.05, maxval=0.05))
    return {"params": params, "mean": zeros, "square": zeros, "count": jnp.zeros(()), "env": state,
            "elapsed": jnp.zeros(envs, jnp.int32), "key": rest}  # fmt: skip


def collect_step(carry: Any, _: Any, params: Any) -> Any:
    state, elapsed, key = carry
    key, act_key, reset_key = jax.random.split(key, 3)
    obs = jnp.stack(state, 1)
    action = jax.random.categorical(act_key, forward(params["actor"], obs))
    new, terminated = cartpole(state, action)
    elapsed = elapsed + 1
    truncated = (elapsed >= LIMIT) & ~terminated
    ended = terminated | truncated
    fresh = jax.random.uniform(reset_key, (4, obs.shape[0]), minval=-0.05, maxval=0.05)
    after = tuple(jnp.where(ended, first, value) for first, value in zip(fresh, new, strict=True))
    row = (obs, action, jnp.ones(obs.shape[0]), jnp.stack(new, 1), terminated, ended)
    return (after, jnp.where(ended, 0, elapsed), key), row


def loss(params: Any, batch: Any) -> Any:
    obs, action, old_log_prob, advantage, target = batch
    log_probs = jax.nn.log_softmax(forward(params["actor"], obs))
    log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
    value = forward(params["critic"], obs)[:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(log_prob - old_log_prob)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(1).mean()
    return -gain + 0.5 * ((value - target) ** 2).mean() - 0.01 * entropy


def minibatch_step(carry: Any, batch: Any) -> Any:
    params, mean, square, count = carry
    value, gradient = jax.value_and_grad(loss)(params, batch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / (norm + 1e-6)), gradient)
    count = count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, square, gradient)
    scale, size = jnp.sqrt(1 - 0.999**count), 3e-4 / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, s: p - size * m / (jnp.sqrt(s) / scale + 1e-5), params, mean, square)
    return (params, mean, square, count), value


def iteration(state: Any, steps: int, minibatches: int, epochs: int) -> Any:
    params = state["params"]
    begin = (state["env"], state["elapsed"], state["key"])
    (env, elapsed, key), rows = jax.lax.scan(partial(collect_step, params=params), begin, None, steps)
    obs, action, reward, next_obs, terminated, ended = rows
    value, next_value = (forward(params["critic"], x)[..., 0] for x in (obs, next_obs))
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(forward(params["actor"], obs)), action[..., None], -1)[..., 0]
    error = reward + 0.99 * (~terminated) * next_value - value

    def backward(total: Any, row: Any) -> Any:
        error, ended = row
        total = error + 0.99 * 0.95 * (~ended) * total
        return total, total

    _, advantage = jax.lax.scan(backward, jnp.zeros_like(error[0]), (error, ended), reverse=True)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, action, log_prob, advantage, advantage + value))

    def epoch(carry: Any, key: Any) -> Any:
        order = jax.random.permutation(key, batch[1].shape[0])
        shuffled = jax.tree.map(lambda x: x[order].reshape(minibatches, -1, *x.shape[1:]), batch)
        return jax.lax.scan(minibatch_step, carry, shuffled)

    key, *keys = jax.random.split(key, epochs + 1)
    learner = (params, state["mean"], state["square"], state["count"])
    (params, mean, square, count), losses = jax.lax.scan(epoch, learner, jnp.stack(keys))
    new = {"params": params, "mean": mean, "square": square, "count": count, "env": env, "elapsed": elapsed, "key": key}
    return new, (losses.mean(), ended.sum())


def main(setting: dict[str, Any]) -> dict[str, Any]:
    members = setting.get("members", 1)
    state = jax.vmap(partial(start, envs=setting["envs"]))(jax.random.split(jax.random.key(0), members))
    one = partial(iteration, steps=setting["steps"], minibatches=setting["minibatches"], epochs=setting["epochs"])
    run = jax.jit(jax.vmap(one), donate_argnums=0)
    state, metrics = run(state)
    jax.block_until_ready(metrics)
    ready_s = time.perf_counter() - STARTED
    for _ in range(2):
        state, metrics = run(state)
    jax.block_until_ready(metrics)
    started = time.perf_counter()
    for _ in range(setting["iterations"]):
        state, metrics = run(state)
    jax.block_until_ready(metrics)
    seconds = time.perf_counter() - started
    rows = setting["envs"] * setting["steps"] * members
    return {
        "steps_per_s": rows * setting["iterations"] / seconds,
        "ms_per_iteration": 1e3 * seconds / setting["iterations"],
        "ready_s": ready_s,
        "return_mean": rows / max(1.0, float(metrics[1].sum())),
        "device_name": str(jax.devices()[0]),
        "versions": {"jax": jax.__version__, "python": sys.version.split()[0]},
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
