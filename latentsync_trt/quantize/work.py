"""The folder that keeps a calibration's intermediate results, so that it can resume.

    <root>/<key>/window-<clip>-<number>.npz    a recorded window
    <root>/<key>/clip-<clip>.json              summary of a clip that is recorded completely
    <root>/<key>/ranges-<loops>.npz            calibration ranges after so many denoised windows

The key covers the bundle, the clips and all settings that decide what is observed. Every file is written completely or
not at all; an interrupted calibration resumes after the last one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from latentsync_trt.bundle.manifest import Bundle, manifest_sha256, sha256_file
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.quantize.clips import Clip, ClipSummary
from latentsync_trt.quantize.files import load_arrays, open_atomic, save_arrays
from latentsync_trt.quantize.ranges import BINS, ActivationRange, Ranges

_FORMAT = 2
_KEY_LENGTH = 16


class WorkFolder:
    """The intermediate results of one calibration.

    Args:
        root: a folder, created if need be, that may hold other calibrations too.
        settings: everything besides bundle and clips that decides what is observed.

    Raises:
        InputError: a clip cannot be read.
    """

    def __init__(self, root: Path, bundle: Bundle, clips: Sequence[Clip], settings: Mapping[str, Any]) -> None:
        self.clips = hashes_of(clips)
        """SHA-256 of the clips' files by name."""
        content = [_FORMAT, manifest_sha256(bundle.folder), list(self.clips.items()), dict(settings)]
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self.folder = root / key[:_KEY_LENGTH]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder and keeps other processes out of it.

        Raises:
            OutputError: it cannot be written, or another calibration uses it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", timeout=0):
                yield
        except Timeout:
            raise OutputError(
                f"{self.folder}: another calibration of this bundle with these clips is running"
            ) from None
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{self.folder}: cannot be written ({error.strerror or error})") from error

    def window(self, clip: int, number: int) -> Path:
        """The file of a window of a clip."""
        return self.folder / f"window-{clip:03}-{number:06}.npz"

    def windows(self) -> tuple[Path, ...]:
        """The files of the recorded windows, in order."""
        return tuple(sorted(self.folder.glob("window-*.npz")))

    def summary(self, clip: int) -> ClipSummary | None:
        """The summary of a clip, None if it is not recorded completely; raises `InputError` if damaged."""
        path = self._summary_path(clip)
        try:
            return ClipSummary(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); delete it and calibrate again") from error

    def save_summary(self, clip: int, summary: ClipSummary) -> None:
        """Marks a clip as recorded completely; raises `OutputError` if that cannot be written."""
        with open_atomic(self._summary_path(clip)) as file:
            file.write(json.dumps(asdict(summary)).encode())

    def ranges(self) -> tuple[int, dict[str, ActivationRange]]:
        """How many windows were denoised, and the ranges they gave; raises `InputError` if damaged."""
        found = sorted(self.folder.glob("ranges-*.npz"))
        return (int(found[-1].stem.split("-")[1]), load_ranges(found[-1])) if found else (0, {})

    def save_ranges(self, windows: int, ranges: Ranges) -> None:
        """Replaces the ranges by those of `windows` denoised windows; raises `OutputError` if it cannot be written."""
        earlier = list(self.folder.glob("ranges-*.npz"))
        save_ranges(self.folder / f"ranges-{windows:05}.npz", ranges)
        for path in earlier:
            path.unlink(missing_ok=True)

    def _summary_path(self, clip: int) -> Path:
        return self.folder / f"clip-{clip:03}.json"


def save_ranges(path: Path, ranges: Ranges) -> None:
    """Writes calibration ranges to `path`; raises `OutputError` if it cannot be written."""
    save_arrays(path, {name: np.concatenate([[of.upper], of.counts, of.channel_amax]) for name, of in ranges.items()})


def load_ranges(path: Path) -> dict[str, ActivationRange]:
    """Reads a file of `save_ranges`; raises `InputError` if it is missing or damaged."""
    return load_arrays(path, lambda arrays: {name: _range(values) for name, values in arrays.items()})


def _range(values: np.ndarray) -> ActivationRange:
    upper, counts, channel_amax = np.split(values, [1, 1 + BINS])
    return ActivationRange(channel_amax.astype(np.float32), counts, float(upper[0]))


def hashes_of(clips: Sequence[Clip]) -> dict[str, str]:
    """SHA-256 in hex of the files of clips by file name, where two are equal the later one after its clip's number.

    Raises:
        InputError: a file cannot be read.
    """
    hashes: dict[str, str] = {}
    for number, clip in enumerate(clips, start=1):
        for path in dict.fromkeys((clip.video, clip.audio)):
            name = path.name if path.name not in hashes else f"{number}/{path.name}"
            try:
                hashes[name] = sha256_file(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return hashes
