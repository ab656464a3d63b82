"""Versions of the packages that make a bundle, for its manifest."""

from collections.abc import Iterable

from latentsync_trt.errors import MissingDependency
from latentsync_trt.version import __version__, distribution_version

OWN_NAME = "latentsync-trt"


def tool_versions(packages: Iterable[str], *, extra: str) -> dict[str, str]:
    """Version of this package and of each of `packages`, which the extra `extra` installs.

    This package's own version is that of the running code: a source tree has no metadata, or that of another version.

    Raises:
        MissingDependency: packages are not installed; the message contains the command that installs them.
    """
    found = {package: distribution_version(package) for package in packages}
    missing = [package for package, version in found.items() if version is None]
    if missing:
        raise MissingDependency(
            f"{', '.join(missing)}: not installed, or without their metadata; pip install '{OWN_NAME}[{extra}]'"
        )
    return {OWN_NAME: __version__} | {package: version for package, version in found.items() if version is not None}
