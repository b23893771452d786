"""The connection to a Ray cluster: the one that `RAY_ADDRESS` names, the one that runs here, or a new one."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from rl_training.core.extras import require
from rl_training.errors import ConfigError


def connect_to_ray(what: str, address: str | None = None) -> Any:
    """Return the module `ray`, connected; `what` needs it, for messages.

    `ray.init` takes the cluster at `address` or that `RAY_ADDRESS` names, else one that `ray start` started on this
    machine, else a new one on this machine, which ends with this process.
    """
    ray = require("ray", extra="ray", what=what)
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with _own_sigterm():
                ray.init(address, include_dashboard=False, logging_level=logging.WARNING)
        except Exception as problem:  # Ray raises a plain one if its node does not start in time
            tried = f"address={address}" if address else f"RAY_ADDRESS is {os.environ.get('RAY_ADDRESS', 'not set')}"
            raise ConfigError(f"{what} cannot connect to Ray ({tried}): {problem}") from problem
    return ray


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's answer to SIGTERM, which `ray.init` replaces: a run saves itself before it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
