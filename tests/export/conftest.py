"""Fixtures of the export's tests."""

from pathlib import Path

import pytest

from tests import narrow


@pytest.fixture(scope="session")
def narrow_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of fixed shapes, exported once from the narrowest real networks."""
    return narrow.export_narrow(tmp_path_factory.mktemp("narrow"))
