"""What a probe reports: one name per broken link."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen. "fix": it breaks learning; "look": unusual, and right only if it is meant."""

    verdict: Literal["fix", "look"]
    name: str
    text: str


class BrokenEnvError(Exception):
    """The environment cannot be played any further; `finding` says why."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.finding = Finding("fix", name, text)
