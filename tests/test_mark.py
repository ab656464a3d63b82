"""The mark of a synced video, read back by a small reader of boxes, and by FFmpeg."""

import struct
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import av
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.tags import append_xmp, with_mark
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.version import __version__
from tests.clips import copied, decoded, numbered, write_clip, write_video

MARK = f"lips changed by AI (latentsync-trt {__version__})"
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
SUFFIXES = (".mp4", ".mov", ".mkv")

_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_XMP_BOX = UUID("BE7ACFCB-97A9-42E8-9C71-999491E3AFAC").bytes


def boxes(content: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Type, offset of the content, and content of each box."""
    at = 0
    while at + 8 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        yield kind, at + 8, content[at + 8 : at + size]
        at += size


def inner(content: bytes, kind: bytes) -> bytes:
    """The content of the only box of this type."""
    (tags,) = [body for name, _, body in boxes(content) if name == kind]
    return tags


def xmp_of(path: Path) -> dict[str, str]:
    """Tool and source type of the only XMP packet, read from where the specification wants it."""
    content = path.read_bytes()
    assert content.count(b"<x:xmpmeta") == 1
    if path.suffix == ".mov":
        packet = inner(inner(inner(content, b"moov"), b"udta"), b"XMP_")
    else:
        (packet,) = [
            body[16:]
            for kind, _, body in boxes(content)
            if kind == b"uuid" and body[:16] == _XMP_BOX
        ]
    # also checks that it is well-formed
    rdf = ElementTree.fromstring(packet.decode().strip("\ufeff"))
    (description,) = rdf.iter(f"{_RDF}Description")
    (kind,) = description.iter("{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType")
    return {
        "tool": description.attrib["{http://ns.adobe.com/xap/1.0/}CreatorTool"],
        "type": kind.text or "",
    }


def metadata_of(path: Path) -> dict[str, str]:
    with av.open(str(path)) as container:
        return {name.lower(): value for name, value in container.metadata.items()}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_video_that_is_synced_twice_has_one_mark(suffix: str, tmp_path: Path) -> None:
    earlier = with_mark({"COMMENT": "take 2; lips changed by AI (latentsync-trt 0.0.1)"}, suffix)
    first = write_video(tmp_path / f"a{suffix}", numbered(5), metadata=earlier)
    with av.open(str(first), options={"export_xmp": "1"}) as container:
        again = with_mark(container.metadata, suffix)
    path = write_video(tmp_path / f"b{suffix}", numbered(5), metadata=again)
    if suffix == ".mp4":
        append_xmp(path)
    assert metadata_of(path)["comment"] == f"take 2; {MARK}"
    assert suffix == ".mkv" or xmp_of(path)["type"] == SOURCE_TYPE


def test_nothing_moves_in_the_file(tmp_path: Path) -> None:
    """The index before the media still points at it, and no byte changes."""
    clip = write_video(tmp_path / "clip.mp4", numbered(5))
    path = copied(tmp_path / "a.mp4", clip, options={"movflags": "+faststart"})
    before = path.read_bytes()
    frames = decoded(path)
    append_xmp(path)
    after = path.read_bytes()
    assert after.startswith(before)
    assert [kind for kind, _, _ in boxes(after)] == [b"ftyp", b"moov", b"free", b"mdat", b"uuid"]
    assert all((a == b).all() for a, b in zip(decoded(path), frames, strict=True))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_writer_marks_and_keeps_what_the_source_says(suffix: str, tmp_path: Path) -> None:
    source = write_video(
        tmp_path / f"source{suffix}", numbered(5), metadata={"title": "Pier", "comment": "take 2"}
    )
    info = probe(source)
    path = tmp_path / f"out{suffix}"
    extras = FileExtras(source=source, mark=True)
    with VideoWriter(path, info, choose_encoder(SyncOptions(), info), extras) as writer:
        for frame in read_frames(source, Playback()):
            writer.write(frame)
    tags = metadata_of(path)
    assert (tags["title"], tags["comment"]) == ("Pier", f"take 2; {MARK}")
    if suffix == ".mkv":
        assert (tags["digital_source_type"], tags["software"]) == (
            SOURCE_TYPE,
            f"latentsync-trt {__version__}",
        )
    else:
        assert xmp_of(path) == {"tool": f"latentsync-trt {__version__}", "type": SOURCE_TYPE}
    assert len(decoded(path)) == 5


@pytest.mark.integration
def test_a_run_does_not_mark_its_output_if_told_so(tmp_path: Path, lip_sync: LipSync) -> None:
    path = tmp_path / "out.mp4"
    lip_sync.sync(*write_clip(tmp_path, 5), path, SyncOptions(steps=1, guidance=1.0, mark=False))
    assert b"<x:xmpmeta" not in path.read_bytes()
    assert "comment" not in metadata_of(path)
