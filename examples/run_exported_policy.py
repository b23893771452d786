"""Run an exported policy with onnxruntime and numpy alone: `python examples/run_exported_policy.py policy/`."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder = Path(sys.argv[1])
contract, pairs = json.loads((folder / "contract.json").read_text()), dict(np.load(folder / "pairs.npz"))
session = onnxruntime.InferenceSession(str(folder / "policy.onnx"))
inputs = {port["name"]: port for port in contract["inputs"]}
outputs = [port["name"] for port in contract["outputs"]]
zeros = {part["input"]: np.zeros((1, *inputs[part["input"]]["shape"][1:]), np.float32) for part in contract["carry"]}

carry, equal = zeros, 0
for row, is_first in enumerate(pairs["first"]):
    if is_first:  # of an episode: a recurrent policy has seen nothing yet
        carry = zeros
    # With an environment: its observation, and its action mask if there is one, in the dtypes of the contract.
    observed = {name: pairs[name][row : row + 1] for name in inputs if name not in zeros}
    found = dict(zip(outputs, session.run(outputs, observed | carry), strict=True))
    carry = {part["input"]: found[part["output"]] for part in contract["carry"]}
    action = found["action"][0]  # what `env.step` takes
    equal += int(np.allclose(action, pairs["action"][row], atol=1e-4))

print(f"{equal} of {len(pairs['first'])} actions are the recorded ones")
