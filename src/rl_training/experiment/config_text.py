"""Descriptions of the settings for people and editors: annotated YAML and JSON Schema, derived from the models."""

from collections.abc import Mapping
from typing import Any

import yaml

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import AlgorithmSpec, find_spec, registry
from rl_training.hparams.base import Settings

_COMMENT_COLUMN = 40


def annotated_yaml(config: TrainConfig) -> str:
    """Return every setting with its value and, as a comment, its description. Loading it returns the same settings."""
    values = config.resolved().model_dump(mode="json")
    algo_kwargs = values.pop("algo_kwargs")
    lines = _annotate(TrainConfig, values)
    if algo_kwargs:
        lines += ["algo_kwargs:", *_annotate(config.spec.hparams, algo_kwargs, indent="  ")]
    return "\n".join(lines) + "\n"


def _annotate(model: type[Settings], values: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in values.items():
        setting = f"{indent}{name}: {_one_line(value)}"
        lines.append(f"{setting:<{_COMMENT_COLUMN}}  # {model.model_fields[name].description}")
    return lines


def _one_line(value: Any) -> str:
    # PyYAML ends a bare scalar with a "..." line, but not a list with one item.
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=float("inf")).strip()[1:-1]


def json_schema(algo: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of config files, of one algorithm or of all, each with its own `algo_kwargs`."""
    specs = [find_spec(algo)] if algo is not None else list(registry().values())
    schema = TrainConfig.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for spec in specs:
        hparams = spec.hparams.model_json_schema()
        definitions |= hparams.pop("$defs", {})
        definitions[spec.name] = hparams
    properties = schema["properties"]
    properties["algo"]["enum"] = [spec.name for spec in specs]
    if algo is not None:
        properties["algo_kwargs"] = {"$ref": f"#/$defs/{algo}"}
        schema["required"] = [*_required(specs[0]), *schema["required"]]
    else:
        schema["allOf"] = [_if_algo(spec) for spec in specs]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _if_algo(spec: AlgorithmSpec) -> dict[str, Any]:
    return {
        "if": {"properties": {"algo": {"const": spec.name}}, "required": ["algo"]},
        "then": {"properties": {"algo_kwargs": {"$ref": f"#/$defs/{spec.name}"}}, "required": _required(spec)},
    }


def _required(spec: AlgorithmSpec) -> list[str]:
    """Return the required settings that depend on the algorithm: only offline algorithms need no environment."""
    return [] if spec.loop == "offline" else ["env_id"]
