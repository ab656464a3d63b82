"""The shapes that engines are built for. Pure.

A bundle exported with `--dynamic` names its variable dimensions (windows, images, segments, and with `--min-resolution`
heights and widths) and their ranges. A *dynamic* engine covers them; a *static* one has each dimension at its optimum.
"""

from collections.abc import Mapping, Sequence

from latentsync_trt.bundle.manifest import DimensionRange, GraphEntry, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError

Shape = tuple[int, ...]
InputShapes = tuple[Shape, ...]
"""Minimum, optimum and maximum shape of one input, as in TensorRT's optimization profiles."""


def dimension_ranges(manifest: Manifest, options: RuntimeOptions) -> dict[str, DimensionRange]:
    """Range of each variable dimension, a single value for static engines; raises `InputError` if `options` require
    dynamic engines of a static bundle."""
    if manifest.shapes == "static":
        if options.dynamic:
            cure = "export it with `--dynamic`, or leave --dynamic out"
            raise InputError(f"bundle {manifest.name} has fixed shapes; {cure}")
        return {name: DimensionRange(*[size] * 3) for name, size in (("windows", 1), ("frames", manifest.frames))}
    if options.dynamic is False:
        return {name: DimensionRange(*[span.optimum] * 3) for name, span in manifest.ranges.items()}
    return dict(manifest.ranges)


def engine_ranges(ranges: Mapping[str, DimensionRange]) -> dict[str, DimensionRange]:
    """`ranges` reduced to what a run asks of an engine, which holds memory for the largest shape of its profile.

    A run encodes one segment of speech and denoises one window at a time, and pads pictures to the usual number.
    """
    most, reduced = {"windows": 1, "segments": 1}, dict(ranges)
    for name, span in ranges.items():
        if name in most:
            maximum = max(span.minimum, min(most[name], span.maximum))
            reduced[name] = DimensionRange(span.minimum, min(span.optimum, maximum), maximum)
        elif name in {"frames", "images"}:
            reduced[name] = DimensionRange(*[span.optimum] * 3)
    return reduced


def spans_of(entry: GraphEntry, ranges: Mapping[str, DimensionRange]) -> dict[str, DimensionRange]:
    """Those of `ranges` that inputs of a graph have, in the order of their names."""
    names = {size for tensor in entry.inputs for size in tensor.shape}
    return {name: ranges[name] for name in sorted(ranges) if name in names}


def input_shapes(entry: GraphEntry, ranges: Mapping[str, DimensionRange]) -> dict[str, InputShapes]:
    """Shapes of the inputs that have a variable dimension; empty for a graph of fixed shapes."""
    return {
        tensor.name: tuple(usual_shape(tensor.shape, ranges, end) for end in ("minimum", "optimum", "maximum"))
        for tensor in entry.inputs
        if any(isinstance(size, str) for size in tensor.shape)
    }


def usual_shape(shape: Sequence[int | str], ranges: Mapping[str, DimensionRange], end: str = "optimum") -> Shape:
    return tuple(size if isinstance(size, int) else int(getattr(ranges[size], end)) for size in shape)
