"""Random streams depend only on the seed, their name and indices."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_training.core.seeding import Streams, generator_state, set_generator_state

NAMES = ("env", "action", "shuffle", "buffer", "init", "noise", "model", "eval", "eval_action")


def test_a_stream_does_not_depend_on_when_or_in_which_order_it_is_created() -> None:
    streams = Streams(7)
    first = streams.numpy("buffer").random(5)
    for name in reversed(NAMES):
        streams.numpy(name).random(100)
    assert np.array_equal(streams.numpy("buffer").random(5), first)
    assert np.array_equal(Streams(7).numpy("buffer").random(5), first)


def test_streams_differ_by_name_index_and_seed() -> None:
    integers = [Streams(seed).integer(name) for seed in (0, 1) for name in NAMES]
    integers += [
        Streams(seed).episode_seed(env, episode) for seed in (0, 1) for env in range(5) for episode in range(5)
    ]
    integers += Streams(0).eval_seeds(20)
    assert len(set(integers)) == len(integers)


def test_seeds_never_change() -> None:
    # Literal values: another derivation would silently change every published score and break resumes of older runs.
    streams = Streams(0)
    assert [streams.integer("init"), streams.episode_seed(0, 0), streams.episode_seed(2, 1)] == [
        949240827,
        2105868151,
        718778680,
    ]
    assert streams.eval_seeds(2) == [1003232718, 519544428]


@given(seed=st.integers(0, 2**128), env=st.integers(0, 10_000), episode=st.integers(0, 10**9))
def test_every_env_accepts_every_seed(seed: int, env: int, episode: int) -> None:
    value = Streams(seed).episode_seed(env, episode)
    assert type(value) is int
    assert 0 <= value < 2**31


def test_longer_evaluations_start_with_the_same_seeds() -> None:
    assert Streams(3).eval_seeds(20)[:5] == Streams(3).eval_seeds(5)


def test_the_streams_that_were_asked_for_are_remembered_with_their_seeds() -> None:
    streams = Streams(0)
    assert streams.seeds() == {name: Streams(0).integer(name) for name in ("env", "eval")}  # of the episodes
    streams.numpy("buffer")
    streams.integer("init", 1)
    streams.numpy("noise")
    assert list(streams.seeds()) == ["buffer", "env", "eval", "init", "noise"]
    assert streams.seeds()["init"] == 949240827
    assert streams == Streams(0)
    assert list(Streams(0).seeds()) == ["env", "eval"]


def test_a_generators_state_survives_json() -> None:
    generator, other = Streams(1).numpy("action"), Streams(2).numpy("action")
    generator.integers(3, size=7, dtype=np.int32)  # the generator keeps half of a draw for the next call
    set_generator_state(other, json.loads(json.dumps(generator_state(generator))))
    assert np.array_equal(other.integers(3, size=50, dtype=np.int32), generator.integers(3, size=50, dtype=np.int32))
    assert np.array_equal(other.random(50), generator.random(50))
