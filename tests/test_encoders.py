"""Which encoder writes: named ones are demands, and the GPU's is tried before it is trusted."""

from pathlib import Path
from typing import cast

import av
import pytest

from latentsync_trt import LipSync
from latentsync_trt.config import Encoder, SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.media import encoders, writer
from latentsync_trt.media.encoders import H264, h264_encoder
from tests.clips import write_face, write_sound
from tests.small import small_bundle

SIZE = 320, 240


def test_x264_is_told_its_crf() -> None:
    assert h264_encoder("x264", 18, *SIZE) == H264("libx264", {"crf": "18", "preset": "veryfast"})


@pytest.mark.parametrize(("problem", "codec"), [(None, "h264_nvenc"), ("no GPU", "libx264")])
def test_auto_takes_the_gpus_encoder_where_it_opens(
    problem: str | None, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_problem_of", lambda *_: problem)
    assert h264_encoder("auto", 18, *SIZE).codec == codec


def test_a_demanded_encoder_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "_problem_of", lambda *_: "no GPU")
    with pytest.raises(OutputError, match="encoder does not open: no GPU; use --encoder x264"):
        h264_encoder("nvenc", 18, *SIZE)


def test_an_encoder_is_tried_on_a_picture() -> None:
    assert encoders._problem_of(H264("libx264", {"crf": "18"}), *SIZE) is None
    assert encoders._problem_of(H264("libx264", {"preset": "no such"}), *SIZE)
    assert encoders._problem_of(H264("no_such_encoder", {}), *SIZE)


@pytest.mark.parametrize("wrong", [{"preset": "no such"}, {"rc": "no such"}, {"qp": "99"}])
def test_what_the_gpus_encoder_is_asked_for_exists(wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg reads the options before it looks for a GPU, and complains of a value in other words."""
    asked: list[H264] = []
    monkeypatch.setattr(encoders, "_problem_of", lambda encoder, *_: asked.append(encoder))
    h264_encoder("nvenc", 0, *SIZE)
    monkeypatch.undo()
    problem = encoders._problem_of(asked[0], *SIZE)
    assert problem != encoders._problem_of(H264("h264_nvenc", asked[0].options | wrong), *SIZE)
    assert problem not in ("Invalid argument", "Numerical result out of range")


def test_the_option_reaches_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the GPU's encoder leaves its name in the file."""
    monkeypatch.setattr(
        writer, "h264_encoder", lambda encoder, *_: H264("mpeg4" if encoder == "nvenc" else "libx264", {})
    )
    found = []
    for encoder in ("x264", "nvenc"):
        clip, sound = write_face(tmp_path / "face.mp4", 3), write_sound(tmp_path / "speech.wav", 0.12)
        options = SyncOptions(steps=1, encoder=cast(Encoder, encoder))
        with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
            lip_sync.sync(clip, sound, tmp_path / "out.mp4", options)
        with av.open(str(tmp_path / "out.mp4")) as container:
            found.append(container.streams.video[0].codec_context.name)
    assert found == ["h264", "mpeg4"]
