"""FFmpeg's filters, applied to decoded pictures."""

from collections.abc import Sequence
from fractions import Fraction

from av import VideoFrame
from av.filter import Graph

Filter = tuple[str, str]
"""Name and options."""


def apply_filters(frames: Sequence[VideoFrame], *filters: Filter) -> VideoFrame:
    """Returns what filters, one after the other, make of frames, all of which the first one takes.

    Raises `BlockingIOError` if a filter gives no frame.
    """
    graph = Graph()
    graph.threads = 1
    nodes = [graph.add(name, options) for name, options in filters]
    nodes.append(graph.add("buffersink"))
    time_base = frames[0].time_base or Fraction(1)
    for place, frame in enumerate(frames):
        source = graph.add_buffer(
            None, frame.width, frame.height, frame.format, time_base=time_base
        )
        source.link_to(nodes[0], 0, place)
    graph.link_nodes(*nodes).configure()
    for place, frame in enumerate(frames):
        graph.vpush(frame, place)
    return graph.vpull()
