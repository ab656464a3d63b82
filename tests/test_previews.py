"""What browsers can play, and the copies of what they cannot."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.demo_clip import camera_frames, portrait
from latentsync_trt.media.preview import plays, write_preview
from latentsync_trt.media.reader import probe
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import check_media
from latentsync_trt.web.jobs import look_at
from tests.clips import decoded
from tests.heif import write_heif

FRAMES = 10
KINDS = {
    "hevc.mp4": ("libx265", "yuv420p", "aac"),
    "ten bits.mp4": ("libx264", "yuv420p10le", "aac"),
    "old.avi": ("mpeg4", "yuv420p", "mp3"),
    "edit.mov": ("prores_ks", "yuv422p10le", "pcm_s16le"),
    "container.mkv": ("libx264", "yuv420p", "aac"),
}


def write_kind(path: Path, codec: str, pixel_format: str, sound: str) -> Path:
    """A clip with a face and a tone, in another format than browsers play."""
    with av.open(str(path), "w") as target:
        options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        picture = target.add_stream(codec, rate=25, options=options)
        picture.width, picture.height, picture.pix_fmt = 480, 480, pixel_format
        voice = target.add_stream(sound, rate=44100, layout="mono")
        for rgb in camera_frames(Fraction(FRAMES, 25)):
            target.mux(picture.encode(av.VideoFrame.from_ndarray(rgb).reformat(format=pixel_format)))
        tone = (8000 * np.sin(np.arange(44100 * FRAMES // 25) / 16)).astype(np.int16)
        samples = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
        samples.sample_rate = 44100
        for stream, frame in ((voice, samples), (picture, None), (voice, None)):
            target.mux(stream.encode(frame))
    return path


@pytest.mark.parametrize("name", KINDS)
def test_other_formats(name: str, tmp_path: Path) -> None:
    clip, copy = write_kind(tmp_path / name, *KINDS[name]), tmp_path / "copy.mp4"
    assert not plays(clip)
    write_preview(clip, copy)
    assert plays(copy)
    assert len(decoded(copy)) == FRAMES
    with av.open(str(copy)) as opened:
        sound = "mp3" if name == "old.avi" else "aac"
        assert [stream.codec_context.codec.canonical_name for stream in opened.streams] == ["h264", sound]
    first, found = decoded(clip)[0].astype(int), decoded(copy)[0]
    assert np.abs(first - found).mean() < 6


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.heic", "photo.avif"])
def test_a_photo(name: str, tmp_path: Path) -> None:
    rgb = portrait()[:121, :151]
    if name.endswith("heic"):
        write_heif(tmp_path / name, rgb, 64)
    else:
        Image.fromarray(rgb).save(tmp_path / name)
    assert not plays(tmp_path / name)
    write_preview(tmp_path / name, tmp_path / "copy.mp4")
    assert plays(tmp_path / "copy.mp4")
    assert probe(tmp_path / "copy.mp4").height_px in (121, 122)


@pytest.mark.parametrize(("tag", "copied"), [(b"mp4a", True), (b"avc1", False)])
def test_a_stream_in_an_unknown_codec_breaks_no_page(tmp_path: Path, tag: bytes, copied: bool) -> None:
    """Of two sound tracks the second, as spatial sound of phones; or the picture."""
    clip, other = tmp_path / "clip.mp4", tmp_path / "other.avi"
    with av.open(str(clip), "w") as target, av.open(str(write_kind(other, *KINDS["old.avi"][:2], "aac"))) as source:
        picture = target.add_stream("libx264", rate=25)
        picture.width, picture.height, picture.pix_fmt = 480, 480, "yuv420p"
        tracks = [target.add_stream_from_template(source.streams.audio[0]) for _ in range(2)]
        for rgb in camera_frames(Fraction(FRAMES, 25)):
            target.mux(picture.encode(av.VideoFrame.from_ndarray(rgb)))
        target.mux(picture.encode(None))
        for packet in source.demux(audio=0):
            for track in tracks if packet.size else ():
                packet.stream = track
                target.mux(packet)
    content = clip.read_bytes()
    at = content.rindex(tag)
    clip.write_bytes(content[:at] + content[at:].replace(tag, b"zzzz").replace(b"esds", b"free"))
    assert not plays(clip)
    check_media("video", clip, Limits())
    told, copy = list[Any](), tmp_path / "copy.mp4"
    if copied:
        look_at(clip, copy, Limits(), told.append)
        assert copy in told
        assert plays(copy)
    else:
        with pytest.raises(LatentSyncError):
            look_at(clip, copy, Limits(), told.append)
        assert not copy.exists()
