"""The kinds of actions and observations that algorithms distinguish, without importing torch or gymnasium."""

from typing import Literal

ActionKind = Literal["discrete", "box", "multidiscrete", "multibinary"]
ObservationKind = Literal["vector", "image", "discrete", "dict"]
