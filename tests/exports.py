"""Exported bundles on disk, so that test processes and later runs do not export the same networks
again.
"""

import hashlib
import inspect
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

from latentsync_trt.version import distribution_version

REPOSITORY = Path(__file__).resolve().parents[1]

_MADE_BY = ("torch", "diffusers", "onnx", "onnxscript", "onnxruntime-gpu", "numpy")
"""Libraries whose versions decide what an export writes."""

_SOURCES = (
    "latentsync_trt/export/*.py",
    "latentsync_trt/bundle/*.py",
    "latentsync_trt/audio/mel.py",
    "tests/narrow.py",
)


class ExportCache:
    """Bundles below `folder`, each under a hash of the code and the libraries that make it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def bundle(self, name: str, make: Callable[[Path], object]) -> Path:
        """The bundle `name`, a folder that is alone in its parent; `make` writes it where it is
        missing.

        The result is shared: copy it before changing it.
        """
        place = self._folder / name / _digest([*_sources(), Path(inspect.getfile(make))])
        with FileLock(self._folder / f"{name}.lock"):
            if not place.is_dir():
                # other versions of the code go, too
                shutil.rmtree(place.parent, ignore_errors=True)
                staged = place.with_name("part")
                staged.mkdir(parents=True)
                make(staged / "bundle")
                staged.rename(place)
        return place / "bundle"


def _sources() -> Iterable[Path]:
    return [path for pattern in _SOURCES for path in sorted(REPOSITORY.glob(pattern))]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256(
        "\n".join(f"{name} {distribution_version(name)}" for name in _MADE_BY).encode()
    )
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
