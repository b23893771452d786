"""Run folders as training writes them, without training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def write_run(
    path: Path,
    *,
    seed: int = 0,
    returns: Sequence[float] = (1.0, 2.0, 3.0),
    interval: int = 100,
    finished: bool = True,
    **settings: Any,
) -> Path:
    """Write a run that was evaluated every `interval` steps: two episodes each, half below and above the mean."""
    path.mkdir(parents=True)
    config = {"algo": "dqn", "env_id": "CartPole-v1", "seed": seed, "eval_episodes": 2, "output_dir": str(path.parent)}
    (path / "config.yaml").write_text(yaml.safe_dump({**config, **settings}))
    evaluations = [
        {"step": interval * number, "episode": episode, "seed": 7, "return": mean + offset, "length": 10}
        for number, mean in enumerate(returns, 1)
        for episode, offset in enumerate((-0.5, 0.5))
    ]
    _write_lines(path / "eval.jsonl", evaluations)
    metrics = [
        {
            "step": interval * number,
            "gradient_step": interval * number // 2,
            "wall_s": 2.0 * number,
            "steps_per_s": 50.0,
            "metrics": {"loss": 1.0 / number},
        }
        for number in range(1, len(returns) + 1)
    ]
    _write_lines(path / "metrics.jsonl", metrics)
    if finished:
        last = [record for record in evaluations if record["step"] == interval * len(returns)]
        result = {"step": interval * len(returns), "wall_s": 2.0 * len(returns), "eval": last}
        (path / "result.json").write_text(json.dumps(result))
    return path


def _write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
