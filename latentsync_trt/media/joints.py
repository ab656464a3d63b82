"""Joined recordings: where each begins in the output, the same for all streams of a file.

If each stream followed itself directly, pictures and sound would drift apart, as their ends differ at each joint.
"""

from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av.error
from av.container import InputContainer

from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.timing import BACK_S, JITTER_S, clock_of, period_s

_Spans = dict[int, tuple[Fraction, Fraction]]
"""What streams, by their index, have of one recording: the stamps at its start and end."""


def origins_of(path: Path, stream: int) -> list[Fraction]:
    """The stamps at time 0 for each recording in which the stream of this index occurs, minus the first one, sorted.

    A recording begins when the one before it has ended in all its streams. Sound continues directly where that shortens
    the pictures by less than `JITTER_S`. Reads all packets of the file.
    """
    with reading(path):
        status = path.stat()
    sound, recordings = _scanned(path, status.st_mtime_ns, status.st_size)
    origins, ends, origin_s = [], dict[int, Fraction](), Fraction(0)
    for spans in recordings:
        direct = {index: start_s - ends[index] for index, (start_s, _) in spans.items() if index in ends}
        origin_s = min(direct.values(), default=origin_s)
        if sound in direct and direct[sound] - origin_s < JITTER_S:
            origin_s = direct[sound]
        ends |= {index: end_s - origin_s for index, (_, end_s) in spans.items()}
        if stream in spans:
            origins.append(origin_s)
    return sorted(origin_s - origins[0] for origin_s in origins)


@lru_cache(maxsize=2)
def _scanned(path: Path, _mtime_ns: int, _size_bytes: int) -> tuple[int | None, list[_Spans]]:
    """Index of the sound that is read, and the recordings.

    Kept, as several readers of a file need them, and a scan takes seconds; time and size tell a changed file.
    """
    with open_input(path) as container:
        sound = container.streams.audio[0].index if container.streams.audio else None
        return sound, _recordings(container)


def _recordings(container: InputContainer) -> list[_Spans]:
    """Each recording's spans. At a joint, packets of two recordings may be mixed; those of one stream are in order."""
    streams = [*container.streams.video, *container.streams.audio]
    periods_s = {stream.index: period_s(stream) for stream in container.streams.video}
    clocks = {stream.index: clock_of(container) for stream in streams}
    recordings: list[_Spans] = [{}]
    current: dict[int, _Spans] = {}
    with suppress(av.error.FFmpegError):  # who decodes the stream reports where it breaks off
        for packet in container.demux(streams):
            if packet.dts is None:
                continue
            index, resets = packet.stream.index, clocks[packet.stream.index].resets
            stamp_s = (packet.dts if packet.pts is None else packet.pts) * packet.time_base
            duration_s = (packet.duration or 0) * packet.time_base or periods_s.get(index, Fraction(0))
            clocks[index].advance(packet.dts * packet.time_base, duration_s)
            if index not in current or clocks[index].resets > resets:
                latest = recordings[-1]
                if index in latest or all(abs(stamp_s - end_s) >= BACK_S for _, end_s in latest.values()):
                    recordings.append({})
                current[index] = recordings[-1]
            start_s, end_s = current[index].get(index, (stamp_s, stamp_s))
            current[index][index] = min(start_s, stamp_s), max(end_s, stamp_s + duration_s)
    return recordings
