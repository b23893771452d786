"""The packages that environments and wrappers come from."""

import functools
from collections.abc import Iterable, Mapping
from importlib import metadata


def package_versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages that hold these modules."""
    roots = {module.partition(".")[0] for module in modules}
    packages = {name for root in roots for name in _distributions().get(root, ())}
    return {name: metadata.version(name) for name in sorted(packages)}


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
