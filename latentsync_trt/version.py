"""This package's version, importable without the rest of it."""

__version__ = "0.1.0"
