"""`compare` as users run it, on small networks with random weights and a copy whose weights differ
a little.
"""

import json
import math
import re
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latentsync_trt.cli import main
from tests.clips import camera_frames, decoded, decoded_audio, write_clip, write_face, write_video
from tests.perturbed import perturbed_copy
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FRAMES = 5
RUN = ("--provider", "cpu", "--steps", "1", "--guidance", "1")


def compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle against a copy with noise, on one clip; the folder's name must not appear in
    the report.
    """
    folder = tmp_path_factory.mktemp("secret-folder")
    clip = write_clip(folder, FRAMES)
    noisy = perturbed_copy(small_bundle(), folder / "noisy", 0.8)
    out = folder / "out" / "report.html"
    result = compare(
        small_bundle(),
        noisy,
        "--video",
        clip[0],
        "--audio",
        clip[1],
        "--output",
        out,
        *RUN,
        "--json",
    )
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    (folder / "report.json").write_text(result.stdout)
    return folder


def test_json_and_page_have_bundles_settings_faces_and_lips_and_no_paths(folder: Path) -> None:
    found = json.loads((folder / "report.json").read_text())
    assert (found["kind"], found["format"]) == ("latentsync-trt compare", 7)
    assert (found["a"]["name"], found["b"]["name"]) == ("demo", "perturbed")
    assert found["settings"] == "--steps 1 --guidance 1.0"
    clip = found["clip"]
    assert (clip["name"], clip["frames"]) == ("face.mp4", FRAMES)
    assert list(clip["areas"]) == ["generated", "mouth"]
    for area in clip["areas"].values():
        assert 20 < area["psnr_db"] < 70
        assert 0.5 < area["ssim"] < 1
        assert area["frames"] == FRAMES
    assert [lips["verdict"] for lips in clip["lips"]] == ["cannot tell"] * 2
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    mouth = clip["areas"]["mouth"]
    assert f"<td>{mouth['psnr_db']:.1f} dB, SSIM {mouth['ssim']:.4f}" in page
    assert "perturbed (fp32) against demo (fp32)" in page
    assert "A: demo (fp32); B: perturbed (fp32)" in page
    assert 'src="data:image/png;base64,' in page
    assert 'src="report.mp4"' in page
    assert "<script" not in page
    for secret in ("secret-folder", str(Path.home())):
        assert secret not in page
        assert secret not in (folder / "report.json").read_text()


def test_picture_and_video_are_written_beside_the_report(folder: Path) -> None:
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "report.html",
        "report.mp4",
        "report.png",
    ]
    frames = decoded(out / "report.mp4")
    assert len(frames) == FRAMES
    assert frames[0].shape == (256, 4 * 256, 3)
    source, a, b, difference = np.split(frames[4].astype(int), 4, axis=1)
    assert np.abs(a[:80] - source[:80]).mean() < 3  # above the mouth, only compression differs
    assert np.abs(a[150:] - source[150:]).mean() > 10
    assert np.abs(b - a).mean() < difference.mean()
    samples, rate_hz = decoded_audio(out / "report.mp4")
    assert len(samples) / rate_hz == pytest.approx(FRAMES / 25, abs=0.1)


def test_two_finished_videos_are_compared(
    tmp_path: Path,
) -> None:
    source, speech = write_clip(tmp_path, 3)
    frames = np.stack([*islice(camera_frames(Fraction(3, 25)), 3)]).astype(np.int16)
    a, b = (
        write_video(
            tmp_path / name,
            (frames + levels).clip(0, 255).astype(np.uint8),
            codec="ffv1",
            pixel_format="bgr0",
        )
        for name, levels in (("first.mkv", -40), ("second.mkv", -38))
    )
    result = compare(
        a, b, "--video", source, "--audio", speech, "--output", tmp_path / "videos.html"
    )
    assert result.exit_code == 0, result.output
    assert "A: first.mkv\nB: second.mkv\n" in result.stdout
    (mouth_db,) = re.findall(r"mouth +([\d.]+) dB", result.stdout)
    # Two levels of 255 everywhere, but where a picture is black.
    assert float(mouth_db) == pytest.approx(20 * math.log10(255 / 2), abs=0.5)
    assert "encoders" in result.stderr
    page = (tmp_path / "videos.html").read_text("utf-8")
    assert "frames of the two files" in page
    assert "the same noise" not in page
    small = write_video(tmp_path / "small.mp4", (frame[:400, :400] for frame in decoded(a)))
    result = compare(
        source, small, "--video", source, "--audio", speech, "--output", tmp_path / "x.html"
    )
    assert result.exit_code == 1
    assert "480×480, 480×480, 400×400 px" in result.stderr
    assert not list(tmp_path.glob("x.*"))


def test_an_unusable_clip_fails_with_one_line_and_leaves_no_files(tmp_path: Path) -> None:
    face, speech = write_clip(tmp_path, 4)
    blank = write_face(tmp_path / "blank.mp4", 4, blank=range(4))
    out = tmp_path / "out" / "x.html"
    for clip, audio, reason in (
        (blank, speech, "blank.mp4: no face"),
        (face, face, "name the speech with --audio"),
    ):
        result = compare(
            small_bundle(),
            small_bundle(),
            "--video",
            clip,
            "--audio",
            audio,
            "--output",
            out,
            *RUN,
            "-q",
        )
        assert result.exit_code == 1, result.output
        assert reason in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
        assert list(out.parent.iterdir()) == []
    for words, reason in (
        (
            (small_bundle(), "nowhere", "--video", face, "--audio", speech),
            "nowhere: no bundle there",
        ),
        ((tmp_path / "gone.mp4", face, "--video", face), f"{tmp_path / 'gone.mp4'}: no such file"),
        ((face, blank), "--video"),
    ):
        result = compare(*words, "--output", out)
        assert (result.exit_code, reason in result.stderr) == (2, True), result.output
