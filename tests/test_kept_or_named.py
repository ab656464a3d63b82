"""Whatever a source has besides picture and first sound is in the output, or a note names it: a
table.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from av import AudioStream
from av.stream import AttachmentStream, Discard, Disposition, Stream
from av.subtitles.stream import SubtitleStream

from latentsync_trt import SyncOptions
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.writer import VideoWriter
from tests.clips import write_sound
from tests.test_mark import SOURCE_TYPE, boxes
from tests.test_other_streams import ASS_HEADER

_APPLE = "com.apple.quicktime."
PHONE = {
    f"{_APPLE}make": "Maker",
    f"{_APPLE}model": "Model 5",
    f"{_APPLE}creationdate": "2024-05-05T10:11:12+0200",
    f"{_APPLE}location.ISO6709": "+48.1374+011.5755+520.000/",
    "com.android.version": "14",
    "title": "Pier",
    "creation_time": "2024-05-05T08:11:12.000000Z",
}
FILM = {
    "title": "Pier",
    "artist": "Ann",
    "date": "2020",
    "genre": "Drama",
    "copyright": "C",
    "description": "A pier",
    "location": "+48.1374+011.5755/",
    "creation_time": "2020-01-02T03:04:05.000000Z",
    "composer": "Bob",
    "keywords": "sea",
    "make": "Maker",
    "model": "Model 5",
    "imdb": "tt1",
}
SOURCES = {
    "phone.mov": (PHONE, {"movflags": "use_metadata_tags"}),
    "phone.mp4": (PHONE, {"movflags": "use_metadata_tags"}),
    "film.mov": (FILM | {"timecode": "01:00:00:00"}, {}),
    "film.mp4": (FILM | {"timecode": "01:00:00:00"}, {}),
    "film.mkv": (FILM | {"timecode": "01:00:00:00"}, {}),
    "broadcast.ts": ({}, {}),
}

OF_THE_FILE = ("major_brand", "minor_version", "compatible_brands", "encoder", "location-eng")
USES = ("default", "dub", "original", "comment", "forced", "hearing_impaired")

# FFmpeg writes no such flags into .mov, and only the languages that Macintosh had numbers for.
OF_MOV = {"audio 0 dub", "audio 0 language", "audio 1 comment"}
FORCED = {"subtitle 2 forced", "subtitle 3 forced"}
TIMECODE = {"data track 7"}
NEVER = {"tag timecode", "video track 7", "view 3d"}
DATA = {"data track 4", "data track 5", "data track 6"}
LEFT_OUT = {
    "phone.mov": {".mp4": set(), ".mov": set(), ".mkv": set()},
    "phone.mp4": {".mp4": set(), ".mov": OF_MOV | FORCED, ".mkv": set()},
    "film.mov": {".mp4": {"tag make", "tag model"} | TIMECODE, ".mov": TIMECODE, ".mkv": TIMECODE},
    "film.mp4": {
        ".mp4": TIMECODE,
        ".mov": {"tag composer", "tag description", "tag keywords"} | OF_MOV | FORCED | TIMECODE,
        ".mkv": TIMECODE,
    },
    "film.mkv": {
        ".mp4": {"tag imdb", "tag make", "tag model", "file font.ttf", "audio 1 original"} | NEVER,
        ".mov": {
            *(
                "tag composer",
                "tag description",
                "tag keywords",
                "tag imdb",
                "file font.ttf",
                "audio 1 original",
            ),
            *("subtitle 2 forced", "subtitle 3 hearing_impaired"),
        }
        | OF_MOV
        | NEVER,
        ".mkv": NEVER,
    },
    "broadcast.ts": {".mp4": DATA, ".mov": {"audio 0 language"} | DATA, ".mkv": DATA},
}
"""Of each source and container, what is not kept, and therefore named."""


def write_source(path: Path) -> Path:
    """Five pictures with all that a file of this name can have."""
    tags, options = SOURCES[path.name]
    kind = path.suffix
    with av.open(str(path), "w", options=options) as container:
        container.metadata.update(tags)
        video = container.add_stream(
            "libx264", rate=25, options={"preset": "ultrafast", "tune": "zerolatency"}
        )
        video.width = 96
        video.height = 64
        video.pix_fmt = "yuv420p"
        video.codec_context.sample_aspect_ratio = Fraction(4, 3)
        if kind == ".mkv":
            video.metadata["stereo_mode"] = "left_right"
        sounds = [container.add_stream("aac", rate=48000, layout="stereo") for _ in range(3)]
        sounds[0].disposition = Disposition.default
        sounds[1].disposition = Disposition.default | Disposition.dub
        sounds[2].disposition = Disposition.comment | Disposition.original
        for sound, language in zip(sounds, ("jpn", "deu", "eng"), strict=True):
            sound.metadata.update(
                {"language": language, "title": f"In {language}", "handler_name": f"Of {language}"}
            )
        if kind != ".ts":
            _add_texts(container, kind)
        if kind == ".mkv":
            container.add_attachment("font.ttf", "application/x-truetype-font", b"font data")
            container.add_attachment("cover.png", "image/png", b"\x89PNG\r\n\x1a\n")
        if kind == ".ts":
            data = [container.add_data_stream(codec) for codec in ("klv", "timed_id3", "scte_35")]
        for index in range(5):
            frame = av.VideoFrame(96, 64, "yuv420p")
            frame.pts = index
            frame.time_base = Fraction(1, 25)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for sound in sounds:
            samples = av.AudioFrame(format="fltp", layout="stereo", samples=9600)
            for plane in samples.planes:
                plane.update(bytes(plane.buffer_size))
            samples.sample_rate = 48000
            samples.pts = 0
            samples.time_base = Fraction(1, 48000)
            container.mux(sound.encode(samples))
            container.mux(sound.encode(None))
        if kind == ".ts":
            for stream in data:
                packet = av.Packet(b"12345678")
                packet.stream = stream
                packet.pts = 0
                packet.dts = 0
                packet.time_base = Fraction(1, 1000)
                container.mux(packet)
    return path


def _add_texts(container: Any, kind: str) -> None:
    names = ("id", "start", "end", "time_base", "metadata")
    values = (
        (1, 0, 100, Fraction(1, 1000), {"title": "One"}),
        (2, 100, 200, Fraction(1, 1000), {"title": "Two"}),
    )
    container.set_chapters([dict(zip(names, value, strict=True)) for value in values])
    for codec in ("subrip", "ass") if kind == ".mkv" else ("mov_text", "mov_text"):
        texts = container.add_stream(codec)
        texts.codec_context.subtitle_header = ASS_HEADER
        if codec != "ass":
            texts.disposition = Disposition.forced
        else:
            texts.disposition = Disposition.default | Disposition.hearing_impaired
        texts.metadata.update({"language": "fra", "title": codec})


def facts(path: Path) -> dict[str, Any]:
    """All that a file says besides its picture and first sound, by a kind that ends in the word for
    it.
    """
    with av.open(str(path)) as container:
        found: dict[str, Any] = {
            f"tag {name.lower()}": value
            for name, value in container.metadata.items()
            if name.lower() not in OF_THE_FILE
        }
        streams = [stream for stream in container.streams if stream.discard == Discard.default]
        others = [stream for stream in streams if stream.index > 1]
        for place, stream in enumerate(others):
            if isinstance(stream, AudioStream | SubtitleStream):
                found |= _track_facts(f"{stream.type} {place}", stream)
            elif isinstance(stream, AttachmentStream):
                found[f"file {stream.name}"] = stream.data
            else:
                found[f"{stream.type} track {stream.index}"] = True
        chapters = container.chapters()
        found["chapters"] = [
            (each["metadata"]["title"], each["start"] * each["time_base"]) for each in chapters
        ]
        found["aspect"] = container.streams.video[0].sample_aspect_ratio
    return found | {f"view {view}": True for view in probe(path).views}


def _track_facts(name: str, stream: Stream) -> dict[str, Any]:
    title = stream.metadata.get("title") or stream.metadata.get("name")
    words: dict[str, Any] = {"language": stream.language or "und", "title": title}
    words |= {
        str(use.name): True for use in Disposition if use & stream.disposition and use.name in USES
    }
    if isinstance(stream, AudioStream):
        words.pop("default", None)  # is now the speech
    return {f"{name} {word}": value for word, value in words.items()}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    write_sound(folder / "speech.wav", 0.2)
    for name in SOURCES:
        write_source(folder / name)
    return folder


def written(films: Path, name: str, suffix: str) -> tuple[Path, tuple[str, ...]]:
    """A source with new speech, and the notices."""
    source = films / name
    output = films / f"{name}-out{suffix}"
    info = probe(source)
    encoder = choose_encoder(SyncOptions(encoder="x264:ultrafast"), info)
    speech = SoundPiece(films / "speech.wav")
    extras = FileExtras((speech,), source, mark=True)
    with VideoWriter(output, info, encoder, extras) as writer:
        for frame in read_frames(source):
            writer.write(frame)
    return output, writer.notices


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("name", SOURCES)
def test_what_an_output_does_not_keep_is_named(films: Path, name: str, suffix: str) -> None:
    output, notices = written(films, name, suffix)
    after = facts(output)
    lost = {kind.lower() for kind, value in facts(films / name).items() if after.get(kind) != value}
    assert lost == LEFT_OUT[name][suffix]
    words = {kind: f"{kind} (" if " track " in kind else kind.split()[-1] for kind in lost}
    for kind, word in words.items():
        assert any(word in notice.lower() for notice in notices), kind
    for notice in notices:
        assert any(word in notice.lower() for word in words.values()), notice
    with av.open(str(output)) as container:
        defaults = [
            bool(stream.disposition & Disposition.default) for stream in container.streams.audio
        ]
    assert defaults == [True] + [False] * (len(defaults) - 1)


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_what_a_phone_wrote_does_not_hide_title_and_mark(films: Path, suffix: str) -> None:
    """Its tags are keys, which players look for under different names."""
    output, _ = written(films, "phone.mov", suffix)
    with av.open(str(output)) as container:
        tags = container.metadata
    assert tags["title"] == tags["com.apple.quicktime.title"] == "Pier"
    assert tags["comment"] == tags["com.apple.quicktime.comment"]
    assert tags["comment"].startswith("lips changed by AI")
    assert "xmp" not in tags
    kind, _, content = list(boxes(output.read_bytes()))[-1]
    assert kind == b"uuid"
    assert SOURCE_TYPE.encode() in content
