"""What every settings model shares: strict numbers, refusal of unknown keys, and errors a user can act on."""

import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError, model_validator

from rl_training.errors import ConfigError


def _whole_number(value: Any) -> Any:
    """Let `1e5` stand for 100000 in YAML, but neither `true` nor "64" for a number."""
    if isinstance(value, bool | str):
        raise ValueError("must be a whole number")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("must be a whole number")
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("must be a number")
    return value


# Bounds stand before these in an annotation: then the JSON Schema shows them.
WHOLE = BeforeValidator(_whole_number)
REAL = BeforeValidator(_number)

Real = Annotated[float, REAL]
Switch = StrictBool
Count = Annotated[int, Ge(1), WHOLE]
CountOrZero = Annotated[int, Ge(0), WHOLE]
Fraction = Annotated[float, Ge(0.0), Le(1.0), REAL]
Positive = Annotated[float, Gt(0.0), REAL]
NonNegative = Annotated[float, Ge(0.0), REAL]
HiddenSizes = tuple[Count, ...]
NetworkKind = Literal["mlp", "simba"]
NETWORK: Any = Field(
    "mlp", description="hidden layers one after the other (mlp), or residual blocks of their sizes (simba)"
)


def check_network(network: NetworkKind, hidden_sizes: HiddenSizes) -> None:
    """Raise ValueError for sizes that residual blocks cannot have."""
    if network == "simba" and len(set(hidden_sizes)) != 1:
        raise ValueError(f"network: simba needs hidden_sizes that are all alike, got {list(hidden_sizes)}")


class Settings(BaseModel):
    """Frozen values; unknown keys are refused; NaN and infinity are not numbers here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")


class HParams(Settings):
    """Base of every `<Algo>HParams`: what an algorithm's `algo_kwargs` may say."""

    def check_run(self, num_envs: int, *, has_env: bool = True) -> None:
        """Raise ValueError for settings that do not fit the run's envs."""


class ReplayHParams(HParams):
    """What the off-policy loop asks of an algorithm's settings: how much it keeps, and how much of that it draws."""

    buffer_capacity: Count = Field(100_000, description="transitions the replay buffer holds")
    memory: Literal["ram", "mmap"] = Field(
        "ram", description="where transitions lie; mmap: in a file, of which the system keeps in memory what fits"
    )
    batch_size: Count = Field(128, description="transitions per gradient step")
    learning_starts: CountOrZero = Field(
        1_000, description="env steps of random actions before updates begin to be owed"
    )


class OffPolicyHParams(ReplayHParams):
    """What algorithms that learn from single transitions, or from n steps summed up, have in common."""

    train_frequency: Count = Field(4, description="env steps between rounds of updates")
    gamma: Fraction = Field(0.99, description="discount per env step")
    n_step: Count = Field(1, description="rewards summed before the target bootstraps; fewer at an episode's end")
    prioritized: Switch = Field(False, description="draw transitions by their TD error (prioritized replay)")
    prioritized_alpha: NonNegative = Field(0.6, description="exponent of the priorities; 0 draws all transitions alike")
    prioritized_beta_start: Fraction = Field(0.4, description="exponent of the importance weights at the first update")
    prioritized_beta_end: Fraction = Field(
        1.0, description="the same at the run's end; 1 corrects the drawing by priority wholly"
    )

    @model_validator(mode="after")
    def _check_replay(self) -> "OffPolicyHParams":
        if self.buffer_capacity < self.n_step:
            raise ValueError(f"buffer_capacity must be at least n_step, {self.n_step}, got {self.buffer_capacity}")
        return self


def explain(error: ValidationError, model: type[Settings], prefix: str) -> ConfigError:
    """Turn pydantic's report into lines such as `dqn.algo_kwargs.gamma must be in [0, 1], got 1.3`."""
    details = _one_per_setting([dict(detail) for detail in error.errors()], model)
    return ConfigError("\n".join(_explain_one(detail, model, prefix) for detail in details))


def _one_per_setting(details: list[dict[str, Any]], model: type[Settings]) -> list[dict[str, Any]]:
    """Make one report of those about each kind that a setting may have, such as a number or `auto`."""
    merged: dict[object, dict[str, Any]] = {}
    for number, detail in enumerate(details):
        location = detail["loc"]
        field = model.model_fields.get(str(location[0])) if len(location) == 2 else None
        if field is None or get_origin(field.annotation) not in (Union, UnionType):
            merged[number] = detail
            continue
        wanted = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("must be ")
        if location[0] in merged:
            merged[location[0]]["msg"] += f" or {wanted}"
        else:
            merged[location[0]] = detail | {"loc": location[:1], "msg": f"must be {wanted}", "type": "kind"}
    return list(merged.values())


def _explain_one(detail: Mapping[str, Any], model: type[Settings], prefix: str) -> str:
    location = [str(part) for part in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        return unknown_setting(prefix, location[-1], model.model_fields)
    name = ".".join([prefix, *location]).lstrip(".")
    if detail["type"] == "missing":
        return f"{name} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if not location:  # a check over several settings names them itself
        return f"{prefix}: {message}".lstrip(": ")
    field = model.model_fields.get(location[0])
    interval = _interval(field.metadata) if field is not None and len(location) == 1 else None
    if detail["type"] in _RANGE_ERRORS and interval:
        message = f"must be {interval}"
    elif detail["type"] == "path_type":
        message = "must be a path"
    elif not message.startswith("must"):
        message = "must be " + message.removeprefix("Input should be ")
    return f"{name} {message}, got {detail['input']!r}"


_RANGE_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}


def _interval(metadata: Iterable[Any]) -> str | None:
    """Write a field's bounds as an interval: `in (0, 1]`, `>= 1`."""
    low: tuple[str, str, Any] | None = None
    high: tuple[str, str, Any] | None = None
    for bound in metadata:
        if isinstance(bound, Ge):
            low = ("[", ">=", bound.ge)
        elif isinstance(bound, Gt):
            low = ("(", ">", bound.gt)
        elif isinstance(bound, Le):
            high = ("]", "<=", bound.le)
        elif isinstance(bound, Lt):
            high = (")", "<", bound.lt)
    if low and high:
        return f"in {low[0]}{low[2]:g}, {high[2]:g}{high[0]}"
    one = low or high
    return f"{one[1]} {one[2]:g}" if one else None


def unknown_setting(where: str, found: str, known: Iterable[str]) -> str:
    """Say that a key is unknown and which known one was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(found, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
    return f"{where}: unknown setting {found!r}; {hint}".removeprefix(": ")
