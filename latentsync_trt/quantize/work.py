"""The folder in which a calibration remembers how far it came.

    <root>/<key>/window-<clip>-<number>.npz    what a window began with
    <root>/<key>/clip-<clip>.json              a clip that is through, and what it held
    <root>/<key>/ranges-<windows>.npz          what so many windows showed

The key covers the bundle, the clips and all settings that decide what is seen, so nothing of another calibration is
ever taken for its own. Every file appears whole; what was interrupted is done again from the last one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from latentsync_trt.bundle.manifest import Bundle, manifest_sha256, sha256_file
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.quantize.clips import Clip, Findings
from latentsync_trt.quantize.files import written_whole
from latentsync_trt.quantize.observe import SAMPLE
from latentsync_trt.quantize.ranges import BINS, LayerInput, load, save
from latentsync_trt.quantize.settings import CalibrateOptions

_KEY_LENGTH = 16


class Work:
    """What is done of one calibration.

    Args:
        root: a folder that need not exist yet; others' calibrations may lie in it too.
    """

    def __init__(self, root: Path, bundle: Bundle, clips: Sequence[Clip], options: CalibrateOptions) -> None:
        self.clips = hashes_of(clips)
        """SHA-256 of the clips' files by name."""
        told = {
            "bundle": manifest_sha256(bundle.folder),
            "clips": list(self.clips.items()),
            "loops": options.of_the_loops(),
            "kept of a tensor": [SAMPLE, BINS],
        }
        self.folder = root / hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:_KEY_LENGTH]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes out of the folder, which is made if need be.

        Raises:
            OutputError: it cannot be written, or another calibration is at work in it.
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
        """The recorded windows there are, in their order."""
        return tuple(sorted(self.folder.glob("window-*.npz")))

    def findings(self, clip: int) -> Findings | None:
        """What a clip held; None if it is not through yet.

        Raises:
            InputError: what lies there is damaged.
        """
        path = self._findings_path(clip)
        try:
            return Findings(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error}); delete it and calibrate again") from error

    def keep_findings(self, clip: int, findings: Findings) -> None:
        """A clip is through; raises `OutputError` if that cannot be written."""
        with written_whole(self._findings_path(clip)) as file:
            file.write(json.dumps(asdict(findings)).encode())

    def ranges(self) -> tuple[int, dict[str, LayerInput]]:
        """How many windows were seen, and what they showed.

        Raises:
            InputError: what lies there is damaged.
        """
        found = sorted(self.folder.glob("ranges-*.npz"))
        return (int(found[-1].stem.split("-")[1]), load(found[-1])) if found else (0, {})

    def keep_ranges(self, windows: int, ranges: dict[str, LayerInput]) -> None:
        """So many windows were seen; raises `OutputError` if that cannot be written."""
        earlier = list(self.folder.glob("ranges-*.npz"))
        save(ranges, self.folder / f"ranges-{windows:05}.npz")
        for path in earlier:
            path.unlink(missing_ok=True)

    def _findings_path(self, clip: int) -> Path:
        return self.folder / f"clip-{clip:03}.json"


def hashes_of(clips: Sequence[Clip]) -> dict[str, str]:
    """SHA-256 in hex of the files of clips, in their order, by name; of two of one name, the later one has its clip's
    number before it.

    Raises:
        InputError: one cannot be read.
    """
    found: dict[str, str] = {}
    for number, clip in enumerate(clips, start=1):
        for path in dict.fromkeys((clip.video, clip.audio)):
            name = path.name if path.name not in found else f"{number}/{path.name}"
            try:
                found[name] = sha256_file(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return found
