"""Versions of this package and of others, importable without the rest of it."""

import importlib.metadata

__version__ = "0.1.0"


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution; None if it is not installed, or without its metadata."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
