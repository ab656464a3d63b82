"""`compare` as users run it, on small networks with random weights and a copy whose weights differ a little."""

import json
import math
import re
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.media.demo_clip import camera_frames
from tests.clips import decoded, decoded_audio, write_clip, write_face, write_video
from tests.perturbed import perturbed_copy
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES = 8

NOISE = 0.1
"""Of the perturbed bundle's weights."""

RUN = ("--provider", "cpu", "--steps", "2", "--cache-interval", "1")


def compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle against a copy with noise, on one clip; the folder's name must not appear in the report."""
    folder = tmp_path_factory.mktemp("secret-folder")
    clip = write_clip(folder, FRAMES)
    noisy = perturbed_copy(small_bundle(), folder / "noisy", NOISE)
    out = folder / "out" / "report.html"
    result = compare(small_bundle(), noisy, "--video", clip[0], "--audio", clip[1], "--output", out, *RUN, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    (folder / "report.json").write_text(result.stdout)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


def test_json_has_bundles_settings_faces_and_lips(found: dict[str, Any]) -> None:
    assert (found["kind"], found["format"]) == ("latentsync-trt compare", 7)
    assert (found["a"]["name"], found["b"]["name"]) == ("demo", "perturbed")
    assert found["a"]["size_bytes"] == sum(entry.bytes for entry in Bundle.load(small_bundle()).manifest.files.values())
    assert any("the built-in model is small" in note for note in found["notes"])
    assert found["settings"] == "--steps 2 --cache-interval 1"
    clip = found["clip"]
    assert (clip["name"], clip["frames"]) == ("face.mp4", FRAMES)
    assert list(clip["areas"]) == ["generated", "mouth"]
    for area in clip["areas"].values():
        assert 20 < area["psnr_db"] < 70
        assert 0.5 < area["ssim"] < 1
        assert area["frames"] == FRAMES
    assert [lips["verdict"] for lips in clip["lips"]] == ["cannot tell"] * 2


def test_picture_and_video_are_written_beside_the_report(folder: Path) -> None:
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.mp4", "report.png"]
    frames = decoded(out / "report.mp4")
    assert len(frames) == FRAMES
    assert frames[0].shape == (256, 4 * 256, 3)
    source, a, b, difference = np.split(frames[4].astype(int), 4, axis=1)
    assert np.abs(a[:80] - source[:80]).mean() < 3  # above the mouth, only compression differs
    assert np.abs(a[150:] - source[150:]).mean() > 10
    assert np.abs(b - a).mean() < difference.mean()
    samples, rate_hz = decoded_audio(out / "report.mp4")
    assert len(samples) / rate_hz == pytest.approx(FRAMES / 25, abs=0.1)


def test_the_page_shows_the_numbers_and_contains_no_paths(folder: Path, found: dict[str, Any]) -> None:
    content = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "perturbed (fp32) against demo (fp32)" in content
    mouth = found["clip"]["areas"]["mouth"]
    (shown,) = re.findall(r"<td>mouth</td><td></td><td></td><td>([\d.]+) dB, SSIM ([\d.]+)", content)
    assert [*map(float, shown)] == [pytest.approx(mouth["psnr_db"], abs=0.06), pytest.approx(mouth["ssim"], abs=1e-4)]
    for part in (
        "<td>cannot tell whether lips follow",
        'src="data:image/png;base64,',
        'src="report.mp4"',
        "gap between the lips",
        "loudness of",
        "time, s",
    ):
        assert part in content
    assert "<script" not in content
    for secret in ("secret-folder", str(Path.home())):
        assert secret not in content
        assert secret not in (folder / "report.json").read_text()


def test_two_finished_videos_are_compared(tmp_path: Path) -> None:
    source, speech = write_clip(tmp_path, 6)
    frames = list(islice(camera_frames(Fraction(6, 25)), 6))
    a, b = (
        write_video(
            tmp_path / f"{name}.mkv",
            ((frame.astype(np.int16) + levels).clip(0, 255).astype(np.uint8) for frame in frames),
            codec="ffv1",
            pixel_format="bgr0",
            options={},
        )
        for name, levels in (("first", -40), ("second", -38))
    )
    result = compare(a, b, "--video", source, "--audio", speech, "--output", tmp_path / "videos.html", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["a"]["name"], found["b"]["name"]) == ("first.mkv", "second.mkv")
    clip = found["clip"]
    # Two levels of 255 everywhere, but where a picture is black.
    assert clip["areas"]["mouth"]["psnr_db"] == pytest.approx(20 * math.log10(255 / 2), abs=0.5)
    assert any("encoders" in note for note in found["notes"])
    small = write_video(tmp_path / "small.mp4", (frame[:400, :400] for frame in decoded(a)))
    result = compare(source, small, "--video", source, "--audio", speech, "--output", tmp_path / "x.html")
    assert result.exit_code == 1
    assert "pictures of 480×480, 480×480, 400×400 px, source first; give videos of one size" in result.stderr
    assert not list(tmp_path.glob("x.*"))


def test_an_unusable_clip_fails_with_one_line_and_leaves_no_files(tmp_path: Path) -> None:
    face, speech = write_clip(tmp_path, 4)
    blank = write_face(tmp_path / "blank.mp4", 4, blank=range(4))
    out = tmp_path / "out" / "x.html"
    for clip, audio, reason in (
        (blank, speech, "blank.mp4: no face in any of the 4 frames searched"),
        (face, face, "name the speech with --audio"),
    ):
        result = compare(small_bundle(), small_bundle(), "--video", clip, "--audio", audio, "--output", out, *RUN, "-q")
        assert result.exit_code == 1, result.output
        assert reason in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
        assert list(out.parent.iterdir()) == []
    missing = compare(small_bundle(), "nowhere", "--video", face, "--audio", speech, "--output", out)
    assert "nowhere: no bundle there" in missing.stderr
    missing = compare(tmp_path / "gone.mp4", face, "--video", face, "--output", out)
    assert (missing.exit_code, f"{tmp_path / 'gone.mp4'}: no such file" in missing.stderr) == (2, True)
    unknown = compare(face, blank, "--output", out)
    assert (unknown.exit_code, "--video" in unknown.stderr) == (2, True)


def test_names_of_earlier_versions_are_understood_and_not_shown(tmp_path: Path) -> None:
    face, speech = write_clip(tmp_path, 4)
    out = tmp_path / "old.html"
    result = compare(face, face, "--clip", face, "--audio", speech, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"{out}: all of it" in result.stdout
    for side in "AB":  # which of both is being measured
        assert f"] {side}: measuring" in result.stderr
    shown = compare("--help").stdout
    assert "--output" in shown
    assert not re.search(r"--(out|clip)\b", shown)
