"""The version of the library: the only place where it is written; `pyproject.toml` reads it from here."""

__version__ = "0.3.0"
