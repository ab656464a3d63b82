"""Sizes of the variable dimensions of graphs, and the shapes that engines are built for.

A bundle exported with `--dynamic` names its variable dimensions (windows, images, segments, and
with `--min-resolution` heights and widths) and their ranges. A *dynamic* engine covers them; a
*static* one has each dimension at its optimum.
"""

from collections.abc import Mapping, Sequence

from latentsync_trt.bundle.manifest import DimensionRange, GraphEntry, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError

Shape = tuple[int, ...]
ProfileShapes = tuple[Shape, ...]
"""Minimum, optimum and maximum shape of one input, as in TensorRT's optimization profiles."""
DimensionRanges = Mapping[str, DimensionRange]
"""The range of each variable dimension, by name."""

_ONE_AT_A_TIME = ("windows", "segments")
_ALWAYS_AT_OPTIMUM = ("frames", "images")


def dimension_ranges(manifest: Manifest, options: RuntimeOptions) -> DimensionRanges:
    """Returns the range of each variable dimension, a single value for static engines; raises
    `InputError` if `options` require dynamic engines of a static bundle.
    """
    if manifest.shapes == "static":
        if options.dynamic:
            cure = "export it with `--dynamic`, or leave --dynamic out"
            raise InputError(f"bundle {manifest.name} has fixed shapes; {cure}")
        return {"windows": _fixed(1), "frames": _fixed(manifest.frames)}
    if options.dynamic is False:
        return {name: _fixed(span.optimum) for name, span in manifest.ranges.items()}
    return manifest.ranges


def engine_ranges(ranges: DimensionRanges) -> DimensionRanges:
    """Returns `ranges` reduced to what a run asks of an engine, which holds memory for the largest
    shape of its profile. A run encodes one segment of speech and denoises one window at a time, and
    fills batches of pictures up to the usual number.
    """
    reduced = dict(ranges)
    for name, span in ranges.items():
        if name in _ONE_AT_A_TIME:
            maximum = max(span.minimum, min(1, span.maximum))
            reduced[name] = DimensionRange(span.minimum, min(span.optimum, maximum), maximum)
        elif name in _ALWAYS_AT_OPTIMUM:
            reduced[name] = _fixed(span.optimum)
    return reduced


def _fixed(size: int) -> DimensionRange:
    return DimensionRange(size, size, size)


def ranges_of_graph(entry: GraphEntry, ranges: DimensionRanges) -> dict[str, DimensionRange]:
    """Returns those of `ranges` that inputs of a graph have, in the order of their names."""
    names = {size for tensor in entry.inputs for size in tensor.shape}
    return {name: ranges[name] for name in sorted(ranges) if name in names}


def input_shapes(entry: GraphEntry, ranges: DimensionRanges) -> dict[str, ProfileShapes]:
    """Returns the shapes of the inputs that have a variable dimension; empty for a graph of fixed
    shapes.
    """
    minima = {name: span.minimum for name, span in ranges.items()}
    maxima = {name: span.maximum for name, span in ranges.items()}
    shapes: dict[str, ProfileShapes] = {}
    for tensor in entry.inputs:
        least = shape_with(tensor.shape, minima)
        if least != tensor.shape:
            usual = usual_shape(tensor.shape, ranges)
            shapes[tensor.name] = (least, usual, shape_with(tensor.shape, maxima))
    return shapes


def usual_shape(shape: Sequence[int | str], ranges: DimensionRanges) -> Shape:
    """Returns a shape with its variable dimensions at their optimum."""
    return shape_with(shape, {name: span.optimum for name, span in ranges.items()})


def shape_with(shape: Sequence[int | str], sizes: Mapping[str, int]) -> Shape:
    """Returns a shape with these sizes of its variable dimensions."""
    return tuple(size if isinstance(size, int) else sizes[size] for size in shape)
