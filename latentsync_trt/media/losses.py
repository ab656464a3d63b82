"""What an output does not keep of its source."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
from av import Packet
from av.stream import AttachmentStream, Disposition, Stream

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.media.contents import Contents, open_output
from latentsync_trt.media.decoding import photo_profile
from latentsync_trt.media.files import codec_name, open_input
from latentsync_trt.media.other_streams import (
    TrackTags,
    fits_container,
    open_others,
    other_streams,
    track_tags,
)
from latentsync_trt.media.playback import video_stream
from latentsync_trt.media.tags import is_mark
from latentsync_trt.media.timing import stamp_packet

_LONG_S = Fraction(10**6)
"""Longer than any clip."""


def losses(contents: Contents) -> Iterator[str]:
    """Says what an output does not keep of the source, and why its sound is encoded."""
    yield from contents.encoder.notices
    suffix = contents.suffix
    codec = contents.encoder.codec
    aspect = contents.info.sample_aspect_ratio
    # H.264 and HEVC have it in their own stream; for others PyAV writes it to .mp4 and .mov only.
    if aspect != 1 and suffix == ".mkv" and codec not in ("h264", "hevc"):
        yield f"{codec} in .mkv does not store its pixel aspect {aspect}"
    if not contents.encoder.keeps_chroma_place(suffix):
        yield (
            "the place of chroma samples among the pixels is not stored: players of "
            f"{codec} in {suffix} expect them at the left, half a pixel away"
        )
    for view in contents.info.views:
        yield f"that the picture is {view} is left out: players show it flat"
    yield from contents.sound.notices
    source = contents.extras.source
    if source is not None:
        with open_input(source) as container:
            for stream in other_streams(source, container):
                if not fits_container(stream, suffix):
                    fits_mkv = fits_container(stream, ".mkv")
                    cure = f": {suffix} cannot hold it, .mkv can" if fits_mkv else ""
                    yield f"{_stream_label(stream)} is left out{cure}"
            yield from _lost_profile(source, video_stream(source, container))
            for name, value in container.metadata.items():
                if name.lower() == "timecode":
                    yield f"the timecode {value} is left out"
        yield from _lost_tags(contents)


def _lost_profile(source: Path, stream: Stream) -> Iterator[str]:
    """Names the color profile of a photo for which video has no tag."""
    profile = photo_profile(source, stream)
    if profile is not None and not (profile.is_srgb or profile.is_display_p3):
        yield (
            f"the color profile {profile.name} is left out: colors look paler; "
            "to keep them, convert the photo to sRGB first"
        )


def _stream_label(stream: Stream) -> str:
    if isinstance(stream, AttachmentStream):
        return f"the attached file {stream.name}"
    # Time codes, positions and motion have no codec.
    kind = codec_name(stream) or stream.metadata.get("handler_name") or "unknown"
    if stream.language not in (None, "und"):
        kind += f", {stream.language}"
    return f"the {stream.type} track {stream.index} ({kind})"


def _lost_tags(contents: Contents) -> Iterator[str]:
    """Names the tags that FFmpeg does not write into such a container, as tried in memory."""
    tags = contents.read_tags()
    file = BytesIO()
    tracks = _write_trial_file(contents, tags, file)
    file.seek(0)
    with av.open(file) as written:
        names = {name.lower() for name in written.metadata}
        lost_tags = [name for name in tags if name.lower() not in names and not is_mark(name)]
        if lost_tags:
            cure = "" if contents.suffix == ".mkv" else "; .mkv can"
            yield f"{contents.suffix} cannot hold these tags: {', '.join(lost_tags)}{cure}"
        # chapters have a track behind them
        for (name, track), stream in zip(tracks.items(), written.streams, strict=False):
            kept = track_tags(stream)
            lost = track.lost_in(kept)
            if lost:
                yield f"{contents.suffix} cannot hold of {name} of the output: {', '.join(lost)}"
            if kept.uses & ~track.uses & Disposition.default:  # FFmpeg wants one of each kind
                yield (
                    f"{contents.suffix} marks {name} of the output as default: players may show it"
                )


def _write_trial_file(
    contents: Contents, tags: Mapping[str, str], file: BytesIO
) -> dict[str, TrackTags]:
    """Writes an output with these tags, but without packets; returns the tags that its tracks were
    to have.
    """
    output = open_output(file, contents.suffix, tags, "+empty_moov", {})
    picture = output.add_stream("mpeg4", rate=MODEL_FPS)
    if contents.sound.pieces:
        output.add_stream("aac", rate=48000)
    with output, open_others(contents, output, _LONG_S):
        tracks = {f"{each.type} track {each.index}": track_tags(each) for each in output.streams}
        packet = Packet(b"\0")  # Matroska is no file without one
        stamp_packet(packet, picture, 0, MODEL_FPS)
        output.mux(packet)
    return tracks
