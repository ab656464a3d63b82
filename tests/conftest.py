"""Fixtures shared by all tests."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded reference numbers and clips that lies beside the repository; not part of it."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "reference" / "README.md").is_file():
        pytest.skip("needs the reference recordings in ../shared, which are not part of the repository")
    return folder


@pytest.fixture(scope="session")
def reference(shared: Path) -> Path:
    """Numbers recorded from the public release."""
    return shared / "reference"


@pytest.fixture(scope="session")
def assets(shared: Path) -> Path:
    """Real clips and speech."""
    return shared / "assets"
