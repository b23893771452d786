"""Errors whose message is meant for the user.

Each says what was wrong, what was found and what would be right. The CLI prints the message alone and
exits with code 2; anything else that escapes is a bug of ours and keeps its traceback.
"""


class UserError(Exception):
    """Base of every error that the user can mend; never raised itself."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class SpaceError(UserError, TypeError):
    """An algorithm cannot handle the environment's observation or action space."""


class EnvError(UserError, RuntimeError):
    """An environment could not be made, crashed, hung, or gave values that cannot be learnt from."""


class CheckpointError(UserError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class DatasetError(UserError, ValueError):
    """A dataset is missing, damaged, hostile, or does not fit the environment."""


class TrainingError(UserError, RuntimeError):
    """Training reached a state that must not be kept, such as weights that are not finite."""
