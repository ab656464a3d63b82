"""The choice of the H.264 encoder: naming one disables fallback, and NVENC is tried before it is used."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import av
import pytest

from latentsync_trt import LipSync
from latentsync_trt.config import Encoder, SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.media import codecs, writer
from latentsync_trt.media.codecs import H264, h264_encoder
from latentsync_trt.sync.inputs import check_inputs
from tests.clips import numbered, write_face, write_sound, write_video
from tests.small import small_bundle

SIZE = 320, 240


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    codecs._problem_of_nvenc.cache_clear()
    yield
    codecs._problem_of_nvenc.cache_clear()


def test_x264_gets_crf_and_preset() -> None:
    assert h264_encoder("x264", 18, *SIZE) == H264("libx264", {"crf": "18", "preset": "veryfast"})


@pytest.mark.parametrize(("problem", "codec"), [(None, "h264_nvenc"), ("no GPU", "libx264")])
def test_auto_takes_nvenc_if_it_opens(problem: str | None, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "problem_of", lambda *_: problem)
    assert h264_encoder("auto", 18, *SIZE).codec == codec


def test_nvenc_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(codecs, "problem_of", lambda *given: tried.append(given))
    codecs.check_encoder("auto", *SIZE, lossless=False)
    assert h264_encoder("auto", 18, *SIZE).options["qp"] == "18"
    assert len(tried) == 1


def test_naming_an_encoder_that_does_not_open_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "problem_of", lambda *_: "no GPU")
    with pytest.raises(OutputError, match="encoder does not open: no GPU; use --encoder x264"):
        h264_encoder("nvenc", 18, *SIZE)


def test_a_size_that_nvenc_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "problem_of", lambda _, width_px, __: "Invalid argument" if width_px > 4096 else None)
    with pytest.raises(OutputError, match=r"does not open for pictures of 5000×240, .* use --encoder x264"):
        h264_encoder("nvenc", 18, 5000, 240)
    assert h264_encoder("auto", 18, 5000, 240).codec == "libx264"


@pytest.mark.parametrize("size", [(16386, 2), (2, 16386)])
def test_sides_that_x264_refuses_are_named(size: tuple[int, int]) -> None:
    largest = tuple(min(side, 16384) for side in size)
    assert codecs.problem_of(h264_encoder("x264", 18, *largest), *largest) is None
    assert codecs.problem_of(H264("libx264", {}), *size)
    with pytest.raises(OutputError, match=r"16384 per side; scale the video down"):
        codecs.check_encoder("x264", *size, lossless=False)
    codecs.check_encoder("x264", *size, lossless=True)


def test_an_encoder_that_does_not_open_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "problem_of", lambda *_: "no GPU")
    clip, sound = write_video(tmp_path / "clip.mp4", numbered(2)), write_sound(tmp_path / "speech.wav", 0.08)
    inputs = clip, sound, tmp_path / "out.mkv"
    with pytest.raises(OutputError, match="no GPU"):
        check_inputs(*inputs, SyncOptions(encoder="nvenc"))
    check_inputs(*inputs, SyncOptions(encoder="nvenc", lossless=True))
    check_inputs(*inputs, SyncOptions(encoder="auto"))


def test_an_ffmpeg_without_x264_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", {"ffv1"})
    with pytest.raises(OutputError, match="has no libx264; install"):
        codecs.check_encoder("x264", *SIZE, lossless=False)
    codecs.check_encoder("x264", *SIZE, lossless=True)


def test_an_encoder_is_tried_on_a_picture() -> None:
    assert codecs.problem_of(H264("libx264", {"crf": "18"}), *SIZE) is None
    assert codecs.problem_of(H264("libx264", {"preset": "no such"}), *SIZE)
    assert codecs.problem_of(H264("no_such_encoder", {}), *SIZE)


@pytest.mark.parametrize("wrong", [{"preset": "no such"}, {"rc": "no such"}, {"qp": "99"}])
def test_the_options_of_nvenc_exist(wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg checks the options before it looks for a GPU, and reports a wrong one differently."""
    asked: list[H264] = []
    monkeypatch.setattr(codecs, "problem_of", lambda encoder, *_: asked.append(encoder))
    h264_encoder("nvenc", 0, *SIZE)
    monkeypatch.undo()
    problem = codecs.problem_of(asked[0], *SIZE)
    assert problem != codecs.problem_of(H264("h264_nvenc", asked[0].options | wrong), *SIZE)
    assert problem not in ("Invalid argument", "Numerical result out of range")


@pytest.mark.integration
def test_the_option_reaches_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for NVENC leaves its codec in the file."""
    monkeypatch.setattr(codecs, "problem_of", lambda *_: None)
    monkeypatch.setattr(
        writer, "h264_encoder", lambda encoder, *_: H264("mpeg4" if encoder == "nvenc" else "libx264", {})
    )
    clip, sound = write_face(tmp_path / "face.mp4", 2), write_sound(tmp_path / "speech.wav", 0.08)
    found = []
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        for encoder in ("x264", "nvenc"):
            options = SyncOptions(steps=1, guidance=1.0, encoder=cast(Encoder, encoder))
            lip_sync.sync(clip, sound, tmp_path / "out.mp4", options)
            with av.open(str(tmp_path / "out.mp4")) as container:
                found.append(container.streams.video[0].codec_context.name)
    assert found == ["h264", "mpeg4"]
