"""The VAE between pictures and latents: integer pictures give the same results as float ones
through its graphs.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.face.align import mouth_mask
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.selection import Selection
from scripts import make_graphs
from tests.small import LATENT_SIDE, RESOLUTION_PX, small_bundle

STEP = 1 / 65535
"""Half a step of 16 bits is what rounding may cost, in [−1, 1]."""


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    graphs = ["vae_encoder", "vae_decoder"]
    with closing(
        open_model(Bundle.load(small_bundle()), Selection("cpu"), RuntimeOptions(), graphs)
    ) as opened:
        yield opened


def faces(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(
        0, 256, (count, RESOLUTION_PX, RESOLUTION_PX, 3), np.uint8
    )


def run(graph: str, array: np.ndarray) -> np.ndarray:
    """A graph on floats, in batches of its size."""
    session = Session(small_bundle() / f"{graph}.onnx")
    name = session.inputs[0].name
    size = session.inputs[0].shape[0]
    filled = np.resize(array, (-(-len(array) // int(size)) * int(size), *array.shape[1:]))
    results = [session.run({name: part})[0] for part in np.split(filled, len(filled) // int(size))]
    return np.concatenate(results)[: len(array)]


def as_images(pictures: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2) / np.float32(127.5) - np.float32(1))


@pytest.mark.parametrize("count", [1, 7])
def test_faces_are_encoded_whole_and_masked_and_decoded_to_sixteen_bits(
    model: Model, count: int
) -> None:
    mask = mouth_mask(RESOLUTION_PX)
    images = as_images(faces(count))
    masked, whole = model.vae.encode_faces(faces(count), mask)
    np.testing.assert_array_equal(whole, run("vae_encoder", images))
    np.testing.assert_array_equal(masked, run("vae_encoder", images * mask))
    assert np.abs(masked - whole).max() > 0.01
    painted = np.stack(model.vae.decode_faces(whole))
    assert (painted.shape, painted.dtype) == ((count, RESOLUTION_PX, RESOLUTION_PX, 3), np.uint16)
    expected = run("vae_decoder", whole).clip(-1, 1).transpose(0, 2, 3, 1)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(painted * (2 / 65535) - 1, expected, atol=1.01 * STEP)


def test_buffers_share_no_memory_with_inputs_or_results(model: Model) -> None:
    """Buffers are used again for the next batch: neither the caller's arrays nor the results may be
    those buffers.
    """
    pictures = faces(4)
    latents = np.random.default_rng(1).standard_normal((4, 4, LATENT_SIDE, LATENT_SIDE), np.float32)
    given = pictures.copy(), latents.copy()
    encoded = model.vae.encode_faces(pictures, mouth_mask(RESOLUTION_PX))
    painted = model.vae.decode_faces(latents)
    kept = [array.copy() for array in (*encoded, *painted)]
    model.vae.encode_faces(faces(4, seed=6), mouth_mask(RESOLUTION_PX))
    model.vae.decode_faces(-latents)
    for array, copy in zip((*encoded, *painted, pictures, latents), (*kept, *given), strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("name", ["faces_in", "faces_out", "resize"])
def test_the_graphs_are_what_the_script_writes(name: str) -> None:
    shipped = onnx.load(make_graphs.FOLDER / f"{name}.onnx")
    assert shipped == getattr(make_graphs, name)()


def test_levels_beyond_the_range_are_clipped() -> None:
    levels = np.array([-np.inf, -1.5, -1, 0, 1 - 2 / 65535, 1, 7, np.inf], np.float32)
    image = np.broadcast_to(levels, (1, 3, 1, len(levels))).copy()
    (painted,) = ReferenceEvaluator(make_graphs.faces_out()).run(None, {"image": image})
    assert painted[0, 0, :, 0].tolist() == [0, 0, 0, 32768, 65534, 65535, 65535, 65535]
