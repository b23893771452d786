"""Check whether the environments of a run repeat their episodes: before training, and at the end of some episodes."""

import logging

import torch

from rl_training.acceleration.determinism import resume_claim
from rl_training.core.seeding import Streams
from rl_training.envs.resumable import ReplayCheck, check_replay, repeats_episode
from rl_training.experiment.run_dir import correct_resume_claim
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.episodes import MAX_EPISODE_STEPS
from rl_training.runtime.run import Run

log = logging.getLogger("rl_training")


def claim_of(run: Run) -> str:
    """Return how exactly a resumed run continues, for the metadata of the run."""
    device, deterministic = torch.device(run.config.device), run.config.deterministic is True
    return resume_claim(run.collector.exactness, device=device, deterministic=deterministic)


def check_envs(run: Run, *others: Run) -> None:
    """Sample whether seed and actions repeat the episodes of a new run, and note it in the collector.

    `others`: new runs with the same environment, for which one check is enough. A signal ends the check.
    """
    collectors = [one.collector for one in (run, *others) if isinstance(one.collector, Collector)]
    if not collectors or run.env_factory is None:
        return
    collector = collectors[0]
    if collector.envs.cannot_repeat:
        collector.replayable, collector.evidence = False, collector.envs.cannot_repeat
    else:
        seed = Streams(run.config.seed).integer("replay_check")  # not of the run's own streams, which are recorded
        check = check_replay(run.env_factory, seed, should_stop=lambda: bool(run.stop_reason))
        collector.replayable, collector.evidence = check.repeats, _describe(check)
        if check.unlimited:
            log.warning(
                "%s has no time limit, and no episode ended in the replay check: set max_episode_steps if episodes "
                "may never end (evaluation episodes are cut at %s steps)",
                run.config.env_id,
                f"{MAX_EPISODE_STEPS:,}",
            )
    if not collector.exact:
        log.warning("a resume of this run will continue %s", collector.exactness)
    for other in collectors[1:]:
        other.replayable, other.evidence = collector.replayable, collector.evidence


def _describe(check: ReplayCheck) -> str:
    if check.repeats:
        return f"episodes were repeated in {check.trials} of {check.trials} trials"
    return f"seed and actions did not repeat an episode of this environment (trial {check.trials})"


class RepeatEpisodes(Callback):
    """Plays the episodes again that the collector kept; corrects the record of the run if one differs."""

    def on_step(self, run: Run) -> None:
        collector = run.collector
        if not isinstance(collector, Collector) or run.env_factory is None:
            return
        played, collector.played = collector.played, []
        for episode in played:
            if not repeats_episode(run.env_factory, episode.recipe, obs=episode.obs, ret=episode.ret):
                self._correct(run, collector, episode.number)
                return

    @staticmethod
    def _correct(run: Run, collector: Collector, number: int) -> None:
        collector.replayable = False
        collector.evidence = f"episode {number} was different when it was played again"
        correct_resume_claim(run.folder.path, claim_of(run))
        if not collector.exact:
            log.warning("a resume of this run will continue %s", collector.exactness)
