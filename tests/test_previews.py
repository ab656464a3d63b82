"""What browsers can play, and the copies of what they cannot."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from latentsync_trt.media.demo_clip import camera_frames, portrait
from latentsync_trt.media.preview import plays, write_preview
from latentsync_trt.media.reader import probe
from latentsync_trt.serve.admission import Limits
from latentsync_trt.web.previews import Previews, original
from tests.clips import decoded, gif, write_face
from tests.serving import until

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


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg"])
def test_a_photo(name: str, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / name), portrait()[:121, :151, ::-1])
    assert not plays(tmp_path / name)
    write_preview(tmp_path / name, tmp_path / "copy.mp4")
    assert plays(tmp_path / "copy.mp4")
    assert probe(tmp_path / "copy.mp4").height_px in (121, 122)


def test_previews(tmp_path: Path) -> None:
    clip, text = write_face(tmp_path / "face.mp4", 5), tmp_path / "text.mp4"
    text.write_text("no video")
    other, long = (write_kind(tmp_path / f"{name}.avi", *KINDS["old.avi"]) for name in ("other", "long"))
    previews, strict = Previews(Limits()), Previews(Limits(max_clip_s=0.1))
    for path in (clip, text):  # at once: they wait for no other
        assert previews.of(path).done()
        assert previews.of(path).result() == path
    made = previews.of(other).result()
    assert (plays(made), original(made), original(clip)) == (True, other, clip)
    assert previews.of(other).result() == made
    made.unlink()
    assert previews.of(other).result().exists()
    assert strict.of(long).result() == long
    previews.close()
    strict.close()


def test_the_end_of_the_page_ends_a_preview(tmp_path: Path) -> None:
    clip, previews = tmp_path / "large.gif", Previews(Limits())
    clip.write_bytes(gif(3000, 2000))
    made = previews.of(clip)
    until(lambda: len(list(tmp_path.iterdir())) > 1)
    previews.close()
    assert made.result() == clip
    assert [path.name for path in tmp_path.iterdir()] == ["large.gif"]
