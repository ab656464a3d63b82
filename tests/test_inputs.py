"""What is wrong with a call, or decides whether it is worth its time, is said before anything heavy
is loaded.
"""

import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli.sync import meanwhile
from latentsync_trt.config import Extend, Length
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.playback import notices_of_length
from latentsync_trt.types import Progress
from tests.clips import write_clip, write_face, write_sound
from tests.compiling import COMPILING, compiling_provider
from tests.device import Device
from tests.small import small_bundle

TIMEOUT_S = 600.0
QUICK = SyncOptions(steps=1, guidance=1.0, fps="25")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), 2)


def test_an_error_does_not_wait_for_the_bundle_that_opens_meanwhile() -> None:
    may_open = threading.Event()
    closed = threading.Event()

    def opened() -> LipSync:
        assert may_open.wait(TIMEOUT_S)
        return cast(LipSync, SimpleNamespace(close=closed.set))

    with pytest.raises(InputError, match="no such file"), meanwhile(opened):
        raise InputError("no such file")
    assert not closed.is_set()
    may_open.set()
    assert closed.wait(TIMEOUT_S)  # by the thread that opened it


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("audio", 3, "audio 3: is not a path"),
        ("video", "https://a.b/c.mp4", "video https://a.b/c.mp4: is a URL"),
    ],
)
def test_a_call_from_python_says_it_before_networks_open(
    clip: tuple[Path, Path],
    tmp_path: Path,
    device: Device,
    argument: str,
    value: object,
    message: str,
) -> None:
    given: dict[str, object] = {"video": clip[0], "audio": clip[1], "output": tmp_path / "out.mp4"}
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        with pytest.raises(LatentSyncError, match=message) as raised:
            lip_sync.sync(**(given | {argument: value}))  # type: ignore[arg-type]
        assert raised.value.usage
    assert not device.opened
    assert list(tmp_path.iterdir()) == []


def test_sound_that_breaks_off_late_is_found_before_engines_are_built(
    clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take minutes."""
    path = write_sound(tmp_path / "nan.wav", 3.0, codec="pcm_f32le")
    path.write_bytes(path.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")
    builder = compiling_provider(monkeypatch)
    options = RuntimeOptions(engine_cache=tmp_path / "cache")
    with LipSync(Bundle.load(small_bundle()), COMPILING, options) as lip_sync:
        with pytest.raises(InputError, match="NaN"):
            lip_sync.sync(clip[0], path, tmp_path / "out.mp4", QUICK)
        assert not builder.built
        lip_sync.sync(*clip, tmp_path / "out.mp4", QUICK)
        assert builder.built
        with pytest.raises(InputError, match=r"out\.mp4: exists already"):
            lip_sync.sync(*clip, tmp_path / "out.mp4", QUICK)


# Notices that decide whether a run is worth its time come before it, once, and are in its report.


@pytest.mark.parametrize(
    ("length", "extend", "video_s", "audio_s", "words"),
    [
        (None, "pingpong", 2, 4, "the picture goes back and forth"),
        ("audio", "loop", 2, 4, "the picture starts again"),
        ("longest", "loop", 4, 2, "the rest is silent"),
        ("audio", "loop", 4, 2, "the picture is cut"),
        ("video", "loop", 2, 4, "the sound is cut"),
        ("audio", "loop", 2, Fraction("2.4"), ""),
        ("audio", "loop", None, 4, ""),
    ],
)
def test_lengths(
    length: Length | None, extend: Extend, video_s: float | None, audio_s: float, words: str
) -> None:
    info = replace(
        picture_info(64, 64, rgb=False), duration_s=None if video_s is None else Fraction(video_s)
    )
    found = notices_of_length(info, Fraction(audio_s), SyncOptions(length=length, extend=extend))
    assert len(found) == bool(words)
    assert all(
        words in text and f"the video lasts {float(video_s or 0):g} s" in text for text in found
    )


@pytest.mark.integration
def test_what_decides_comes_before_the_work_and_is_in_the_report(tmp_path: Path) -> None:
    """Of a clip of 4 frames at 50 frames/s with longer speech, half of which is missing, after a
    run that failed.
    """
    lines: list[str] = []
    clip = write_face(tmp_path / "clip.mp4", 4, fps=50)
    sound = write_sound(tmp_path / "speech.wav", 1.2)
    sound.write_bytes(sound.read_bytes()[:-19_200])
    pictures = bytearray(clip.read_bytes())
    at = pictures.index(b"moov") - 40_000
    pictures[at : at + 50] = bytes(50)
    clip.write_bytes(pictures)
    still = write_face(tmp_path / "still.mp4", 1)

    def stop(_: Progress) -> None:
        raise RuntimeError("stopped")

    def begins(step: Progress) -> None:
        if step.stage == "opening networks":
            lines.append("opening")

    with LipSync.from_bundle(small_bundle(), "cpu", on_notice=lines.append) as lip_sync:
        with pytest.raises(RuntimeError, match="stopped"):
            lip_sync.sync(still, sound, tmp_path / "out.mp4", QUICK, on_progress=stop)
        lines.clear()
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", QUICK, on_progress=begins)
    before = lines[: lines.index("opening")]
    for words in (
        "the built-in model is",
        "the video has 50 frames/s, the output 25",
        "goes back and forth",
        "speech.wav: is cut off after 0.6 s",
    ):
        assert sum(words in line for line in before) == 1
        assert sum(words in notice for notice in report.notices) == 1
    assert any("clip.mp4: its picture is " in notice for notice in report.notices)
    assert tuple(line for line in lines if line != "opening") == report.notices
