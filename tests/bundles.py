"""Bundles of a few bytes, for tests that never run them."""

from pathlib import Path

from latentsync_trt.bundle.manifest import (
    REQUIRED_GRAPHS,
    Bundle,
    DimensionRange,
    GraphEntry,
    Manifest,
    Precision,
    TensorEntry,
    files_of,
    write_manifest,
)


def make_bundle(folder: Path, precision: Precision = "fp32") -> Bundle:
    """A complete bundle, called "small", whose graphs contain their names."""
    folder.mkdir(parents=True)
    (folder / "net.weights").write_bytes(bytes(range(256)))
    graphs = {}
    for name in REQUIRED_GRAPHS:
        # names its producer
        (folder / f"{name}.onnx").write_bytes(bytes([2 << 3 | 2, len(name)]) + name.encode())
        tensors = (TensorEntry("x", "float32", ("windows", 4)),)
        graphs[name] = GraphEntry(f"{name}.onnx", "net.weights", tensors, tensors)
    manifest = Manifest(
        name="small",
        model="1.6",
        resolution_px=64,
        frames=16,
        precision=precision,
        shapes="dynamic",
        audio_layers=5,
        audio_width=64,
        opset=23,
        unet={"widths": [32, 32]},
        graphs=graphs,
        files=files_of(folder),
        ranges={"windows": DimensionRange(1, 2, 4)},
        notes=("made by a test",),
    )
    write_manifest(folder, manifest)
    return Bundle.load(folder)
