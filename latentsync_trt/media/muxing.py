"""The finished file: parts as one stream, sound, what is kept of the source, and a mark.

Stamps of the source become those of the output; what comes before its first or after its last
picture is cut off.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from heapq import merge
from itertools import takewhile
from operator import itemgetter
from pathlib import Path

from av import VideoStream
from av.container import OutputContainer

from latentsync_trt.errors import MediaError
from latentsync_trt.files import keep_beside, put_in_place
from latentsync_trt.media.contents import Contents, open_output
from latentsync_trt.media.files import TimedPackets, open_input
from latentsync_trt.media.other_streams import open_others
from latentsync_trt.media.parts import FinishedParts, abandon, join_parts, packets_of
from latentsync_trt.media.recipe import RECIPE_TAG, Recipe, digest_of
from latentsync_trt.media.soundtrack import open_soundtrack
from latentsync_trt.media.tags import append_xmp
from latentsync_trt.spans import NO_END_S

_LEAST_TIMESCALE = 600
"""QuickTime's ticks per second. FFmpeg multiplies a smaller number, which keeps stamps exact."""
_MOST_HELD_US = 1_000_000
"""Microseconds for which FFmpeg holds packets until each stream has one; by default 10 s: gigabytes
of 4K.
"""


def assemble(
    path: Path, folder: Path, finished: FinishedParts, contents: Contents
) -> tuple[str, ...]:
    """Writes the parts in `folder` to `path`; returns what could not be kept of the source. Raises
    `MediaError`, and `FFmpegError` and `OSError` if `path` cannot be written.
    """
    suffix = contents.suffix
    tags = contents.read_tags()
    recipe = _recipe_of(folder, finished, contents)
    if recipe is not None and suffix == ".mkv":
        tags[RECIPE_TAG] = recipe.to_json().decode()
    options = {"max_interleave_delta": str(_MOST_HELD_US)}
    if suffix != ".mkv" and finished.per_s >= _LEAST_TIMESCALE:
        options["video_track_timescale"] = str(finished.per_s)
    container = open_output(f"file:{path}", suffix, tags, "+faststart", options)
    problems = list[str]()
    try:
        with ExitStack() as opened:
            video = _add_video(container, folder, finished, contents)
            streams = [join_parts(folder, finished, video)]
            if contents.sound.pieces:
                sound = open_soundtrack(contents.sound, container, finished.end_s)
                streams.append(opened.enter_context(sound))
            if contents.extras.source is not None:
                others = opened.enter_context(open_others(contents, container, finished.end_s))
                streams += [_until_damaged(timed, problems) for timed in others]
            container.start_encoding()  # opens the encoders
            _mux(container, streams, NO_END_S if contents.is_copied else finished.end_s)
            container.close()
        if recipe is not None and suffix != ".mkv":
            recipe.append_to(path)
        if contents.extras.mark and suffix != ".mkv" and "xmp" not in tags:
            append_xmp(path)
    except BaseException:
        abandon(container, path)
        raise
    return tuple(problems)


def _recipe_of(folder: Path, finished: FinishedParts, contents: Contents) -> Recipe | None:
    """Returns what the file says of how it was made, if it says that; reads all parts."""
    ingredients = contents.extras.ingredients
    if ingredients is None or not contents.extras.mark:
        return None
    digest = digest_of(packets_of(folder, finished))
    return Recipe(ingredients, finished.frames, digest, finished.parts[-1].end, finished.per_s)


def make_whole(
    folder: Path, suffix: str, finished: FinishedParts, contents: Contents
) -> tuple[Path, tuple[str, ...]]:
    """Makes one signed file of the parts in `folder`; returns it, and notices. Raises as
    `assemble`.
    """
    # short, as Windows limits paths to 259 characters
    whole = folder / f"whole{suffix}"
    notices = assemble(whole, folder, finished, contents)
    sign = contents.extras.sign
    if sign is not None:
        notices += sign(whole)
    return whole, notices


def replace_output(output: Path, whole: Path, contents: Contents) -> tuple[str, ...]:
    """Puts a finished file in place of `output`; returns where what was there is kept, if that is
    asked for.
    """
    notices: tuple[str, ...] = ()
    if contents.extras.backup and output.exists():
        kept = keep_beside(output)
        notices = (f"{output}: what was there before is kept as {kept}",)
    put_in_place(whole, output)
    return notices


def _mux(container: OutputContainer, streams: Sequence[TimedPackets], end_s: Fraction) -> None:
    """Writes the packets before `end_s` of all streams in the order of their times."""
    kept = [takewhile(lambda timed: timed[0] < end_s, timed) for timed in streams]
    for _, packet in merge(*kept, key=itemgetter(0)):
        container.mux(packet)


def _add_video(
    container: OutputContainer, folder: Path, finished: FinishedParts, contents: Contents
) -> VideoStream:
    codec = contents.encoder.codec
    encoded = next(part for part in finished.parts if part.first is None)
    with open_input(folder / encoded.file) as part:
        template = part.streams.video[0]
        stream = container.add_stream_from_template(template, opaque=True)
        context = stream.codec_context
        if contents.suffix != ".mkv" and codec == "hevc":
            context.codec_tag = "hvc1"  # FFmpeg's choice does not play on Apple's systems
        if contents.suffix != ".mkv" and codec == "prores":
            context.codec_tag = template.codec_context.codec_tag  # says its profile
    stream.time_base = finished.time_base
    context.sample_aspect_ratio = contents.info.sample_aspect_ratio
    nominal = contents.info.frames_per_s
    # The last picture may end early or late.
    if nominal and abs(nominal * finished.end_s - finished.frames) < 1:
        context.framerate = nominal
    else:
        context.framerate = (finished.frames / finished.end_s).limit_denominator(100_000)
    return stream


def _until_damaged(timed: TimedPackets, problems: list[str]) -> TimedPackets:
    """Yields the same packets; where their source breaks off, they end, and `problems` says so: no
    whole film is lost for one of its other streams.
    """
    try:
        yield from timed
    except MediaError as error:
        problems.append(f"{error}; the rest of this stream is left out")
