"""The metadata of a dataset: its spaces and the environment id, as JSON text. Code that they name is never imported.

Spaces are written in the form of Minari, so that all formats hold the same text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.packed_space import Composite, PackedSpace
from rl_training.core.spaces import Spaces, pack_space
from rl_training.errors import DatasetError, SpaceError

METADATA_KEY = "metadata"  # in files that the library writes: a text in JSON
ALLOW = "--allow-entry-points"
MAX_TEXT = 64 * 2**20  # characters; the bounds of an image of 1000 x 1000 pixels need fewer
_MAX_DEPTH = 8
_MAX_NUMBERS = 10**7  # in one observation or action
_PLAIN_ID = re.compile(r"[\w.-]+(/[\w.-]+)*")


def metadata_to_text(known: Spaces, env_id: str) -> str:
    """Return the metadata of a file as text."""
    return json.dumps(
        {
            "env_id": env_id,
            "observation_space": space_to_json(known.observation),
            "action_space": space_to_json(known.action),
        }
    )


def metadata_from_text(text: object, source: str, *, allow_entry_points: bool) -> tuple[Spaces | None, str]:
    """Return the spaces, if the metadata declare them, and the environment id."""
    metadata = parse_json(text, f"the metadata of {source}")
    refuse_entry_points(metadata, source, allowed=allow_entry_points)
    found = [space_from_json(metadata.get(key), f"{source}: {key}") for key in ("observation_space", "action_space")]
    env_id = plain_env_id(metadata.get("env_id"), source, allow_entry_points=allow_entry_points)
    observation, action = found
    return (None if observation is None or action is None else Spaces(observation, action)), env_id


def plain_env_id(env_id: object, source: str, *, allow_entry_points: bool) -> str:
    """Return an environment id, empty if there is none.

    An id that would import a module is rejected; with `allow_entry_points` it is dropped.
    """
    if env_id is None or (isinstance(env_id, str) and (not env_id or _PLAIN_ID.fullmatch(env_id))):
        return env_id or ""
    if not allow_entry_points:
        raise DatasetError(
            f"{source}: the metadata's env_id is {_shortened(env_id)}, which is not a plain environment id; "
            f"{ALLOW} (in Python allow_entry_points=True) reads the data anyway"
        )
    return ""


def parse_json(text: object, source: str) -> dict[str, Any]:
    """Read a JSON object from a text or its bytes."""
    if isinstance(text, bytes | str) and len(text) > MAX_TEXT:
        raise DatasetError(f"{source} is a text of {len(text):,} characters, more than {MAX_TEXT:,}")
    try:
        value = json.loads(text)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError) as problem:
        raise DatasetError(f"{source} is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise DatasetError(f"{source} must be a JSON object, found {type(value).__name__}")
    return value


def refuse_entry_points(metadata: Mapping[str, Any], source: str, *, allowed: bool) -> None:
    """Raise `DatasetError` if metadata name code to run, unless gymnasium has registered that code under the same id.

    The library never runs it, but the next program that reads the file might.
    """
    if allowed:
        return
    import rl_training.envs.factory  # noqa: F401  registers the tiny environments and the games of MinAtar

    for env_id, entry_point in _entry_points(metadata, source):
        registered = gym.registry.get(env_id)
        if registered is not None and entry_point in (registered.entry_point, registered.vector_entry_point):
            continue
        if isinstance(entry_point, str) and re.fullmatch(r"gymnasium\.wrappers\.[\w.]+:\w+", entry_point):
            continue
        of_env = f" for the environment {env_id!r}" if env_id else ""
        raise DatasetError(
            f"{source}: the metadata name the entry point {_shortened(entry_point)}{of_env}, which is not registered "
            f"here; it is never run, and {ALLOW} (in Python allow_entry_points=True) reads the data anyway"
        )


def _entry_points(value: Any, source: str, env_id: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every entry point in nested metadata, with the environment id next to it."""
    if depth > 50:
        raise DatasetError(f"{source}: the metadata are nested more than 50 deep")
    if isinstance(value, str) and "entry_point" in value:  # JSON within JSON, as Minari stores env specs
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            yield env_id, value
            return
    if isinstance(value, Mapping):
        env_id = value["id"] if isinstance(value.get("id"), str) else env_id
        for key, inner in value.items():
            if isinstance(key, str) and key.endswith("entry_point"):
                if inner is not None:
                    yield env_id, inner
            else:
                yield from _entry_points(inner, source, env_id, depth + 1)
    elif isinstance(value, list) and not all(isinstance(item, int | float) for item in value):
        for item in value:
            yield from _entry_points(item, source, env_id, depth + 1)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:97]}..."


# --- Spaces ----------------------------------------------------------------------------------------------------------


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a space as plain values."""
    if isinstance(space, PackedSpace):
        return space_to_json(space.original)
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        ranges = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), **ranges}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [space_to_json(part) for part in space.spaces]}
    raise DatasetError(f"a dataset cannot declare the space {space}")


def space_from_json(value: Any, source: str) -> gym.Space[Any] | None:
    """Build a space from plain values, a Dict or Tuple as a packed space; None for None."""
    if value is None:
        return None
    if isinstance(value, str):  # Minari: JSON within JSON
        value = parse_json(value, source)
    try:
        space = _parse_space(value)
        return pack_space(space) if isinstance(space, Composite) else space
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, OverflowError, SpaceError) as problem:
        raise DatasetError(f"{source} is not a space: {type(problem).__name__}: {problem}") from None


def _parse_space(value: Any, depth: int = 0) -> gym.Space[Any]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    if not isinstance(value, dict):
        raise TypeError(f"expected a JSON object, found {type(value).__name__}")
    kind = value.get("type")
    if kind == "Box":
        dtype, shape = _parse_dtype(value["dtype"]), _parse_shape(value["shape"])
        low, high = (_parse_bounds(value[key], shape, dtype) for key in ("low", "high"))
        if (low > high).any():
            raise ValueError("a lower bound is above the upper one")
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(_parse_int(value["n"]), start=_parse_int(value.get("start", 0)))
    if kind == "MultiDiscrete":
        nvec, start = (np.array(value[key], np.int64) for key in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, start=start)
    if kind == "MultiBinary":
        n = value["n"]
        return spaces.MultiBinary(list(_parse_shape(n)) if isinstance(n, list) else _parse_shape([n])[0])
    if kind == "Dict":
        return spaces.Dict({str(key): _parse_space(part, depth + 1) for key, part in value["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_parse_space(part, depth + 1) for part in value["subspaces"]])
    known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    raise ValueError(f"its type must be {known}, found {_shortened(kind)}")


def _parse_dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or not re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)", name):
        raise ValueError(f"its dtype must name numbers, found {_shortened(name)}")
    return np.dtype(name)


def _parse_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**62:
        raise ValueError(f"expected a whole number, found {_shortened(value)}")
    return value


def _parse_shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 8:
        raise ValueError(f"expected a shape of at most 8 numbers, found {_shortened(value)}")
    shape, size = tuple(map(_parse_int, value)), 1
    for count in shape:
        size *= count
        if count < 1 or size > _MAX_NUMBERS:
            raise ValueError(f"the shape {shape} does not have 1 to {_MAX_NUMBERS:,} numbers")
    return shape


def _parse_bounds(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    bounds = np.array(value, dtype)
    if bounds.shape not in (shape, ()) or (dtype.kind == "f" and np.isnan(bounds).any()):
        raise ValueError(f"bounds must be numbers of shape {shape}, found shape {bounds.shape}")
    return np.broadcast_to(bounds, shape).astype(dtype)
