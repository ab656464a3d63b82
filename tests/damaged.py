"""Small whole files of many formats, and what comes of reading damaged ones.

`python -m tests.damaged FOLDER COUNT` is a process of its own, as a file may end it; it prints a
line for each file: what is wrong, and for each way to read it whether that succeeded. Files that
something is wrong with stay in FOLDER.
"""

import faulthandler
import gc
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import av
import numpy as np
import psutil

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.audio import SPEECH_RATE_HZ, audio_duration_s, read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import write_pictures
from tests.clips import copied, write_sound, write_video

SIDE_PX = 64

MOST_S = 200
"""Reading is not followed further; a file must not last longer than that unless it states so."""

LIMIT_S = 600.0
"""Of one file, by the clock: a process that takes longer hangs."""

MEMORY_LIMIT_BYTES = 1_000_000_000
"""How much a file may add to the peak of its process."""


@dataclass(frozen=True)
class Format:
    """Of files with this suffix; a codec is empty where there is no picture or no sound."""

    suffix: str
    video: str = ""
    audio: str = ""
    pixel_format: str = "yuv420p"
    rate_hz: int = 16_000
    options: dict[str, str] = field(default_factory=dict)


FORMATS = [
    Format("mp4", "libx264", "aac"),
    Format("mov", "prores_ks", "pcm_s16le", "yuv422p10le"),
    Format("mkv", "ffv1", "flac"),
    Format(
        "webm",
        "libvpx-vp9",
        "libopus",
        "yuv420p",
        48_000,
        {"cpu-used": "8", "deadline": "realtime"},
    ),
    Format("ts", "mpeg2video", "mp2"),
    Format("avi", "mpeg4", "libmp3lame"),
    Format("wav", "", "pcm_s16le"),
    Format("flac", "", "flac"),
    Format("m4a", "", "aac", rate_hz=44_100),
    Format("ogg", "", "libopus", rate_hz=48_000),
    Format("gif", "gif", "", "rgb8"),
]


def write_seed(folder: Path, form: Format) -> Path:
    """One second of a moving gradient and of noise."""
    columns, rows = np.meshgrid(np.arange(SIDE_PX), np.arange(SIDE_PX))
    waves = (
        np.stack([columns * 4, rows * 4, (columns + rows + 8 * index) % 256], -1)
        for index in range(25)
    )
    with TemporaryDirectory() as parts:
        video, sound = (Path(parts) / f"{kind}.{form.suffix}" for kind in ("video", "sound"))
        if form.video:
            frames = (wave.astype(np.uint8) for wave in waves)
            options = {"g": "8", **form.options}
            write_video(
                video, frames, codec=form.video, pixel_format=form.pixel_format, options=options
            )
        if form.audio:
            write_sound(sound, 1, rate_hz=form.rate_hz, codec=form.audio)
        return copied(folder / f"seed.{form.suffix}", *filter(Path.exists, (video, sound)))


def _place(size: int, chance: random.Random) -> int:
    """A byte of the file, mostly in its first or last kilobyte, where headers and indexes are."""
    end = min(size, 1024)
    return chance.choice(
        [chance.randrange(end), size - 1 - chance.randrange(end), chance.randrange(size)]
    )


def _flip_bits(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 2, 5, 20, 100])):
        content[_place(len(content), chance)] ^= 1 << chance.randrange(8)


_NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
)


def _write_number(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 4])):
        start = _place(len(content), chance)
        size = chance.choice([2, 4, 8])
        number = chance.choice(_NUMBERS) % (1 << 8 * size)
        content[start : start + size] = number.to_bytes(size, chance.choice(["big", "little"]))


def _cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def _cut_out(content: bytearray, chance: random.Random) -> None:
    start = _place(len(content), chance)
    del content[start : start + chance.choice([1, 7, 100, 5000])]


# Numbers are what memory and time depend on.
_DAMAGES = (_flip_bits, _write_number, _cut, _cut_out, _write_number, _flip_bits)


def _read_damaged(number: int, folder: Path) -> tuple[list[str], list[bool]]:
    """Makes file `number` and reads it in all ways: what is wrong, and which of them succeeded."""
    chance = random.Random(number)
    room = folder / f"of {number}"
    before_bytes = _peak_bytes()
    seed = folder / f"seed.{FORMATS[number % len(FORMATS)].suffix}"
    content = bytearray(seed.read_bytes())
    chance.choice(_DAMAGES)(content, chance)
    room.mkdir()
    path = room / f"damaged{seed.suffix}"
    path.write_bytes(content)
    problems = []
    succeeded = []
    for name, read in WAYS.items():
        if name.startswith("write") and number % 3:
            continue  # the slowest ways, for a part of the files
        try:
            read(path)
            succeeded.append(True)
        except Exception as error:  # noqa: BLE001 -- what the test looks for
            succeeded.append(False)
            if not isinstance(error, LatentSyncError) or str(room) not in str(error):
                problems.append(f"{path}: {name}: {type(error).__name__}: {error}")
    if _peak_bytes() - before_bytes > MEMORY_LIMIT_BYTES:
        problems.append(f"{path}: took {(_peak_bytes() - before_bytes) / 1e9:.1f} GB")
    if left := sorted(item.name for item in room.iterdir() if item != path):
        problems.append(f"{path}: left behind {left}")
    if any(Path(item.path) == path for item in psutil.Process().open_files()):
        problems.append(f"{path}: is still open")
    if not problems:
        rmtree(room)
    return problems, succeeded


def _peak_bytes() -> int:
    """The most memory that this process has held."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def _probe(path: Path) -> None:
    info = probe(path)
    assert min(info.width_px, info.height_px) > 0


def _stated_s(path: Path) -> float:
    """How long the file says that it lasts."""
    with av.open(str(path), metadata_errors="replace") as container:
        return (container.duration or 0) / av.time_base


def _frames(path: Path) -> None:
    for frame in read_frames(path):
        assert frame.index not in (0, 20) or frame.rgb.shape[2] == 3
        if frame.time_s > MOST_S:
            assert _stated_s(path) > MOST_S, "endless"
            break


def _duration(path: Path) -> None:
    assert 0 < audio_duration_s(path) < max(MOST_S, 2 * _stated_s(path)), "endless"


def _blocks(path: Path) -> None:
    count = 0
    for block in read_audio_blocks(path):
        assert np.isfinite(block).all()
        count += block.size
        if count > MOST_S * SPEECH_RATE_HZ:
            assert _stated_s(path) > MOST_S, "endless"
            break


def _write(path: Path, suffix: str) -> None:
    output = path.with_name(f"out{suffix}")
    try:
        write_pictures(
            output, (np.full((16, 16, 3), 10 * index, np.uint8) for index in range(10)), audio=path
        )
    finally:
        assert not [item for item in output.parent.iterdir() if item not in (path, output)]
    with av.open(str(output)) as written:
        assert sum(1 for _ in written.decode(video=0)) == 10
    output.unlink()


WAYS: dict[str, Callable[[Path], None]] = {
    "probe": _probe,
    "read frames": _frames,
    "measure sound": _duration,
    "read sound": _blocks,
    **{f"write to {suffix}": partial(_write, suffix=suffix) for suffix in (".mp4", ".mov", ".mkv")},
}


def main(folder: Path, count: int) -> None:
    for form in FORMATS:
        write_seed(folder, form)
    for number in range(count):
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        sys.stdout.write(f"{json.dumps(_read_damaged(number, folder))}\n")
        sys.stdout.flush()
        gc.collect()
        gc.freeze()  # so that the next collection looks at what is new


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
