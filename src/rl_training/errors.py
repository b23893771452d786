"""Errors whose message is meant for the user.

Each message says what is wrong, what was found and what is expected. The CLI prints the message alone and exits with
code 2. Any other error is a bug of the library and keeps its traceback.
"""


class UserError(Exception):
    """Base class of every error that the user can fix; never raised itself."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, has the wrong type or is out of range."""


class SpaceError(UserError, TypeError):
    """An algorithm cannot handle the environment's observation or action space."""


class EnvError(UserError, RuntimeError):
    """An environment could not be created, crashed, hung, or returned values that cannot be used for training."""


class CheckpointError(UserError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class DatasetError(UserError, ValueError):
    """A dataset is missing, damaged, hostile, or does not fit the environment."""


class TrainingError(UserError, RuntimeError):
    """Training reached a state that must not be saved, such as weights that are not finite."""
