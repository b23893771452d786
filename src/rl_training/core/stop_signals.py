"""The signals that ask a run to save and end: from the keyboard, a closed terminal or a batch system."""

from signal import Signals

STOP_SIGNALS = (
    Signals.SIGINT,
    Signals.SIGTERM,
    Signals.SIGHUP,
    Signals.SIGUSR1,
    Signals.SIGUSR2,
    Signals.SIGXCPU,
    Signals.SIGQUIT,
)
