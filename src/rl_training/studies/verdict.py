"""Which config of a study is best on fresh seeds, and whether it is clearly better than the given one."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl_training.core.counted import counted
from rl_training.results.statistics import Interval, Summary, interquartile_mean, probability_of_improvement, summarize


@dataclass(frozen=True)
class Candidate:
    """A trial that was run again on fresh seeds. Trial 0 is the given config."""

    number: int
    tuned: float | None  # its value while tuning; None: it was pruned, or a run failed
    scores: Sequence[float]  # of the fresh seeds
    failure: str = ""  # of a run on a fresh seed

    @property
    def name(self) -> str:
        return f"trial {self.number}" if self.number else "given config"

    @property
    def summary(self) -> Summary:
        return summarize(self.scores)


@dataclass(frozen=True)
class Verdict:
    """The best candidate on fresh seeds, compared with the given config."""

    best: Candidate
    given: Candidate
    better: tuple[float, Interval] | None  # the probability that a run of the best scores higher than one of the given
    clear: bool

    @property
    def sentence(self) -> str:
        if self.given.failure:
            return f"the given config cannot be compared: {self.given.failure}"
        if self.best == self.given:
            return "not clearly better: no trial beats the given config on fresh seeds; more trials would tell"
        if self.clear:
            return "clearly better than the given config"
        return "not clearly better than the given config: more trials or seeds would tell"

    def describe(self, seeds: int) -> list[str]:
        """Return the scores of the best and of the given config, one line each. `seeds`: of a trial."""
        candidates = [self.best] if self.best == self.given else [self.best, self.given]
        lines = [_describe(candidate, seeds, best=candidate is self.best) for candidate in candidates]
        if self.better is not None:
            probability, (low, high) = self.better
            lines[-1] += f"    P(better) {probability:.2f} [{low:.2f}, {high:.2f}]"
        return lines


def decide(candidates: Sequence[Candidate], *, resamples: int = 2_000) -> Verdict | None:
    """Return the verdict over the given config (the first) and others; None if no candidate ran on all fresh seeds.

    The best one was chosen for its score, among several: the interval of its probability is widened for that.
    """
    given, *others = candidates
    sound = [candidate for candidate in candidates if not candidate.failure]
    if not sound:
        return None
    # Of equal ones the first, which is the given config.
    best = max(sound, key=lambda candidate: interquartile_mean(candidate.scores))
    if best == given or given.failure:
        return Verdict(best, given, None, clear=False)
    better = probability_of_improvement([best.scores], [given.scores], resamples, comparisons=len(others))
    return Verdict(best, given, better, clear=better[1][0] > 0.5)


def _describe(candidate: Candidate, seeds: int, *, best: bool) -> str:
    name = f"best {candidate.name}" if best and candidate.number else candidate.name
    tuned = "-" if candidate.tuned is None else f"{candidate.tuned:,.1f} ({counted(seeds, 'seed')})"
    if candidate.failure:
        return f"{name:<15}  while tuning {tuned}    on fresh seeds -"
    summary = candidate.summary
    low, high = summary.interval
    fresh = f"{summary.iqm:,.1f} [{low:,.1f}, {high:,.1f}] ({summary.count})"
    return f"{name:<15}  while tuning {tuned}    on fresh seeds {fresh}"
