"""Where Python finds modules of the user."""

import sys
from pathlib import Path


def search_current_folder(reference: str) -> None:
    """Make Python find the module of `module:EnvId` or `module:function` in the current folder, too.

    Call this only for a reference that the user wrote or allowed. The folder comes last, so that no file in it
    hides an installed package.
    """
    folder = str(Path.cwd())
    if ":" in reference and not {folder, ""} & set(sys.path):
        sys.path.append(folder)
