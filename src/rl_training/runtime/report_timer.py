"""When a long task reports its progress."""

import time


class ReportTimer:
    """Limits progress messages to one per `seconds`; a task that is shorter reports nothing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reported_at = time.monotonic()

    def is_due(self) -> bool:
        """Return whether to report now, which starts the next interval."""
        now = time.monotonic()
        if now - self._reported_at < self._seconds:
            return False
        self._reported_at = now
        return True
