"""Versions of this package and of others, importable without the rest of it."""

__version__ = "0.1.0"


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution; None if it is not installed, or without its
    metadata.
    """
    from importlib import metadata  # takes a third of the time of `--help`

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
