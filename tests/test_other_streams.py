"""What an output keeps of its source besides picture and sound."""

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from latentsync_trt import SyncOptions
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.other_streams import other_streams
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.writer import VideoWriter
from tests.clips import copied, numbered, read_audio, write_video
from tests.sounds import spoken, write_parts

LENGTH_S = Fraction(3, 2)
SHOWN = (("Hello <i>world</i>", 200, 500), ("Second", 1200, 500))
"""Subtitles: text, start and duration in ms; the second one ends after the output."""

ASS_HEADER = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, Alignment
Style: Default,Arial,16,&Hffffff,2

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


def write_film(
    path: Path, subtitles: str = "subrip", second: str = "aac", delay_ms: int = 0
) -> Path:
    """Two seconds with two audio tracks, subtitles, chapters, tags and, in .mkv, a font; all begin
    after `delay_ms`.
    """
    with av.open(str(path), "w") as container:
        container.metadata.update(
            {"title": "My film", "creation_time": "2020-01-02T03:04:05.000000Z"}
        )
        video = container.add_stream(
            "libx264", rate=25, options={"preset": "ultrafast", "tune": "zerolatency"}
        )
        video.width = 96
        video.height = 64
        video.pix_fmt = "yuv420p"
        video.metadata["language"] = "eng"
        tracks = [
            container.add_stream(codec, rate=48000, layout="stereo") for codec in ("aac", second)
        ]  # type: ignore[call-overload]
        for track, language, title in zip(tracks, ("eng", "fra"), ("Main", "Comment"), strict=True):
            track.metadata.update({"language": language, "title": title})
        texts = container.add_stream(subtitles)  # type: ignore[call-overload]
        texts.codec_context.subtitle_header = ASS_HEADER
        texts.time_base = Fraction(1, 1000)
        texts.metadata["language"] = "eng"
        chapters = [(1, 0, 1000, "One"), (2, 1000, 1600, "Two"), (3, 1600, 2000, "Three")]
        names = ("id", "start", "end", "time_base", "metadata")
        values = [
            (k, a + delay_ms, b + delay_ms, Fraction(1, 1000), {"title": title})
            for k, a, b, title in chapters
        ]
        container.set_chapters([dict(zip(names, value, strict=True)) for value in values])  # type: ignore[misc]
        if path.suffix == ".mkv":
            container.add_attachment("font.ttf", "application/x-truetype-font", b"font data")
        for index in range(50):
            frame = av.VideoFrame(96, 64, "yuv420p")
            frame.pts = index * 40 + delay_ms
            frame.time_base = Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for text, start, duration in SHOWN:
            payload = text.encode()
            packet = av.Packet(
                len(payload).to_bytes(2, "big") + payload if subtitles == "mov_text" else payload
            )
            packet.stream = texts
            packet.time_base = Fraction(1, 1000)
            packet.pts = start + delay_ms
            packet.dts = packet.pts
            packet.duration = duration
            container.mux(packet)
        for track in tracks:
            sound = av.AudioFrame.from_ndarray(
                np.zeros((1, 2 * 96000), np.float32), format="flt", layout="stereo"
            )
            sound.sample_rate = 48000
            sound.pts = 48 * delay_ms
            sound.time_base = Fraction(1, 48000)
            container.mux(track.encode(sound))
            container.mux(track.encode(None))
    return path


def keep(source: Path, output: Path, sound: Path | None = None) -> Sequence[str]:
    """Writes the first part of `source` with all that belongs to it, by default its own sound;
    returns the notices.
    """
    info = probe(source)
    extras = FileExtras((SoundPiece(sound or source),), source)
    with VideoWriter(output, info, choose_encoder(SyncOptions(), info), extras) as writer:
        for frame in read_frames(source, Playback(duration_s=LENGTH_S)):
            writer.write(frame)
    return writer.notices


def shown_in(path: Path) -> list[tuple[str, int, int]]:
    """Text, start and duration in ms of what subtitles say, without how they look."""
    with av.open(str(path)) as container:
        stream = container.streams.subtitles[0]
        texts = []
        for packet in container.demux(stream):
            for subtitle in packet.decode() if packet.size > 2 else ():
                text = re.sub(r"{.*?}|<.*?>", "", subtitle.dialogue.decode())
                times = (
                    round(value * packet.time_base * 1000)
                    for value in (packet.pts, packet.duration)
                )
                texts.append((text, *times))
        return texts  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("source", ["film.mp4", "film.mov", "film.mkv"])
def test_what_belongs_to_a_film_is_kept(tmp_path: Path, source: str, suffix: str) -> None:
    """Cut to the length of the output; text subtitles take the form of its container."""
    film = write_film(tmp_path / source, "subrip" if source.endswith("mkv") else "mov_text")
    output = tmp_path / f"out{suffix}"
    notices = keep(film, output)
    with av.open(str(output)) as container:
        assert container.metadata["title"] == "My film"
        assert container.metadata["creation_time"] == "2020-01-02T03:04:05.000000Z"
        chapters = [
            (
                chapter["metadata"]["title"],
                *(float(chapter[edge] * chapter["time_base"]) for edge in ("start", "end")),
            )
            for chapter in container.chapters()
        ]
        assert chapters == [("One", 0.0, 1.0), ("Two", 1.0, 1.52)]
        assert [stream.language for stream in container.streams.audio] == ["eng", "fra"]
        titles = [
            stream.metadata.get("title") or stream.metadata.get("name")
            for stream in container.streams.audio
        ]
        assert titles == ["Main", "Comment"]
        assert [stream.language for stream in container.streams.subtitles] == ["eng"]
        for stream in container.streams.audio:
            container.seek(0)
            packets = (packet for packet in container.demux(stream) if packet.size)
            assert (
                1.5
                < max(
                    float((packet.pts + packet.duration) * packet.time_base) for packet in packets
                )
                < 1.56
            )
        kept_fonts = [
            stream.data
            for stream in container.streams
            if isinstance(stream, av.stream.AttachmentStream)
        ]
        container.seek(0)
        first_ms = round(1000 * float(next(frame.time for frame in container.decode(video=0))))
    first, second = shown_in(output)
    start = 200
    if suffix == ".mkv" and not source.endswith("mkv"):
        # Matroska has no time before 0, and copied AAC begins with its encoder's delay
        start = first[1]
        assert 200 <= start <= 222
    assert start == 200 + first_ms
    assert (first, second) == (("Hello world", start, 500), ("Second", start + 1000, 320))
    if source.endswith("mkv"):
        assert kept_fonts == ([b"font data"] if suffix == ".mkv" else [])
        assert any("the attached file font.ttf" in notice for notice in notices) == (
            suffix != ".mkv"
        )


def test_times_are_those_of_the_picture(tmp_path: Path) -> None:
    """In a file whose clock begins late, as those cut out of a broadcast."""
    film = write_film(tmp_path / "film.mkv", delay_ms=5000)
    keep(film, tmp_path / "out.mkv")
    assert [(start, duration) for _, start, duration in shown_in(tmp_path / "out.mkv")] == [
        (200, 500),
        (1200, 320),
    ]
    with av.open(str(tmp_path / "out.mkv")) as container:
        assert [chapter["start"] * chapter["time_base"] for chapter in container.chapters()] == [
            0,
            1,
        ]
        first = [
            next(container.demux(stream)).pts
            for stream in container.streams.audio
            if container.seek(0) is None
        ]
    assert first[0] == first[1]
    assert abs(first[0]) <= 22  # the encoder's delay


def test_the_sound_that_players_play_is_the_speech(tmp_path: Path) -> None:
    """A commentary that comes first stays beside it; the speech has its language also where it is
    of another file.
    """
    comment = write_parts(tmp_path / "c.mka", [(0, spoken(2, 48000, [0.5]))])
    main = write_parts(tmp_path / "m.mka", [(0, spoken(2, 48000, [1.2]))])
    sounds = copied(tmp_path / "sounds.mka", comment, main, default=1, languages=("eng", "fra"))
    loudest = int(np.abs(read_audio(sounds)).argmax())
    assert abs(loudest / SPEECH_RATE_HZ - 1.2) < 0.01
    picture = write_video(tmp_path / "picture.mkv", numbered(25))
    film = copied(tmp_path / "film.mkv", picture, comment, main, default=2)
    with av.open(str(film)) as container:
        assert [stream.index for stream in other_streams(film, container)] == [1]
    keep(picture, tmp_path / "out.mkv", sounds)
    with av.open(str(tmp_path / "out.mkv")) as container:
        assert [stream.language for stream in container.streams.audio] == ["fra"]


@pytest.mark.parametrize(
    ("second", "lost"),
    [("flac", 0), ("pcm_s16le", 1)],
)
def test_audio_tracks_that_do_not_fit_are_named(tmp_path: Path, second: str, lost: int) -> None:
    notices = keep(write_film(tmp_path / "film.mkv", second=second), tmp_path / "out.mp4")
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert len(container.streams.audio) == 2 - lost
        assert (
            sum(frame.samples for frame in container.decode(container.streams.audio[-1]))
            > 1.4 * 48000
        )
    assert sum("audio track 2 (pcm_s16le, fra)" in notice for notice in notices) == lost


@pytest.mark.parametrize(("suffix", "is_marked"), [(".mp4", True), (".mkv", False)])
def test_subtitles_that_become_the_default_are_named(
    tmp_path: Path, suffix: str, is_marked: bool
) -> None:
    film = write_film(tmp_path / "film.mkv")
    with av.open(str(film)) as container:
        assert not any(
            each.disposition & Disposition.default for each in container.streams.subtitles
        )
    output = tmp_path / f"out{suffix}"
    notices = keep(film, output)
    with av.open(str(output)) as container:
        marks = [each.disposition & Disposition.default for each in container.streams.subtitles]
    assert any(marks) == is_marked
    assert any("as default" in notice for notice in notices) == is_marked
