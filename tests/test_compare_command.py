"""`compare` as a user starts it, on small networks with random weights and a copy whose weights are a little off."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latentsync_trt.bench.quality.run import Audience, Plan, compare_bundles
from latentsync_trt.bench.quality.subjects import Subject
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.cli import main
from latentsync_trt.errors import EngineBuildError, InputError
from latentsync_trt.media.demo_clip import camera_frames
from latentsync_trt.types import UInt8Array
from tests.clips import decoded, heard, write_clip, write_face, write_sound, write_video
from tests.perturbed import perturbed_copy
from tests.small import small_bundle
from tests.sounds import write_samples

FRAMES = 20
"""A window, and four frames more."""

NOISE = 0.01

RUN = ("--provider", "cpu", "--steps", "2", "--cache-interval", "2")


def compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip in a folder whose name nobody is to read, a bundle that is nearly the small one, and their report."""
    folder = tmp_path_factory.mktemp("secret-folder")
    clip = write_clip(folder, FRAMES)
    noisy = perturbed_copy(small_bundle(), folder / "noisy", NOISE)
    out = folder / "out" / "report.html"
    result = compare(small_bundle(), noisy, "--clip", clip[0], "--audio", clip[1], "--out", out, *RUN, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    (folder / "report.json").write_text(result.stdout)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


@pytest.mark.slow
def test_both_sides_are_named(found: dict[str, Any]) -> None:
    assert (found["kind"], found["format"]) == ("latentsync-trt compare", 1)
    assert (found["a"]["name"], found["b"]["name"]) == ("demo", "perturbed")
    assert found["a"]["size_bytes"] == sum(entry.bytes for entry in Bundle.load(small_bundle()).manifest.files.values())
    assert found["a"]["sha256"] != found["b"]["sha256"]
    assert found["settings"] == "2 ddim steps, one in 2 full, guidance 1.5, seed 1247"


@pytest.mark.slow
def test_faces_lips_and_flicker_of_the_clip(found: dict[str, Any]) -> None:
    (clip,) = found["clips"]
    assert (clip["name"], clip["frames"], clip["frames_with_face"]) == ("face.mp4", FRAMES, FRAMES)
    areas = {area["area"]: area for area in clip["areas"]}
    assert list(areas) == ["face", "generated", "mouth"]
    for area in areas.values():
        assert 20 < area["psnr_db"] < 70
        assert 0.5 < area["ssim"] < 1
        assert area["frames"] == 2 * 16  # the second window shows twelve frames of the first again
    assert areas["generated"]["psnr_db"] < areas["face"]["psnr_db"]
    assert found["areas"] == [{**area, "psnr_db": pytest.approx(area["psnr_db"], abs=1e-3)} for area in areas.values()]
    assert clip["lips"]["a"]["known"] is False
    assert clip["lips"]["a"]["closures"] is None
    assert -1 <= clip["lips"]["b"]["opening"] <= 1
    assert len(clip["curves"]["a"]) == len(clip["curves"]["b"]) == len(clip["curves"]["silent"]) == FRAMES
    flicker = clip["flicker"]
    assert 0 < flicker["difference"] < flicker["b"]
    assert flicker["source"] < flicker["a"]


@pytest.mark.slow
def test_steps_and_layers_of_the_first_window(found: dict[str, Any]) -> None:
    full, cached = found["steps"]
    assert (full["full"], cached["full"]) == (True, False)
    assert full["guided"]
    assert cached["guided"]
    assert full["timestep"] > cached["timestep"]
    assert 5 < full["alone_db"] < 60
    assert cached["alone_db"] is None
    assert 5 < cached["so_far_db"] < 60
    layers = found["layers"]
    assert {layer["kind"] for layer in layers} == {"Conv", "MatMul"}
    assert len({layer["layer"] for layer in layers}) == len(layers) > 200
    first = layers[0]
    assert first["layer"] == "unet.time_embedding.linear_1"
    # Its inputs are equal, so only its weights' own noise is in it.
    assert first["worst_db"] == pytest.approx(-20 * math.log10(NOISE), abs=2)
    assert all(layer["worst_db"] <= layer["median_db"] for layer in layers)


@pytest.mark.slow
def test_pictures_and_video_lie_beside_the_report(folder: Path) -> None:
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.mp4", "report.png"]
    frames = decoded(out / "report.mp4")
    assert len(frames) == FRAMES
    height, width = frames[0].shape[:2]
    assert width > 3 * height
    samples, rate_hz = heard(out / "report.mp4")
    assert len(samples) / rate_hz == pytest.approx(FRAMES / 25, abs=0.1)


@pytest.mark.slow
def test_the_page_needs_nothing_but_the_video_and_names_nobody(folder: Path) -> None:
    content = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "perturbed (fp32) against demo (fp32)" in content
    assert 'src="data:image/png;base64,' in content
    assert 'src="report.mp4"' in content
    assert content.count("<svg") == 3
    assert "://" not in content.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in content
    for secret in ("secret-folder", str(Path.home())):
        assert secret not in content
        assert secret not in (folder / "report.json").read_text()


@pytest.mark.slow
def test_a_bundle_beside_itself_is_equal(folder: Path) -> None:
    result = compare(
        small_bundle(), small_bundle(), "--clip", folder / "face.mp4", "--audio", folder / "speech.wav",
        "--out", folder / "same" / "same.html", *RUN,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for line in (
        "A: small_bundle (fp32)",
        "B: small_bundle (fp32)",
        "mouth equal, SSIM 1.0000",
        "lips of B follow A's, r 1.000, 0.0000 apart",
        "worst step by itself equal (step 0)",
        "latents after the last step equal",
    ):
        assert line in lines
    assert any(line.startswith("worst layer equal") for line in lines)
    assert any(line.startswith("flicker") and line.endswith(" 0 in the difference") for line in lines)
    assert "untrained" in result.stderr
    assert lines[-1].endswith("same.html: all of it, with plots")
    assert "What is equal is not drawn" in (folder / "same" / "same.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_several_clips_have_numbered_files_and_a_sum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise EngineBuildError(f"{folder / 'step.onnx'}: no kernel for it")

    monkeypatch.setattr("latentsync_trt.bench.quality.run.layer_noise", refuse)
    clips = ("--clip", folder / "face.mp4", "--audio", folder / "speech.wav") * 2
    out = folder / "two" / "both.html"
    result = compare(small_bundle(), folder / "noisy", *clips, "--out", out, *RUN)
    assert result.exit_code == 0, result.output
    names = ["both-1.mp4", "both-1.png", "both-2.mp4", "both-2.png", "both.html"]
    assert sorted(path.name for path in out.parent.iterdir()) == names
    page = out.read_text(encoding="utf-8")
    # Each clip's, and the mean of both.
    assert page.count("opening follows loudness") == 2
    assert page.count("opening follows the speech") == result.stdout.count("opening follows the speech") == 1
    assert "note: layers not measured: step.onnx: no kernel for it" in result.stderr


def off_by(frames: Iterator[UInt8Array], levels: int) -> Iterator[UInt8Array]:
    for frame in frames:
        yield (frame.astype(np.int16) + levels).clip(0, 255).astype(np.uint8)


def test_two_finished_videos_are_compared(tmp_path: Path) -> None:
    source, speech = write_clip(tmp_path, 6)
    lossless = {"codec": "ffv1", "pixel_format": "bgr0", "options": {}}
    a, b = (
        write_video(tmp_path / f"{name}.mkv", off_by(islice(camera_frames(Fraction(6, 25)), 6), levels), **lossless)
        for name, levels in (("first", -40), ("second", -38))
    )
    out = tmp_path / "videos.html"
    result = compare(a, b, "--clip", source, "--audio", speech, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["a"]["name"], found["b"]["name"]) == ("first.mkv", "second.mkv")
    (clip,) = found["clips"]
    mouth = clip["areas"][2]
    # Two levels of 255 everywhere, but where a picture is black.
    assert mouth["psnr_db"] == pytest.approx(20 * math.log10(255 / 2), abs=0.5)
    assert clip["flicker"]["difference"] < 0.5
    assert found["steps"] == found["layers"] == []
    assert "no bundles, so steps and layers are not measured" in found["notes"]
    assert "Noise by" not in out.read_text(encoding="utf-8")


def test_videos_of_other_sizes_are_refused(tmp_path: Path) -> None:
    source, speech = write_clip(tmp_path, 4)
    small = write_video(
        tmp_path / "small.mp4", (frame[:400, :400] for frame in islice(camera_frames(Fraction(4, 25)), 4))
    )
    result = compare(source, small, "--clip", source, "--audio", speech, "--out", tmp_path / "x.html")
    assert result.exit_code == 1
    assert "pictures of 480×480, 480×480, 400×400 px; give videos of one size" in result.stderr
    assert not list(tmp_path.glob("x.*"))


def test_bundles_of_other_resolutions_are_refused(tmp_path: Path) -> None:
    bundle = Bundle.load(small_bundle())
    larger = replace(bundle, manifest=replace(bundle.manifest, resolution_px=256, name="larger"))
    plan = Plan(tmp_path / "x.html")
    with pytest.raises(InputError, match="demo makes windows of 16 faces of 128 px, larger of 16 faces of 256 px"):
        compare_bundles(bundle, larger, [], plan, Audience(print))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("demo", "demo", "--out", "report.json"), "a name that ends in .html is needed"),
        (("demo", __file__), "give two bundles or two videos"),
        ((__file__, __file__, "--clip", "a.mp4", "--clip", "b.mp4"), "on the one --clip that both were made of"),
        (("demo", "demo", "--clip", "a.mp4", "--audio", "a.wav", "--audio", "b.wav"), "--audio is given 2 times"),
        (("demo", "demo", "--mouth", "a.csv"), "the built-in sentence has its own"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = compare(*arguments)
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_used_fails_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    face, speech = write_clip(tmp_path, 4)
    blank = write_face(tmp_path / "blank.mp4", 4, blank=range(4))
    silence = write_samples(tmp_path / "silence.wav", np.zeros(16_000, np.float32), 16_000)
    out = tmp_path / "out" / "x.html"
    for clip, audio, reason in (
        (blank, speech, "blank.mp4: no face in any of its 4 frames"),
        (face, silence, "silence.wav: silent"),
        (face, face, "name the speech with --audio"),
        (face, write_sound(tmp_path / "short.wav", 0.08), "face.mp4: 2 frames, of which too few show a face"),
    ):
        result = compare(small_bundle(), small_bundle(), "--clip", clip, "--audio", audio, "--out", out, *RUN, "-q")
        assert result.exit_code == 1, result.output
        assert reason in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
        assert list(out.parent.iterdir()) == []
    missing = compare(small_bundle(), "nowhere", "--clip", face, "--audio", speech, "--out", out)
    assert "nowhere: no bundle there" in missing.stderr


def test_layers_can_be_left_out(tmp_path: Path) -> None:
    bundle = Bundle.load(small_bundle())
    subject = Subject(*write_clip(tmp_path, 4))
    told: list[str] = []
    plan = Plan(tmp_path / "x.html", "cpu", layers=False)
    plan = replace(plan, sync=replace(plan.sync, steps=1, guidance=1.0))
    found = compare_bundles(bundle, bundle, [subject], plan, Audience(told.append))
    assert told == ["A: demo", "B: demo"]
    assert found.layers == ()
    assert "layers were left out" in found.notes
    assert [step.guided for step in found.steps] == [False]
