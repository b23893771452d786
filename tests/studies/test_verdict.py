"""The verdict of a study: the best on fresh seeds, and whether it is clearly better than the given config."""

import numpy as np

from rl_training.studies.verdict import Candidate, decide


def make_candidates(*means: float, spread: float = 0.0) -> list[Candidate]:
    """Return candidates of ten scores around each mean; the first is the given config."""
    offsets = np.linspace(-spread, spread, 10)
    return [Candidate(number, mean, (mean + offsets).tolist()) for number, mean in enumerate(means)]


def test_a_config_that_always_scores_higher_is_clearly_better() -> None:
    verdict = decide(make_candidates(100.0, 90.0, 120.0, spread=5.0))
    assert verdict is not None
    assert (verdict.best.number, verdict.clear) == (2, True)
    assert verdict.better == (1.0, (1.0, 1.0))
    assert verdict.sentence == "clearly better than the given config"


def test_equal_scores_leave_the_given_config_the_best() -> None:
    verdict = decide(make_candidates(500.0, 500.0, 500.0))
    assert verdict is not None
    assert (verdict.best.number, verdict.clear) == (0, False)
    assert verdict.sentence.startswith("not clearly better")


def test_the_lines_name_scores_while_tuning_and_on_fresh_seeds() -> None:
    verdict = decide(make_candidates(100.0, 101.0, spread=5.0))
    assert verdict is not None
    best, given = verdict.describe(seeds=3)
    assert best.startswith("best trial 1     while tuning 101.0 (3 seeds)    on fresh seeds 101.0 [")
    assert given.startswith("given config     while tuning 100.0 (3 seeds)    on fresh seeds 100.0 [")
    assert "    P(better) 0.55 [" in given  # 55 of 100 pairs
    assert verdict.sentence == "not clearly better than the given config: more trials or seeds would tell"


def test_a_candidate_with_a_failed_seed_is_left_out() -> None:
    given, first = make_candidates(100.0, 150.0)
    verdict = decide([given, first, Candidate(2, 400.0, [400.0] * 9, failure="seed2004: weights are not finite")])
    assert verdict is not None
    assert verdict.best == first


def test_a_given_config_that_fails_is_named() -> None:
    verdict = decide(
        [Candidate(0, None, [], failure="seed2000: weights are not finite"), *make_candidates(1.0, 2.0)[1:]]
    )
    assert verdict is not None
    assert (verdict.best.number, verdict.better) == (1, None)
    assert verdict.sentence == "the given config cannot be compared: seed2000: weights are not finite"


def test_no_verdict_if_all_fail() -> None:
    assert decide([Candidate(0, None, [], failure="seed2000: out of memory")]) is None


def test_among_equal_configs_with_noisy_seeds_none_is_clearly_better() -> None:
    """Thirty equal configs are tuned on three seeds; the best three and the given one run on ten fresh seeds."""
    rng = np.random.default_rng(0)
    unclear = 0
    for repetition in range(40):
        ceiling = 400.0 if repetition % 2 else np.inf  # some tasks have a largest return
        tuned = np.minimum(ceiling, rng.normal(400.0, 50.0, (30, 3))).mean(1)
        chosen = [0, *(number for number in np.argsort(-tuned) if number)][:4]
        fresh = np.minimum(ceiling, rng.normal(400.0, 50.0, (4, 10))).tolist()
        candidates = [Candidate(int(n), float(tuned[n]), scores) for n, scores in zip(chosen, fresh, strict=True)]
        verdict = decide(candidates, resamples=1_000)
        unclear += verdict is not None and "not clearly better" in verdict.sentence
    assert unclear / 40 >= 0.9
