"""FFmpeg's `fps` filter, through PyAV: what every picture of a constant rate shows."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import av
import av.error
import numpy as np
from av.filter import Graph

TICKS_PER_S = 90_000


def shown_of_stamps(stamps: Iterable[int], duration: int, fps: int) -> list[int]:
    """Which of the pictures at these stamps is shown; stamps and the duration of each in 1/90000 s."""
    frames = []
    for index, stamp in enumerate(stamps):
        frame = av.VideoFrame.from_ndarray(np.full((16, 16), index, np.uint16), format="gray16le")
        frame.pts, frame.time_base, frame.duration = stamp, Fraction(1, TICKS_PER_S), duration
        frames.append(frame)
    return [int(frame.to_ndarray()[0, 0]) for frame in _filtered(frames, fps)]


def _filtered(frames: list[av.VideoFrame], fps: int) -> list[av.VideoFrame]:
    graph, first = Graph(), frames[0]
    source = graph.add_buffer(
        width=first.width,
        height=first.height,
        format=first.format,
        time_base=first.time_base or Fraction(1, TICKS_PER_S),
    )
    nodes = [source, graph.add("setpts", "PTS-STARTPTS"), graph.add("fps", str(fps)), graph.add("buffersink")]
    for one, following in pairwise(nodes):
        one.link_to(following)
    graph.configure()
    shown: list[av.VideoFrame] = []
    for frame in (*frames, None):
        graph.push(frame)
        while True:
            try:
                shown.append(graph.pull())  # type: ignore[arg-type]
            except (av.error.BlockingIOError, av.error.EOFError):
                break
    return shown
