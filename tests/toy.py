"""A bundle of variable shapes whose denoiser's results can be computed by hand.

A full step triples the latents, as it adds `hidden`, twice the latents; a cached step adds the same
`hidden` again. Unguided, `hidden` is the latents themselves, with an axis more. Every step adds the
latents that it was given to the history. Nothing else in it is used.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from latentsync_trt.bundle.manifest import (
    Bundle,
    DimensionRange,
    GraphEntry,
    Manifest,
    TensorEntry,
    files_of,
)

FRAMES = 4
WIDTH = 2
TOKENS = 3
DEPTH = 5
RANGES = {"windows": DimensionRange(1, 1, 4), "frames": DimensionRange(2, FRAMES, 8)}

_STATE = ("windows", 4, "frames", WIDTH, WIDTH)
_INPUTS = (
    TensorEntry("latents", "float32", _STATE),
    TensorEntry("conditioning", "float32", ("windows", 9, "frames", WIDTH, WIDTH)),
    TensorEntry("audio", "float32", ("windows", "frames", TOKENS, DEPTH)),
    TensorEntry("timestep", "int64", ()),
    TensorEntry("guidance", "float32", ()),
    TensorEntry("history", "float32", _STATE),
    TensorEntry("coefficients", "float32", (5,)),
)
_NEXT = (
    TensorEntry("next_latents", "float32", _STATE),
    TensorEntry("next_history", "float32", _STATE),
)
_HIDDEN = TensorEntry("hidden", "float32", _STATE)
_UNGUIDED_HIDDEN = TensorEntry("hidden", "float32", (1, *_STATE))
_ADD_UP = [
    helper.make_node("Add", ["latents", "hidden"], ["next_latents"]),
    helper.make_node("Add", ["history", "latents"], ["next_history"]),
]


def write_toy(folder: Path, *, unguided: bool = False) -> Bundle:
    """Writes the two graphs of the guided denoiser into a new folder, and those of the unguided one
    if asked to.
    """
    folder.mkdir(parents=True)
    doubled = helper.make_node("Add", ["latents", "latents"], ["hidden"])
    graphs = {
        "denoise_step": _write(
            folder, "denoise_step", [doubled, *_ADD_UP], _INPUTS, (*_NEXT, _HIDDEN)
        ),
        "denoise_step_cached": _write(
            folder, "denoise_step_cached", _ADD_UP, (*_INPUTS, _HIDDEN), _NEXT
        ),
    }
    if unguided:
        graphs |= _write_unguided(folder)
    return bundle_of(folder, "toy", graphs, RANGES)


def bundle_of(
    folder: Path, name: str, graphs: Mapping[str, GraphEntry], ranges: Mapping[str, DimensionRange]
) -> Bundle:
    """A bundle of the graphs that were written into `folder`, with a weights file that is not
    read.
    """
    (folder / "unet.weights").write_bytes(b"none")
    manifest = Manifest(
        name=name,
        model=name,
        resolution_px=8 * WIDTH,
        frames=FRAMES,
        precision="fp32",
        shapes="dynamic",
        audio_layers=1,
        audio_width=DEPTH,
        opset=21,
        unet={},
        graphs=graphs,
        files=files_of(folder),
        ranges=ranges,
    )
    return Bundle(folder, manifest)


def _write_unguided(folder: Path) -> dict[str, GraphEntry]:
    axis = helper.make_node("Constant", [], ["axis"], value_ints=[0])
    keep = helper.make_node("Unsqueeze", ["latents", "axis"], ["hidden"])
    kept = helper.make_node("Squeeze", ["hidden", "axis"], ["flat"])
    add_up = [helper.make_node("Add", ["latents", "flat"], ["next_latents"]), _ADD_UP[1]]
    full = "denoise_step_unguided"
    cached = "denoise_step_unguided_cached"
    return {
        full: _write(
            folder, full, [axis, keep, kept, *add_up], _INPUTS, (*_NEXT, _UNGUIDED_HIDDEN)
        ),
        cached: _write(folder, cached, [axis, kept, *add_up], (*_INPUTS, _UNGUIDED_HIDDEN), _NEXT),
    }


def toy_inputs(frames: int = FRAMES) -> list[np.ndarray]:
    """Latents, conditioning and audio of a window."""
    random = np.random.default_rng(1)
    shapes = [(4, frames, WIDTH, WIDTH), (9, frames, WIDTH, WIDTH), (frames, TOKENS, DEPTH)]
    return [random.standard_normal(shape, np.float32) for shape in shapes]


def _write(
    folder: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: tuple[TensorEntry, ...],
    outputs: tuple[TensorEntry, ...],
) -> GraphEntry:
    graph = helper.make_graph(
        nodes, name, [_info(entry) for entry in inputs], [_info(entry) for entry in outputs]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, folder / f"{name}.onnx")
    return GraphEntry(f"{name}.onnx", "unet.weights", inputs, outputs)


def _info(entry: TensorEntry) -> onnx.ValueInfoProto:
    element = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}[entry.dtype]
    return helper.make_tensor_value_info(entry.name, element, entry.shape)
