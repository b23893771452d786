"""From an idea to a policy file: sweep two algorithms, report, tune the better one, export its policy and check it.

The command of the sweep is killed three times on the way. The same command continues, and nothing is lost.

python examples/end_to_end.py              # 20 runs of the sweep and at most 58 of the study, 20,000 steps each
python examples/end_to_end.py --small      # tiny runs: every step works, nothing is learned
"""

import argparse
import csv
import random
import subprocess
import sys
import time
from pathlib import Path

import yaml

from rl_training.cli import app

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--small", action="store_true", help="tiny budgets")
parser.add_argument("--out", type=Path, default=Path("end_to_end"), help="folder of everything that is written")
parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: %(default)s)")
args = parser.parse_args()

SETTINGS = {"total_timesteps": 20_000, "eval_interval": 5_000, "checkpoint_interval": 2_000}
SEEDS, TRIALS, KILLS = 5, 6, 3
if args.small:
    SETTINGS = {"total_timesteps": 300, "eval_interval": 150, "checkpoint_interval": 100, "max_episode_steps": 50}
    SEEDS, TRIALS, KILLS = 1, 2, 1
SWEEP = {
    "configs": ["dqn/cartpole", "ppo/cartpole"],
    "set": SETTINGS,
    "grid": {"env_id": ["CartPole-v1", "Acrobot-v1"]},
    "seeds": list(range(SEEDS)),
}


def rl_training(*words: object) -> None:
    """Run a command of rl-training in this process."""
    print("\n$ rl-training", *words, flush=True)
    if code := app([str(word) for word in words], standalone_mode=False):
        sys.exit(code)


def sweep_with_kills(file: Path, kills: int) -> None:
    """Run a sweep; kill its command `kills` times, each time after one to four more checkpoints."""
    command = [sys.executable, "-m", "rl_training", "sweep", str(file), "--jobs", str(args.jobs)]
    folder, rng = file.with_suffix(""), random.Random(0)
    for _ in range(kills):
        wanted = len(list(folder.rglob("step_*"))) + rng.randint(1, 4)
        process = subprocess.Popen(command)
        while process.poll() is None and len(list(folder.rglob("step_*"))) < wanted:
            time.sleep(0.05)
        process.kill()
        print(f"\nkilled: exit code {process.wait()}", flush=True)
    subprocess.run(command, check=True)


args.out.mkdir(parents=True, exist_ok=True)
sweep_file = args.out / "algorithms.yaml"
sweep_file.write_text(yaml.safe_dump(SWEEP, sort_keys=False))
sweep_with_kills(sweep_file, KILLS)

runs = sweep_file.with_suffix("")
rl_training("report", runs, "--out", args.out / "report.html", "--videos", 1)

with (runs / "table.csv").open(newline="") as table:
    rows = [row for row in csv.DictReader(table) if row["env_id"] == "CartPole-v1"]
winner = max(rows, key=lambda row: float(row["iqm"]))["algo"]
settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
study = args.out / "tune"
budget = ["--trials", TRIALS, "--seeds", min(SEEDS, 3), "--jobs", args.jobs]
rl_training("tune", study, "-c", f"{winner}/cartpole", *settings, *budget, "--param", "learning_rate")

rl_training("train", study / "best.yaml", "--seeds", 0, "--output-dir", args.out / "winner")
(run_dir,) = (args.out / "winner").glob("*/seed0")
policy = args.out / "policy"
if not policy.exists():
    rl_training("export", run_dir, "--out", policy)
rl_training("export", "check", policy)
print(f"\nthe report: {args.out / 'report.html'}; the policy: {policy}")
