"""`--preview`: the first seconds with speech, written as a clip of their own."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from click.testing import CliRunner

from latentsync_trt import LipSync
from latentsync_trt.cli import main
from latentsync_trt.media.demo_clip import SPEECH
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import SyncReport
from tests.clips import decoded, decoded_audio, half, read_audio, write_sound
from tests.people import first_person
from tests.small import small_bundle
from tests.sounds import write_samples
from tests.test_sync_choices import MOUTH, QUICK

RATE_HZ = 16000
BEFORE_S = 0.64
"""Silence before the sentence: as long as a window."""

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """clip.mkv: 35 frames; late.wav: 1.4 s, with speech from about 0.7 s on; none.wav: noise."""
    made = tmp_path_factory.mktemp("preview")
    sentence = read_audio(SPEECH, RATE_HZ)
    late = np.concatenate([np.zeros(round(BEFORE_S * RATE_HZ), np.float32), sentence])
    write_samples(made / "late.wav", late[: round(1.4 * RATE_HZ)], RATE_HZ)
    write_sound(made / "none.wav", 1.4)
    write_pictures(
        made / "clip.mkv", half(first_person(35)), lossless=True, audio=made / "late.wav"
    )
    return made


def run(
    lip_sync: LipSync, folder: Path, output: Path, audio: str = "late.wav", **fields: Any
) -> SyncReport:
    return lip_sync.sync(
        folder / "clip.mkv", folder / audio, output, replace(QUICK, silence="closed", **fields)
    )


def times_of(path: Path) -> list[Fraction]:
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


@pytest.mark.parametrize("audio", ["late.wav", "clip.mkv"])
def test_pictures_and_sound_from_the_first_speech_on_are_those_of_the_whole_run(
    lip_sync: LipSync, folder: Path, tmp_path: Path, audio: str
) -> None:
    report = run(lip_sync, folder, tmp_path / "part.mkv", audio, preview_s=0.4)
    (notice,) = (text for text in report.notices if "--preview" in text)
    begin_s = float(notice.removesuffix(" s (--preview)").rpartition(" ")[2])
    first = round(begin_s * 25)
    assert BEFORE_S < begin_s < BEFORE_S + 0.5
    assert first == pytest.approx(begin_s * 25)
    assert (report.frames, report.frames_with_face, report.duration_s) == (10, 10, 0.4)
    assert report.picture_delay_s == pytest.approx(-begin_s)
    assert times_of(tmp_path / "part.mkv") == [Fraction(index, 25) for index in range(10)]
    own = np.stack(decoded(folder / "clip.mkv")[first : first + 10])
    new = np.stack(decoded(tmp_path / "part.mkv"))
    assert (own[(slice(None), *MOUTH)] != new[(slice(None), *MOUTH)]).any(axis=(1, 2, 3)).all()
    assert np.array_equal(own[:, :60], new[:, :60])  # hair and background
    heard, rate_hz = decoded_audio(tmp_path / "part.mkv")
    spoken = read_audio(folder / "late.wav")[round(begin_s * RATE_HZ) :][: len(heard)]
    assert (len(heard), rate_hz) == (pytest.approx(0.4 * RATE_HZ, abs=RATE_HZ // 25), RATE_HZ)
    assert np.abs(heard[200:-200] - spoken[200:-200]).max() < 1e-3


def test_frames_of_another_rate_begin_with_one_of_the_whole_run(
    lip_sync: LipSync, folder: Path, tmp_path: Path
) -> None:
    video = tmp_path / "slow.mkv"
    fps = Fraction(30000, 1001)
    write_pictures(video, half(first_person(40)), lossless=True, fps=fps)
    lip_sync.sync(video, folder / "late.wav", tmp_path / "a.mkv", replace(QUICK, preview_s=0.3))
    sources = [frame[:60].tobytes() for frame in decoded(video)]
    first = sources.index(decoded(tmp_path / "a.mkv")[0][:60].tobytes())
    written = [frame[:60].tobytes() for frame in decoded(tmp_path / "a.mkv")]
    assert written == sources[first : first + 9]
    assert np.allclose(
        [float(time_s) for time_s in times_of(tmp_path / "a.mkv")],
        np.arange(9) / float(fps),
        atol=1e-3,
    )


def test_without_speech_it_begins_at_the_beginning_and_says_so(
    lip_sync: LipSync, folder: Path, tmp_path: Path
) -> None:
    report = run(lip_sync, folder, tmp_path / "out.mkv", "none.wav", preview_s=0.4)
    assert report.frames == 10
    assert any("without speech, from 0 s" in notice for notice in report.notices)


def test_the_command_names_its_file_and_takes_3_s_by_default(folder: Path, tmp_path: Path) -> None:
    video = tmp_path / "clip.mkv"
    video.write_bytes((folder / "clip.mkv").read_bytes())
    words = [
        "sync",
        str(video),
        str(folder / "late.wav"),
        "--bundle",
        small_bundle(),
        "--provider",
        "cpu",
    ]
    result = CliRunner().invoke(main, [*words, "--steps", "1", "--guidance", "1", "--preview"])
    assert (result.exit_code, (tmp_path / "clip-preview.mp4").is_file()) == (0, True), result.output
    assert "at most 3 s" in result.stderr
