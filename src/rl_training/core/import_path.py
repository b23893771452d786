"""Where Python finds modules of the user."""

import sys
from pathlib import Path


def search_current_folder(env_id: str) -> None:
    """Make Python find the module of `module:EnvId` in the current folder, too.

    Call this only for an id that the user wrote. The folder comes last, so that no file in it hides an installed
    package.
    """
    folder = str(Path.cwd())
    if ":" in env_id and not {folder, ""} & set(sys.path):
        sys.path.append(folder)
