"""The choice of the encoder: what it keeps of the source, what it refuses, and what the reopened
file says.
"""

import os
import re
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.format import VideoFormat

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.encoder_choice import check_encoder, choose_encoder
from latentsync_trt.media.encoders import CONTAINERS, problem_of
from latentsync_trt.media.filters import apply_filters
from latentsync_trt.media.pictures import LazyRgb, picture_info
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import stamp_packet
from latentsync_trt.types import ColorTags, VideoInfo, YuvPlanes
from tests.clips import frame_at, numbered, open_writer, rewritten, write_video
from tests.pictures import HDR10

SIZE = 320, 240
SDR = picture_info(*SIZE, rgb=False)
PQ = ColorTags(9, 16, 9, full_range=False)


def of_format(pixel_format: str, **values: Any) -> VideoInfo:
    return replace(SDR, pixel_format=pixel_format, **values)


@pytest.mark.parametrize(
    ("options", "ffmpeg", "settings"),
    [
        ({"crf": 18, "encoder": "x264:slow"}, "libx264", {"crf": "18", "preset": "slow"}),
        (
            {"encoder": "x265", "crf": 20},
            "libx265",
            {"crf": "20", "x265-params": "log-level=error:open-gop=0"},
        ),
        ({"codec": "prores", "encoder": "prores:lt"}, "prores_ks", {"profile": "lt"}),
        (
            {"encoder": "nvenc", "crf": 0},
            "h264_nvenc",
            {"qp": "1", "preset": "p5", "rc": "constqp"},
        ),
    ],
)
def test_options_become_those_of_the_encoder(
    options: dict[str, Any], ffmpeg: str, settings: dict[str, str]
) -> None:
    encoder = choose_encoder(SyncOptions(**options), SDR)
    assert encoder.ffmpeg == ffmpeg
    assert settings.items() <= dict(encoder.options).items()
    assert not encoder.notices


@pytest.mark.parametrize(
    ("width_px", "height_px", "limited"), [(3840, 2160, False), (8192, 4352, True)]
)
def test_x264_holds_few_pictures_beyond_4k(width_px: int, height_px: int, limited: bool) -> None:
    encoder = choose_encoder(SyncOptions(), replace(SDR, width_px=width_px, height_px=height_px))
    assert ("bframes=0:sliced-threads=1" in dict(encoder.options).get("x264-params", "")) is limited


@pytest.mark.parametrize(
    ("pixel_format", "options", "codec", "stored", "lost"),
    [
        ("yuv420p10le", {}, "hevc", "yuv420p10le", ""),
        ("yuv440p10le", {}, "hevc", "yuv444p10le", ""),  # 4:2:2, turned
        (
            "yuv444p12le",
            {"codec": "prores"},
            "prores",
            "yuv444p10le",
            "12 bits .* stores 10",
        ),
        ("yuv422p10le", {"codec": "av1"}, "av1", "yuv420p10le", "fewer chroma samples"),
        ("gbrp", {"codec": "ffv1"}, "ffv1", "bgr0", ""),
    ],
)
def test_depth_and_sampling_are_kept_or_the_loss_is_told(
    pixel_format: str, options: dict[str, Any], codec: str, stored: str, lost: str
) -> None:
    encoder = choose_encoder(SyncOptions(**options), of_format(pixel_format))
    assert (encoder.codec, encoder.pixel_format) == (codec, stored)
    assert len(encoder.notices) == bool(lost)
    assert re.search(lost, "".join(encoder.notices))


@pytest.mark.parametrize(
    ("pixel_format", "codec", "grows"),
    [("yuv420p", "h264", 1), ("yuv444p", "h264", 0), ("yuv420p", "ffv1", 0)],
)
def test_only_whole_chroma_samples_are_padded(pixel_format: str, codec: Any, grows: int) -> None:
    encoder = choose_encoder(
        SyncOptions(codec=codec), of_format(pixel_format, width_px=321, height_px=241)
    )
    assert (encoder.width_px, encoder.height_px, len(encoder.notices)) == (
        321 + grows,
        241 + grows,
        grows,
    )


@pytest.mark.parametrize("top_first", [True, False])
@pytest.mark.parametrize(
    ("codec", "name"),
    [("h264", "out.mp4"), ("prores", "out.mov"), ("ffv1", "out.mkv"), ("hevc", "out.mp4")],
)
def test_interlaced_pictures_stay_tagged_with_their_first_field(
    tmp_path: Path, codec: Any, name: str, top_first: bool
) -> None:
    tags = ("setparams", f"field_mode={'tff' if top_first else 'bff'}")
    plain = (av.VideoFrame.from_ndarray(rgb).reformat(format="yuv420p") for rgb in numbered(2))
    frames = (apply_filters([frame], tags) for frame in plain)
    source = write_video(tmp_path / "in.mkv", frames, codec="ffv1")
    writer = rewritten(source, tmp_path / name, codec=codec)
    info = probe(tmp_path / name)
    assert (info.interlaced, info.top_field_first) == (True, top_first)
    assert len(writer.notices) == 1  # that its fields are painted as one picture


def test_interlacing_that_is_not_stored_is_told() -> None:
    interlaced = replace(SDR, interlaced=True, top_field_first=True)
    notices = choose_encoder(SyncOptions(encoder="nvenc"), interlaced).notices
    assert any("h264_nvenc does not store" in notice for notice in notices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "x265", "codec": "h264"}, "does not write h264"),
        ({"crf": 60}, "crf 60"),
        ({"encoder": "auto:slow"}, "encoder auto:slow: .* name one"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        choose_encoder(SyncOptions(**options), SDR)
    assert caught.value.usage


def test_an_unknown_preset_is_found_before_the_work() -> None:
    with pytest.raises(InputError, match=r"=quick.* does not open"):
        check_encoder(SyncOptions(encoder="x264:quick"), SDR, Path("out.mkv"))


def test_a_size_that_an_encoder_refuses_is_named_and_auto_takes_another() -> None:
    """Pictures too wide for any NVENC, and for x264."""
    wide = replace(SDR, width_px=20_000)
    assert choose_encoder(SyncOptions(encoder="auto"), wide).ffmpeg == "libx264"
    with pytest.raises(InputError, match=r"20000×240: .* scale the video"):
        check_encoder(SyncOptions(codec="h264"), wide, Path("out.mp4"))


def test_captions_within_the_picture_are_named(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.h264", numbered(3), options={"preset": "ultrafast"})
    assert not rewritten(clip, tmp_path / "out.mp4").notices
    captions = b"\xb5\0\x31GA94\x03\x41\xff\xfc\xc8\xe9\xff"  # A/53: "Hi" in CEA-608
    message = b"\0\0\1\6\4" + bytes([len(captions)]) + captions + b"\x80"
    clip.write_bytes(
        re.sub(rb"\x00\x00\x01[\x65\x41]", lambda slice_: message + slice_[0], clip.read_bytes())
    )
    (notice,) = rewritten(clip, tmp_path / "out.mp4").notices
    assert re.search("closed captions .* left out", notice)


def test_captions_that_begin_later_are_seen(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", numbered(6), options={"preset": "ultrafast"})
    captions = b"\xb5\0\x31GA94\x03\x41\xff\xfc\xc8\xe9\xff"
    message = b"\6\4" + bytes([len(captions)]) + captions + b"\x80"
    film = tmp_path / "film.mp4"
    with av.open(str(clip)) as source, av.open(str(film), "w") as container:
        copy = container.add_stream_from_template(source.streams.video[0])
        for index, packet in enumerate(source.demux(video=0)):
            if not packet.size:
                continue
            is_captioned = index >= 3
            prefix = len(message).to_bytes(4, "big") + message if is_captioned else b""
            written = av.Packet(prefix + bytes(packet))
            written.is_keyframe = packet.is_keyframe
            stamp_packet(written, copy, index, 25)
            container.mux(written)
    assert [frame.has_captions for frame in read_frames(film)] == [False] * 3 + [True] + [False] * 2
    assert not probe(film).captions


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_the_options_of_nvenc_exist(codec: Any) -> None:
    """FFmpeg checks the options before it looks for a GPU, and reports a wrong one differently."""
    encoder = choose_encoder(SyncOptions(encoder="nvenc", codec=codec), SDR)
    problem = problem_of(encoder)
    assert problem != problem_of(
        replace(encoder, options=(*encoder.options, ("preset", "no such")))
    )
    assert problem not in ("Invalid argument", "Numerical result out of range")


def priorities() -> set[int]:
    """How Linux schedules the threads of this process."""
    policies = set[int]()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended
            policies.add(os.sched_getscheduler(int(task.name)))
    return policies


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [*((codec, found[0]) for codec, found in CONTAINERS.items()), ("hevc", ".mkv")],
)
def test_every_codec_keeps_tags_times_and_pictures(tmp_path: Path, codec: Any, suffix: str) -> None:
    """Ten bits, HDR and wide pixels; the reopened file says what went in, or a notice what does
    not. No thread gets another priority, as SVT-AV1 would give them.
    """
    before = priorities()
    output = tmp_path / f"out{suffix}"
    aspect = Fraction(4, 3)
    info = of_format(
        "yuv420p10le", width_px=128, height_px=96, color=PQ, hdr=HDR10, sample_aspect_ratio=aspect
    )
    flat = YuvPlanes(
        *(np.full(shape, 400, np.uint16) for shape in ((96, 128), (48, 64), (48, 64))), PQ, 10
    )
    check_encoder(SyncOptions(codec=codec), info, output)
    with open_writer(output, info, codec=codec) as writer:
        for index in range(3):
            writer.write(frame_at(index, LazyRgb(flat), flat))
        assert priorities() == before
    with av.open(str(output)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert [frame.pts * frame.time_base for frame in frames] == [
            Fraction(index, 25) for index in range(3)
        ]
        tag = stream.codec_context.codec_tag
        assert (tag == "hvc1") == (codec == "hevc" and suffix != ".mkv")
    found = probe(output)
    assert found.color == PQ
    assert VideoFormat(found.pixel_format).components[0].bits == 10
    assert (found.sample_aspect_ratio == aspect) != any(
        "pixel aspect" in notice for notice in writer.notices
    )
    assert found.sample_aspect_ratio == aspect or suffix == ".mkv"
    stored = codec in ("h264", "hevc", "av1")
    assert (found.hdr.light is not None) == stored
    if found.hdr.mastering is not None:
        assert found.hdr.light == HDR10.light
        assert [*map(float, found.hdr.mastering)] == pytest.approx(
            [*map(float, HDR10.mastering)], 1e-2, 1e-4
        )
    assert any("mastering display" in notice for notice in writer.notices) != stored
    shown = next(read_frames(output)).planes
    assert shown is not None
    assert np.abs(shown.y.astype(int) - flat.y).max() <= 4
