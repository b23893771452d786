"""Compare an exported policy with recorded pairs of inputs and outputs."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from rl_training.errors import ExportError
from rl_training.exporting.contract import FIRST, Contract, Port

Arrays: TypeAlias = Mapping[str, np.ndarray]
Run: TypeAlias = Callable[[Arrays], Arrays]  # from the inputs of some rows to their outputs

_BATCHES = (1, 2, 7)  # the sizes of the first batches: a graph with a fixed batch size fails
_ROWS = 64  # of the others
_SMALL = 0.01  # of an action's bounds: actions below it are compared as if they were as large


def replay(run: Run, contract: Contract, pairs: Arrays, *, what: str) -> float:
    """Return the largest error over the pairs; raise `ExportError` that starts with `what` if it is not allowed.

    A recurrent policy is run on each pair with the recorded carry, then on whole episodes with its own.
    """
    errors = _compare(run, contract, pairs, what)
    if contract.carry:
        errors = max(errors, _compare(_with_own_carry(run, contract, pairs[FIRST]), contract, pairs, what, single=True))
    return errors


def _compare(run: Run, contract: Contract, pairs: Arrays, what: str, *, single: bool = False) -> float:
    rows = len(pairs[FIRST])
    found: dict[str, list[np.ndarray]] = {port.name: [] for port in contract.outputs}
    for part in _batches(rows, single=single):
        outputs = run({port.name: pairs[port.name][part] for port in contract.inputs})
        for name, values in found.items():
            values.append(outputs[name])
    joined = {name: np.concatenate(values) for name, values in found.items()}
    errors = {name: _errors(contract, name, values, pairs) for name, values in joined.items()}
    largest = max(float(values.max()) for values in errors.values())
    for name, of_rows in errors.items():
        if of_rows.max() > contract.tolerance:
            pair = int((of_rows > contract.tolerance).argmax())
            shown = f"{_shown(joined[name][pair])} instead of {_shown(pairs[name][pair])}"
            allowed = f"largest error {largest:.2g}, allowed {contract.tolerance:.0e}".replace("e-0", "e-")
            raise ExportError(f"{what}: {name} {shown} in pair {pair} ({allowed})")
    return largest


def _batches(rows: int, *, single: bool) -> Iterator[slice]:
    start = 0
    for size in [1] * rows if single else [*_BATCHES, *[_ROWS] * rows]:
        if start >= rows:
            return
        yield slice(start, start + size)
        start += size


def _with_own_carry(run: Run, contract: Contract, first: np.ndarray) -> Run:
    """Return `run` for single rows in their order, with the carry that it returned for the row before."""
    row, carry = 0, dict[str, np.ndarray]()

    def run_next(inputs: Arrays) -> Arrays:
        nonlocal row, carry
        if first[row]:
            carry = {part.input: np.zeros_like(inputs[part.input]) for part in contract.carry}
        outputs = run({**inputs, **carry})
        row, carry = row + 1, {part.input: outputs[part.output] for part in contract.carry}
        return outputs

    return run_next


def _errors(contract: Contract, name: str, found: np.ndarray, pairs: Arrays) -> np.ndarray:
    """Return the error of each row, (rows,): relative to the largest value, infinite for what is no number."""
    expected = pairs[name]
    if found.shape != expected.shape:
        return np.full(len(expected), np.inf)
    if name == "action" and contract.decision != "numbers":
        return _lost_scores(contract, found, pairs) / _scale(pairs["scores"])
    error = np.abs(found.astype(np.float64) - expected).reshape(len(expected), -1).max(1, initial=0.0)
    (port,) = (port for port in contract.outputs if port.name == name)
    return np.where(np.isfinite(error), error / max(_scale(expected), _SMALL * _bound(port)), np.inf)


def _scale(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0)) or 1.0


def _bound(port: Port) -> float:
    """Return the largest size that the bounds of an output allow; 0 where they do not say."""
    try:
        ends = [np.abs(np.asarray(end, np.float64)).max(initial=0.0) for end in (port.low, port.high)]
    except (TypeError, ValueError):
        return 0.0
    return float(max(ends)) if np.isfinite(ends).all() else 0.0


def _lost_scores(contract: Contract, found: np.ndarray, pairs: Arrays) -> np.ndarray:
    """Return by how much the scores prefer the recorded action to another one, (rows,): 0 for the same, or for a tie.

    Two machines round differently, so that one of them may prefer the second of two actions that are equally good.
    """
    rows, expected, scores = len(found), pairs["action"].reshape(len(found), -1), pairs["scores"].astype(np.float64)
    found = found.reshape(rows, -1)
    if contract.decision == "threshold":
        undecided: np.ndarray = np.where(found != expected, np.abs(scores), 0.0).max(1, initial=0.0)
        return undecided
    low = np.broadcast_to(np.asarray(contract.outputs[0].low, np.int64).reshape(-1), len(contract.choices))
    start, every = 0, np.arange(rows)
    lost: np.ndarray = np.zeros(rows)
    for choice, size in enumerate(contract.choices):
        old, new = (actions[:, choice].astype(np.int64) - low[choice] for actions in (expected, found))
        exists = (new >= 0) & (new < size) & (old >= 0) & (old < size)
        old, new = np.where(exists, old, 0), np.where(exists, new, 0)
        allowed = exists & (pairs["action_mask"][every, start + new] if "action_mask" in pairs else True)
        own = scores[:, start : start + size]
        lost = np.maximum(lost, np.where(allowed, np.abs(own[every, old] - own[every, new]), np.inf))
        start += size
    return lost


def _shown(values: np.ndarray) -> str:
    text = np.array2string(np.asarray(values), precision=4, threshold=8, edgeitems=2)
    return " ".join(text.split())
