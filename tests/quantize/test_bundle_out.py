"""Bundles in eight bits: what they hold, what they say of themselves, how they are found, and that they run."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE
from latentsync_trt.bundle.manifest import (
    MANIFEST_NAME,
    REQUIRED_GRAPHS,
    Bundle,
    FileEntry,
    Manifest,
    Quantization,
    manifest_sha256,
    read_manifest,
    sha256_file,
    write_manifest,
)
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.diffusion.loop import denoise
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.bundle_out import check_target, quantize_bundle
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.select import Selection, eight_bit_notice
from latentsync_trt.types import Float32Array
from tests.quantize.eight_bit import GUIDANCE, PLAN, SCHEDULE, inputs, small_ranges
from tests.small import small_bundle

pytestmark = pytest.mark.slow

LEAST_SHARE = 0.8
MOST_OF_THE_WEIGHTS = 0.5
"""Of the float32 weights: a quarter for what is in eight bits, all for what is kept, and pages between."""

LEAST_DB = {"int8": 20.0, "fp8": 20.0}
"""Signal over noise of latents of random networks after two steps; a wrong scale anywhere leaves less than 5."""

UNCHANGED = ("audio_encoder.onnx", "audio_encoder.weights", "vae_decoder.onnx", "vae_encoder.onnx", "vae.weights")


def latents_of(folder: Path, guidance: float = GUIDANCE) -> Float32Array:
    bundle = Bundle.load(folder, verify=False)
    networks = Networks(bundle, Selection("cpu"))
    try:
        return denoise(networks.denoiser(), *inputs(bundle), guidance, SCHEDULE, PLAN)
    finally:
        networks.close()


def signal_db(found: Float32Array, exact: Float32Array) -> float:
    return float(10 * np.log10(np.mean(exact**2) / np.mean((found - exact) ** 2)))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_runs_near_its_parent(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(f"{kind}_bundle")
    assert signal_db(latents_of(folder), latents_of(small_bundle())) > LEAST_DB[kind]


def test_runs_without_guidance_too(int8_bundle: Path) -> None:
    assert signal_db(latents_of(int8_bundle, 1.0), latents_of(small_bundle(), 1.0)) > LEAST_DB["int8"]


def test_is_whole_and_says_what_it_is(int8_bundle: Path) -> None:
    made, parent = Bundle.load(int8_bundle).manifest, read_manifest(small_bundle())
    assert (made.name, made.precision, made.arithmetic) == ("small-int8", "int8", "fp32")
    assert made.quantization is not None
    assert made.quantization.parent == parent.name
    assert made.quantization.parent_sha256 == manifest_sha256(small_bundle())
    assert made.quantization.clips == {"clip.mp4": "0a"}
    assert made.quantization.distance == {"faces_psnr_db": 40.0}
    assert made.quantization.settings == {
        "samples": 1,
        "precision": "int8",
        "method": "max",
        "percentile": 99.99,
        "smooth_alpha": None,
    }
    assert LEAST_SHARE < made.quantization.share < 1
    assert "unet.conv_in.weight" in made.quantization.kept
    assert "unet.mid_block.resnets.0.conv1.weight" not in made.quantization.kept
    assert {"onnx", "onnxruntime", "ml_dtypes"} <= set(made.tools)
    assert set(made.verification).isdisjoint(name for name in made.graphs if name.startswith("denoise_step"))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_all_steps_share_one_small_weights_file(kind: str, request: pytest.FixtureRequest) -> None:
    made = read_manifest(request.getfixturevalue(f"{kind}_bundle"))
    parent = read_manifest(small_bundle())
    assert {made.graphs[name].weights for name in made.graphs if name.startswith("denoise_step")} == {"unet.weights"}
    assert made.files["unet.weights"].bytes < MOST_OF_THE_WEIGHTS * parent.files["unet.weights"].bytes
    assert {name: made.files[name] for name in UNCHANGED} == {name: parent.files[name] for name in UNCHANGED}


@pytest.fixture(scope="module")
def made_again(tmp_path_factory: pytest.TempPathFactory, int8_bundle: Path) -> Path:
    """What is made of the small bundle with CUDA forms and without the unguided steps, where another bundle lay."""
    folder = tmp_path_factory.mktemp("again")
    parent, out = folder / "parent", folder / "out"
    shutil.copytree(small_bundle(), parent)
    graphs = json.loads((parent / MANIFEST_NAME).read_text())["graphs"]
    for name in ("denoise_step", "vae_decoder"):
        shutil.copyfile(parent / f"{name}.onnx", parent / f"{name}.cuda.onnx")
        graphs[name]["forms"] = {"cuda": f"{name}.cuda.onnx"}
    rewrite(parent, graphs={name: graphs[name] for name in REQUIRED_GRAPHS})
    shutil.copytree(int8_bundle, out)
    (out / "old.txt").write_text("of the bundle that was here")
    return quantize_bundle(parent, small_ranges(), QuantizeOptions("int8"), out)


def rewrite(folder: Path, **fields: object) -> None:
    """Changes a bundle's manifest and seals it again."""
    content = {**json.loads((folder / MANIFEST_NAME).read_text()), **fields}
    files = {path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in folder.iterdir()}
    del content["sha256"], files[MANIFEST_NAME]
    write_manifest(folder, dataclasses.replace(Manifest.from_json(content), files=files))


def test_the_other_steps_add_no_weights(int8_bundle: Path, made_again: Path) -> None:
    """The full step holds all of them: rounded alike in every graph, they are stored once."""
    sizes = [read_manifest(folder).files["unet.weights"].bytes for folder in (int8_bundle, made_again)]
    assert sizes[0] == sizes[1]


def test_forms_for_cuda_are_left_behind(made_again: Path) -> None:
    """They lay weights out otherwise, and have no pairs."""
    made = Bundle.load(made_again)
    assert made.manifest.graphs["denoise_step"].forms == {}
    assert made.manifest.graphs["vae_decoder"].forms == {"cuda": "vae_decoder.cuda.onnx"}
    assert not (made.folder / "denoise_step.cuda.onnx").exists()


def test_a_bundle_that_was_there_is_replaced(made_again: Path) -> None:
    assert not (made_again / "old.txt").exists()
    assert sorted(path.name for path in made_again.parent.iterdir()) == ["out", "parent"]


def test_a_bundle_in_eight_bits_is_not_quantized_again(int8_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is in int8 already; calibrate demo, which it was made of"):
        quantize_bundle(int8_bundle, small_ranges(), QuantizeOptions("fp8"), tmp_path / "out")


def test_something_must_be_left_to_quantize(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="all 246 layers of demo would be kept as they are"):
        quantize_bundle(small_bundle(), small_ranges(), QuantizeOptions(kept=("weight",)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_places_that_are_taken(tmp_path: Path) -> None:
    parent = Bundle.load(small_bundle(), verify=False)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        check_target(parent, tmp_path / "file")
    with pytest.raises(InputError, match="holds something that is not a bundle"):
        check_target(parent, tmp_path / "folder")
    with pytest.raises(InputError, match="is the bundle to calibrate"):
        check_target(parent, small_bundle())


@pytest.fixture
def checkpoints(tmp_path: Path, int8_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float32 bundle and what was made of it."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(small_bundle(), folder / "small")
    shutil.copytree(int8_bundle, folder / "small-int8")
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, str(folder))
    return folder


def test_a_run_says_that_it_only_rounds(int8_bundle: Path) -> None:
    networks = Networks(Bundle.load(int8_bundle, verify=False), Selection("cpu"), RuntimeOptions())
    assert any("cpu runs this int8 bundle by rounding" in notice for notice in networks.take_notices())
    networks.close()


def gpu(capability: str) -> Gpu:
    return Gpu(0, "NVIDIA A100", capability, 10**10)


def test_a_gpu_without_fp8_is_named(fp8_bundle: Path, int8_bundle: Path) -> None:
    fp8, int8 = read_manifest(fp8_bundle), read_manifest(int8_bundle)
    with pytest.raises(InputError, match=r"in fp8, which GPU 0 \(NVIDIA A100, .*8\.0\) does not support: .* 8\.9; use an int8"):
        eight_bit_notice(fp8, Selection("tensorrt", gpu=gpu("8.0")))
    assert eight_bit_notice(fp8, Selection("tensorrt", gpu=gpu("8.9"))) == ""
    assert eight_bit_notice(fp8, Selection("rtx", gpu=gpu("12.0"))) == ""
    assert eight_bit_notice(int8, Selection("tensorrt", gpu=gpu("7.5"))) == ""
    assert "speed is not" in eight_bit_notice(fp8, Selection("cuda", gpu=gpu("8.0")))
    assert eight_bit_notice(read_manifest(small_bundle()), Selection("cpu")) == ""


def test_what_is_kept_of_an_engine_holds_no_weights(int8_bundle: Path, tmp_path: Path) -> None:
    """Folded into the copy of the graph, weights of eight bits would be there in 32."""
    networks = Networks(Bundle.load(int8_bundle, verify=False), Selection("cpu"), RuntimeOptions(engine_cache=tmp_path))
    networks.session("denoise_step")
    networks.close()
    (copy,) = tmp_path.rglob("graph.onnx")
    weights_bytes = read_manifest(int8_bundle).files["unet.weights"].bytes
    assert copy.stat().st_size < (int8_bundle / "denoise_step.onnx").stat().st_size + weights_bytes / 4


def test_manifests_of_before_are_read(tmp_path: Path) -> None:
    content = json.loads((small_bundle() / MANIFEST_NAME).read_text())
    content.pop("quantization", None)
    assert Manifest.from_json({key: value for key, value in content.items() if key != "sha256"}).quantization is None


def test_quantization_comes_back_as_it_was(int8_bundle: Path) -> None:
    made = read_manifest(int8_bundle).quantization
    assert made is not None
    again = Quantization(**{**json.loads(json.dumps(dataclasses.asdict(made))), "kept": made.kept})
    assert again == made
