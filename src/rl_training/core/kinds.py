"""The kinds of actions and observations that algorithms distinguish; imports neither torch nor gymnasium."""

from typing import Literal

ActionKind = Literal["discrete", "box", "multidiscrete", "multibinary"]
ObservationKind = Literal["vector", "image", "discrete", "dict"]
