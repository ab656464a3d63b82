"""What browsers can play, and the copies of what they cannot."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.media.previews import plays, write_preview
from latentsync_trt.media.reader import probe
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import check_media
from latentsync_trt.web.uploads import analyze_upload
from tests.clips import camera_frames, decoded
from tests.heif import write_heif

FRAMES = 10
KINDS = {
    "hevc.mp4": ("libx265", "yuv420p", "aac"),
    "old.avi": ("mpeg4", "yuv420p", "mp3"),
    "edit.mov": ("prores_ks", "yuv422p10le", "pcm_s16le"),
}


def write_kind(path: Path, codec: str, pixel_format: str, sound: str) -> Path:
    """A clip with a face and a tone, in another format than browsers play."""
    with av.open(str(path), "w") as target:
        options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        picture = target.add_stream(codec, rate=25, options=options)
        picture.width = 480
        picture.height = 480
        picture.pix_fmt = pixel_format
        voice = target.add_stream(sound, rate=44100, layout="mono")
        for rgb in camera_frames(Fraction(FRAMES, 25)):
            target.mux(
                picture.encode(av.VideoFrame.from_ndarray(rgb).reformat(format=pixel_format))
            )
        tone = (8000 * np.sin(np.arange(44100 * FRAMES // 25) / 16)).astype(np.int16)
        samples = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
        samples.sample_rate = 44100
        for stream, frame in ((voice, samples), (picture, None), (voice, None)):
            target.mux(stream.encode(frame))
    return path


@pytest.mark.parametrize("name", KINDS)
def test_other_formats(name: str, tmp_path: Path) -> None:
    clip = write_kind(tmp_path / name, *KINDS[name])
    copy = tmp_path / "copy.mp4"
    assert not plays(clip)
    write_preview(clip, copy)
    assert plays(copy)
    pictures = decoded(copy)
    assert len(pictures) == FRAMES
    with av.open(str(copy)) as opened:
        sound = "mp3" if name == "old.avi" else "aac"
        assert [stream.codec_context.codec.canonical_name for stream in opened.streams] == [
            "h264",
            sound,
        ]
    assert np.abs(decoded(clip)[0].astype(int) - pictures[0]).mean() < 6


@pytest.mark.parametrize("name", ["photo.png", "photo.heic"])
def test_a_photo(name: str, tmp_path: Path) -> None:
    rgb = portrait()[:121, :151]
    photo = tmp_path / name
    copy = tmp_path / "copy.mp4"
    if name.endswith("heic"):
        write_heif(photo, rgb, 64)
    else:
        Image.fromarray(rgb).save(photo)
    assert not plays(photo)
    write_preview(photo, copy)
    assert plays(copy)
    assert probe(copy).height_px in (121, 122)


@pytest.mark.parametrize(("tag", "copied"), [(b"mp4a", True), (b"avc1", False)])
def test_a_stream_in_an_unknown_codec_breaks_no_page(
    tmp_path: Path, tag: bytes, copied: bool
) -> None:
    """Of two sound tracks the second, as spatial sound of phones; or the picture."""
    clip = tmp_path / "clip.mp4"
    copy = tmp_path / "clip.mp4.preview.mp4"
    one = write_kind(tmp_path / "one.mp4", "libx264", "yuv420p", "aac")
    with av.open(str(clip), "w") as target, av.open(str(one)) as source:
        picture, sound = source.streams
        copies = {0: [target.add_stream_from_template(picture)], 1: []}
        copies[1] = [target.add_stream_from_template(sound) for _ in range(2)]
        for packet in source.demux():
            for track in copies[packet.stream_index] if packet.size else ():
                packet.stream = track
                target.mux(packet)
    content = clip.read_bytes()
    at = content.rindex(tag)
    clip.write_bytes(content[:at] + content[at:].replace(tag, b"zzzz").replace(b"esds", b"free"))
    assert not plays(clip)
    check_media("video", clip, Limits())
    told = list[Any]()
    if copied:
        analyze_upload(clip, Limits(), told.append)
        assert copy in told and plays(copy)
    else:
        with pytest.raises(LatentSyncError):
            analyze_upload(clip, Limits(), told.append)
        assert not copy.exists()
