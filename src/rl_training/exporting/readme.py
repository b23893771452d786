"""README.md of an exported policy: how to run it with numpy and onnxruntime."""

from rl_training.exporting.contract import CONTRACT, PAIRS, POLICY_FILES, Contract

_ONNX = """\
Ten lines of Python run it; `pip install onnxruntime numpy` is enough:

```python
import json
import numpy as np
import onnxruntime

contract = json.load(open("contract.json"))
session = onnxruntime.InferenceSession("policy.onnx")
pairs = np.load("pairs.npz")  # recorded inputs and outputs, to try it with
inputs = {port["name"]: pairs[port["name"]][:1] for port in contract["inputs"]}  # a batch of one observation
action = session.run(["action"], inputs)[0][0]  # what env.step takes
print(action, "recorded:", pairs["action"][0])
```

`rl-training export check .` replays all pairs; it needs neither torch nor gymnasium.
"""
_PT2 = """\
`torch.export.load("policy.pt2").module()` returns the policy.

**Load such a file only if you trust its author**: torch unpickles parts of it, which can run any code. To hand a policy
on, export it with `--format onnx`; rl-training itself never reads a .pt2 file.
"""


def readme_text(contract: Contract, policy_file: str) -> str:
    """Return the text of README.md."""
    ports = "\n".join(
        f"| {kind} | `{port.name}` | {port.dtype} | {' x '.join(map(str, port.shape))} | {_cell(port.meaning)} |"
        for kind, ports in (("input", contract.inputs), ("output", contract.outputs))
        for port in ports
    )
    carry = (
        "\nThe policy remembers the episode: pass zeros for "
        + ", ".join(f"`{part.input}`" for part in contract.carry)
        + " at its first step, then "
        + ", ".join(f"`{part.output}`" for part in contract.carry)
        + " of the step before.\n"
        if contract.carry
        else ""
    )
    return f"""\
# {_cell(contract.algo)} on {_cell(contract.env_id)}, exported at step {contract.step}

`{policy_file}` maps observations to actions. `{CONTRACT}` describes it. `{PAIRS}` holds {contract.pairs} recorded
pairs of both.

| | name | dtype | shape | meaning |
|---|---|---|---|---|
{ports}
{carry}
Observations are {contract.observations}.

{_ONNX if policy_file == POLICY_FILES["onnx"] else _PT2}"""


def _cell(text: str) -> str:
    """Return a text that cannot leave its place in Markdown: names of environments and parts may hold anything."""
    return "".join(character if character.isprintable() and character not in "|<>`" else " " for character in text)
