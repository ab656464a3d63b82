"""Intermediate results of a calibration, from which it can resume.

    <root>/<key>/clip-<clip>.npz               summary of a clip that is recorded completely
    <root>/<key>/window-<clip>-<number>.npz    a recorded window
    <root>/<key>/ranges.npz                    calibration ranges, and the number of windows they come from

The key covers the bundle, the clips and all settings that affect what is observed. Every file is written completely or
not at all.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentsync_trt.bundle.manifest import Bundle, manifest_sha256, sha256_file
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.quantize.clips import Clip, ClipSummary
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import BINS, ActivationRange, Ranges
from latentsync_trt.temporary import temporary_folder, whole_file

_FORMAT = 3
_KEY_LENGTH = 16

# Some of what damaged archives raise: KeyError for a name that is lost, NotImplementedError for flags and methods that
# they claim, TokenError for the headers of arrays.
_DAMAGED = (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, NotImplementedError, TokenError)

_WINDOWS = "windows"  # no layer has this name: names of layers contain dots


def save_arrays(path: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes named arrays to `path`, completely or not at all; raises `OutputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error


def load_arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """The arrays in `path`, `names` among them; raises `InputError` if the file is missing or damaged."""
    try:
        # NumPy does not close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in dict.fromkeys((*names, *arrays))}
    except _DAMAGED as error:
        raise InputError(f"{path}: cannot be read ({error}); delete it and calibrate again", usage=False) from error


class WorkFolder:
    """The intermediate results of one calibration, in `folder` below `root`.

    Raises:
        InputError: a clip cannot be read.
    """

    def __init__(self, root: Path, bundle: Bundle, clips: Sequence[Clip], options: CalibrateOptions) -> None:
        self.clips = hashes_of(clips)
        """SHA-256 of the clips' files by name."""
        settings = {"samples": options.samples, "steps": options.steps, "guidance": options.guidance}
        content = [_FORMAT, manifest_sha256(bundle.folder), list(self.clips.items()), settings]
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self.folder = root / key[:_KEY_LENGTH]

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A folder for graphs, deleted at the end of the block; errors of writing inside it become `OutputError`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary_folder(self.folder) as folder:
                yield folder
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be written ({error.strerror or error})") from error

    def window(self, clip: int, number: int) -> Path:
        """The file of a window of a clip."""
        return self.folder / f"window-{clip:03}-{number:06}.npz"

    def windows(self) -> tuple[Path, ...]:
        """The files of the recorded windows, in order."""
        return tuple(sorted(self.folder.glob("window-*.npz")))

    def summary(self, clip: int) -> ClipSummary | None:
        """The summary of a clip, None if its recording is incomplete; raises `InputError` if damaged."""
        path = self._summary_path(clip)
        if not path.is_file():
            return None
        arrays = load_arrays(path, *(names := [spec.name for spec in fields(ClipSummary)]))
        return ClipSummary(*(arrays[name].item() for name in names))

    def save_summary(self, clip: int, summary: ClipSummary) -> None:
        """Marks a clip as completely recorded; raises `OutputError` if that cannot be written."""
        save_arrays(self._summary_path(clip), asdict(summary))

    def ranges(self) -> tuple[int, dict[str, ActivationRange]]:
        """The number of denoised windows and their calibration ranges; raises `InputError` if damaged."""
        path = self.folder / "ranges.npz"
        if not path.is_file():
            return 0, {}
        arrays = load_arrays(path, _WINDOWS)
        windows = int(arrays.pop(_WINDOWS))
        return windows, {name: _range(values) for name, values in arrays.items()}

    def save_ranges(self, windows: int, ranges: Ranges) -> None:
        """Stores the ranges of `windows` denoised windows; raises `OutputError` if they cannot be written."""
        arrays = {name: np.concatenate([[of.upper], of.counts, of.channel_amax]) for name, of in ranges.items()}
        save_arrays(self.folder / "ranges.npz", {_WINDOWS: np.asarray(windows), **arrays})

    def _summary_path(self, clip: int) -> Path:
        return self.folder / f"clip-{clip:03}.npz"


def _range(values: NDArray[Any]) -> ActivationRange:
    upper, counts, channel_amax = np.split(values, [1, 1 + BINS])
    return ActivationRange(channel_amax.astype(np.float32), counts, float(upper[0]))


def hashes_of(clips: Sequence[Clip]) -> dict[str, str]:
    """File name → SHA-256 in hex of the clips' files; a repeated name is prefixed with the clip's number.

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
