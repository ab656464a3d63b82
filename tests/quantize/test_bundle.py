"""8-bit bundles: files, manifest, and that they run."""

import dataclasses
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bundle.manifest import (
    MANIFEST_NAME,
    Bundle,
    files_of,
    manifest_sha256,
    read_manifest,
    step_graph,
    write_manifest,
)
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.calibration_options import CalibrateOptions
from latentsync_trt.quantize.eight_bit_bundle import check_out, quantize_bundle
from latentsync_trt.quantize.windows import Loop
from latentsync_trt.runtime.model import open_model
from latentsync_trt.runtime.providers.choice import eight_bit_notice
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Float32Array
from tests.quantize.eight_bit import observed_small, small_loop, small_ranges, small_window
from tests.small import small_bundle

pytestmark = pytest.mark.integration

LEAST_SHARE = 0.8
LARGEST_WEIGHTS = 0.5
"""Of the float32 weights: a quarter for layers in 8 bits, all for layers that are kept, and padding
to pages.
"""

LEAST_DB = 20.0
"""Signal-to-noise ratio of latents of random networks after two steps; a wrong scale anywhere
leaves less than 5.
"""

UNCHANGED = (
    *("audio_encoder.onnx", "audio_encoder.weights", "mel_filters.npy"),
    *("vae_decoder.onnx", "vae_encoder.onnx", "vae.weights"),
)


def latents_of(folder: Path, loop: Loop) -> Float32Array:
    bundle = Bundle.load(folder, verify=False)
    graphs = [step_graph(guided=loop.guidance > 1, cached=cached) for cached in (False, True)]
    with closing(open_model(bundle, Selection("cpu"), RuntimeOptions(), graphs)) as model:
        if folder != small_bundle():
            assert any(
                f"cpu emulates this {bundle.manifest.precision} bundle" in notice
                for notice in model.notices
            )
        return model.run("denoise", lambda: loop.run(model.denoiser, small_window(bundle)))


@pytest.mark.parametrize(("kind", "guidance"), [("int8", 1.0), ("int8", 1.5), ("fp8", 1.5)])
def test_latents_are_close_to_those_of_the_parent(
    kind: str, guidance: float, request: pytest.FixtureRequest
) -> None:
    loop = small_loop(guidance)
    if guidance == 1.0:
        exact = latents_of(small_bundle(), loop)
    else:
        exact = observed_small()[1]
    error = latents_of(request.getfixturevalue(f"{kind}_bundle"), loop) - exact
    assert 10 * np.log10(np.mean(exact**2) / np.mean(error**2)) > LEAST_DB


def test_the_manifest_describes_the_calibration(int8_bundle: Path) -> None:
    manifest = Bundle.load(int8_bundle).manifest
    parent = read_manifest(small_bundle())
    precisions = (manifest.precision, manifest.arithmetic)
    assert (manifest.name, *precisions) == ("small-int8", "int8", "fp32")
    quantization = manifest.quantization
    assert quantization is not None
    assert (quantization.parent, quantization.parent_sha256) == (
        parent.name,
        manifest_sha256(small_bundle()),
    )
    assert (quantization.clips, quantization.distance) == (("clip.mp4",), {"faces_psnr_db": 40.0})
    assert LEAST_SHARE < quantization.share < 1
    assert "unet.conv_in.weight" in quantization.kept
    assert "unet.mid_block.resnets.0.conv1.weight" not in quantization.kept
    assert set(manifest.verification).isdisjoint(
        name for name in manifest.graphs if name.startswith("denoise_step")
    )


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_all_steps_share_one_small_weights_file(kind: str, request: pytest.FixtureRequest) -> None:
    manifest = read_manifest(request.getfixturevalue(f"{kind}_bundle"))
    parent = read_manifest(small_bundle())
    assert {
        manifest.graphs[name].weights for name in manifest.graphs if name.startswith("denoise_step")
    } == {"unet.weights"}
    parent_bytes = parent.files["unet.weights"].bytes
    assert manifest.files["unet.weights"].bytes < LARGEST_WEIGHTS * parent_bytes
    assert {name: manifest.files[name] for name in UNCHANGED} == {
        name: parent.files[name] for name in UNCHANGED
    }


def test_a_bundle_is_replaced_by_one_without_cuda_forms_of_steps(
    guided_bundle: Path, int8_bundle: Path, tmp_path: Path
) -> None:
    """Those have no pairs."""
    parent = tmp_path / "parent"
    out = tmp_path / "out"
    shutil.copytree(guided_bundle, parent)
    manifest = read_manifest(parent)
    graphs = dict(manifest.graphs)
    for name in ("denoise_step", "vae_decoder"):
        shutil.copyfile(parent / f"{name}.onnx", parent / f"{name}.cuda.onnx")
        graphs[name] = dataclasses.replace(graphs[name], forms={"cuda": f"{name}.cuda.onnx"})
    files = files_of(parent)
    del files[MANIFEST_NAME]
    write_manifest(parent, dataclasses.replace(manifest, graphs=graphs, files=files))
    shutil.copytree(int8_bundle, out)
    (out / "old.txt").write_text("of the bundle that was here")
    quantize_bundle(
        Bundle.load(parent), small_ranges(), CalibrateOptions("int8", percentile=100.0), out
    )
    assert not (out / "old.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "parent"]
    manifest = Bundle.load(out).manifest
    assert manifest.graphs["denoise_step"].forms == {}
    assert manifest.graphs["vae_decoder"].forms == {"cuda": "vae_decoder.cuda.onnx"}
    assert not (out / "denoise_step.cuda.onnx").exists()


def test_the_parent_is_not_replaced() -> None:
    with pytest.raises(InputError, match="is the bundle to calibrate"):
        check_out(Bundle.load(small_bundle(), verify=False), small_bundle())


def test_a_gpu_without_fp8_is_refused(int8_bundle: Path) -> None:
    def gpu(capability: str) -> Gpu:
        return Gpu(0, "NVIDIA A100", capability, 10**10)

    int8 = read_manifest(int8_bundle)
    fp8 = dataclasses.replace(int8, precision="fp8")
    with pytest.raises(InputError, match=r"A100, .*8\.0\) .* 8\.9"):
        eight_bit_notice(fp8, Selection("tensorrt", gpu=gpu("8.0")))
    assert eight_bit_notice(fp8, Selection("tensorrt", gpu=gpu("8.9"))) == ""
    assert "speed is not" in eight_bit_notice(fp8, Selection("cuda", gpu=gpu("8.0")))
