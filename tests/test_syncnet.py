"""SyncNet: cepstra and scores against slow, straightforward ones, its graph against PyTorch, and
what commands show.
"""

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from latentsync_trt.audio.mel import cepstra_of
from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, SYNCNET_FILE
from latentsync_trt.cli import main
from latentsync_trt.errors import BundleError, CheckpointError
from latentsync_trt.export.syncnet import load_syncnet
from latentsync_trt.face.align import crop_size_px
from latentsync_trt.measure.quality import PaintSample, Quality
from latentsync_trt.measure.syncnet import (
    EMBEDDING,
    VIEW_SIZE_PX,
    Embeddings,
    SyncMeter,
    SyncNet,
    view_of,
)
from latentsync_trt.types import AlignedFace, Face, Float32Array, Patch, UInt8Array
from tests.clips import frame_at, write_clip
from tests.small import small_bundle
from tests.syncnet import random_weights, write_means, write_weights

SAME_AS_PYTORCH = 1e-5
"""Of the largest value: both sum up in single precision, in another order."""

SAME_CEPSTRA = 1e-4
"""Of values up to 20, kept in single precision."""


def ran(checkpoints: Path, *arguments: str | Path) -> Result:
    return CliRunner(env={CHECKPOINTS_VARIABLE: str(checkpoints)}).invoke(
        main, [*map(str, arguments)]
    )


# Cepstra


def slow_cepstra(samples: Float32Array) -> Float32Array:
    """`python_speech_features.mfcc(samples, 16000)` without its last, padded window, term by
    term.
    """
    signal = [samples[0], *(samples[1:] - 0.97 * samples[:-1])]
    mels = [step * 2595 * math.log10(1 + 8000 / 700) / 27 for step in range(28)]
    edges = [int(513 * 700 * (10 ** (mel / 2595) - 1) / 16000) for mel in mels]
    eps = float(np.finfo(np.float64).eps)
    cepstra = []
    for start in range(0, len(signal) - 400 + 1, 160):
        power = np.abs(np.fft.rfft(signal[start : start + 400], 512)) ** 2 / 512
        bands = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            rising = sum(power[at] * (at - low) / (middle - low) for at in range(low, middle))
            falling = sum(power[at] * (high - at) / (high - middle) for at in range(middle, high))
            bands.append(math.log(rising + falling or eps))
        row = []
        for order in range(13):
            total = sum(
                band * math.cos(math.pi * order * (2 * at + 1) / 52)
                for at, band in enumerate(bands)
            )
            scale = math.sqrt((1 if order == 0 else 2) / 26)
            row.append(total * scale * (1 + 11 * math.sin(math.pi * order / 22)))
        row[0] = math.log(power.sum() or eps)
        cepstra.append(row)
    return np.array(cepstra, np.float32)


def test_cepstra_are_those_of_python_speech_features() -> None:
    """Also of digital silence, whatever the lengths of the blocks."""
    rng = np.random.default_rng(4)
    samples = (rng.normal(0, 0.1, 9000) * np.linspace(0, 1, 9000)).astype(np.float32)
    samples[3000:5000] = 0
    expected = slow_cepstra(np.rint(samples * 32768.0))
    assert len(expected) == 54
    for lengths in ([9000], [7, 300, 4000, 1, 4692]):
        cepstra = cepstra_of(np.split(samples, np.cumsum(lengths)[:-1]))
        assert cepstra.dtype == np.float32
        np.testing.assert_allclose(cepstra, expected, atol=SAME_CEPSTRA)
    assert cepstra_of([samples[:400]]).shape == (1, 13)
    assert cepstra_of([samples[:399]]).shape == (0, 13)


# Network


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With random weights, as `export --syncnet` writes it, where other commands look for it."""
    folder = tmp_path_factory.mktemp("syncnet")
    result = ran(
        folder / "checkpoints", "export", "--syncnet", write_weights(folder / "syncnet_v2.model")
    )
    assert result.exit_code == 0, result.output
    target = folder / "checkpoints" / SYNCNET_FILE
    said = re.fullmatch(
        rf"{target}: SyncNet, within (\S+) of PyTorch; other weights than .*\n", result.stdout
    )
    assert said is not None
    assert 0 < float(said[1]) < SAME_AS_PYTORCH
    return target


def test_the_graph_embeds_windows_as_pytorch_does(graph: Path) -> None:
    """Faces as OpenCV reads them, in BGR, and of levels up to 255; also more windows than at
    export.
    """
    rng = np.random.default_rng(5)
    views = rng.integers(0, 256, (7, *VIEW_SIZE_PX, 3)).astype(np.uint8)
    cepstra = rng.normal(0, 10, (4 * 5 + 16, 13)).astype(np.float32)
    network = load_syncnet(graph.parent.parent / "syncnet_v2.model")
    assert sum(parameter.numel() for parameter in network.parameters()) == 13_631_616
    faces = torch.stack(
        [torch.tensor(views[at : at + 5, ..., ::-1].copy()).permute(3, 0, 1, 2) for at in range(3)]
    )
    steps = torch.stack(
        [torch.tensor(cepstra[4 * at : 4 * at + 20].T.copy())[None] for at in range(5)]
    )
    with torch.inference_mode():
        expected = network(faces.float(), steps)
    opened = SyncNet(graph)
    embeddings = opened.embed(views, cepstra)
    for rows, wanted in zip((embeddings.lips, embeddings.speech), expected, strict=True):
        assert rows.shape == wanted.shape
        most = float(wanted.abs().max())
        assert np.abs(rows - wanted.numpy()).max() < SAME_AS_PYTORCH * most
        assert np.abs(rows[0] - rows[1]).max() > 100 * SAME_AS_PYTORCH * most


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    weights = random_weights()
    del weights["netfclip.3.bias"]
    with pytest.raises(CheckpointError, match=r"Missing key.*netfclip\.3\.bias"):
        load_syncnet(write_weights(tmp_path / "w", weights))
    with pytest.raises(BundleError, match=r"vae_encoder\.onnx: is not SyncNet"):
        SyncNet(small_bundle() / "vae_encoder.onnx")


# Scores

CODES = np.random.default_rng(6).normal(0, 1, (400, EMBEDDING)).astype(np.float32)


class Numbered:
    """A network whose lips show the number in their picture, and whose speech says that of its
    first cepstrum; both are near where numbers are equal.
    """

    def embed(self, views: UInt8Array, cepstra: Float32Array) -> Embeddings:
        lips = views[:-4, 0, 0, :2].astype(int) @ (1, 256)
        near = (
            np.random.default_rng(len(lips)).normal(0, 1, (len(lips), EMBEDDING)).astype(np.float32)
        )
        return Embeddings(CODES[lips] + near, CODES[cepstra[:-16:4, 0].astype(int) // 4])


def numbered(number: int) -> UInt8Array:
    view = np.zeros((*VIEW_SIZE_PX, 3), np.uint8)
    view[0, 0, :2] = number % 256, number // 256
    return view


def meter_of(
    frames: int, network: object = Numbered(), start_s: Fraction = Fraction(0)
) -> SyncMeter:
    """One whose speech lasts for so many frames."""
    heard = np.repeat(np.arange(4 * frames - 2, dtype=np.float32)[:, None], 13, axis=1)
    with patch("latentsync_trt.measure.syncnet.cepstra_of", return_value=heard):
        return SyncMeter(network, Path("unread.wav"), start_s)  # type: ignore[arg-type]


SEEN = AlignedFace(np.zeros((1, 1, 3), np.uint8), np.array([[1.0, 0, -37], [0, 1, 7]]), (150, 200))
"""The face of which a frame of the size of a view is the view."""


@pytest.mark.parametrize(("fps", "late"), [(24, 3), (30, -7)])
def test_the_offset_of_lips_is_found(fps: int, late: int) -> None:
    """At any rate, in a part of the video where the speech begins later."""
    start_s = Fraction(2)
    meter = meter_of(200, start_s=start_s)
    for index in range(2 * fps, 9 * fps):
        time_s = Fraction(index, fps)
        meter.add(time_s, numbered(max(round((time_s - start_s) * 25) - late, 0)), SEEN)
    verdict = meter.result()
    assert verdict is not None
    assert verdict.offset_frames == late
    assert verdict.windows == pytest.approx(175 - 4, abs=1)
    assert verdict.lse_d == min(verdict.distances) < 0.8 * np.median(verdict.distances)
    assert str(verdict).endswith({3: ", 3 frames late", -7: ", 7 frames early"}[late])


class Random:
    """A network with random embeddings, which it keeps."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(7)
        self.lips = list[Float32Array]()

    def embed(self, views: UInt8Array, cepstra: Float32Array) -> Embeddings:
        lips = self._rng.normal(0, 1, (len(views) - 4, EMBEDDING)).astype(np.float32)
        self.lips += [*lips]
        return Embeddings(lips, CODES[cepstra[:-16:4, 0].astype(int) // 4])


def test_scores_are_those_of_the_public_code() -> None:
    """Its `calc_pdist` and what follows."""
    network = Random()
    meter = meter_of(70, network)
    for index in range(90):  # beyond the end of the speech
        meter.add(Fraction(index, 25), numbered(index), SEEN)
    lips = torch.tensor(np.stack(network.lips))
    speech = torch.tensor(CODES[:65])
    padded = torch.nn.functional.pad(speech, (0, 0, 15, 15))
    distance = torch.nn.functional.pairwise_distance
    verdict = meter.result()
    assert verdict is not None
    assert verdict.windows == len(lips) == 70 - 5
    rows = [distance(lips[[at]].repeat(31, 1), padded[at : at + 31]) for at in range(len(lips))]
    means = torch.mean(torch.stack(rows, 1), 1)
    least, best = torch.min(means, 0)
    np.testing.assert_allclose(verdict.distances, means, rtol=1e-5)
    assert (verdict.lse_d, verdict.offset_frames) == (
        pytest.approx(float(least), rel=1e-5),
        15 - int(best),
    )
    assert verdict.lse_c == pytest.approx(float(torch.median(means) - least), abs=1e-4)


def test_windows_lie_between_gaps() -> None:
    """In which the face is away; speech around them is known."""
    meter = meter_of(400)
    for index in (*range(60), *range(80, 110), *range(130, 190)):
        meter.add(Fraction(index, 25), numbered(index), SEEN)
    verdict = meter.result()
    assert verdict is not None
    assert verdict.windows == 56 + 26 + 56
    assert verdict.offset_frames == 0
    short = meter_of(400)
    for index in range(49):
        short.add(Fraction(index, 25), numbered(index), SEEN)
    assert short.result() is None


def test_views_show_the_face_from_its_top_to_below_the_chin() -> None:
    """In a frame that is the upright crop for 256 px: 2.8 px for a unit of the pose."""
    size = crop_size_px(256)
    frame = np.full((size[1], size[0], 3), 50, np.uint8)
    places = {"middle of the face": (37.5, 43.5), "brow": (17, 20), "chin": (37.5, 85)}
    for x, y in places.values():
        frame[round(2.8 * y - 0.5), round(2.8 * x - 0.5)] = 255
    view = view_of(frame, AlignedFace(frame, np.eye(2, 3), size))
    assert view.shape == (224, 224, 3)
    ys, xs = np.nonzero(view[..., 0] > 115)
    for x, y in places.values():
        wanted = (2 * (x + 18.5), 2 * (y - 3.5))
        assert np.hypot(xs + 0.5 - wanted[0], ys + 0.5 - wanted[1]).min() < 1.5
    assert view[112, 5, 0] == 110  # beside the frame


def test_a_run_shows_the_face_as_it_is_pasted() -> None:
    """The patch, half of which shows, is nowhere else."""
    added = list[tuple[Any, ...]]()
    meter = SimpleNamespace(add=lambda *arguments: added.append(arguments))
    rng = np.random.default_rng(8)
    source = rng.integers(0, 256, (140, 105, 3)).astype(np.uint8)
    new = rng.integers(0, 256, (40, 50, 3)).astype(np.uint8)
    painted = Patch(30, 80, new.astype(np.uint16) * 257, np.full((40, 50), 0.5, np.float32))
    face = Face(np.array([20, 20, 85, 120], np.float32), np.zeros((3, 2), np.float32))
    quality = Quality([Fraction(0)], syncnet=[meter])  # type: ignore[list-item]
    sample = PaintSample(face, SEEN, painted.rgb, painted, None)
    quality.add(frame_at(0, source), 0, sample)
    pasted = source.copy()
    pasted[80:120, 30:80] = np.rint((source[80:120, 30:80].astype(float) + new) / 2)
    assert np.array_equal(added[0][1], pasted)
    assert added[0][2] is SEEN


# Commands

ALIKE = 0.05
"""How far, as a share, distances may differ between faces where a run found them and where they are
found in its file, around mouths of random weights.
"""


@pytest.mark.integration
def test_a_report_measures_what_the_file_shows(tmp_path: Path) -> None:
    """And `compare` the same; the network is found where `export` writes it."""
    graph = write_means(tmp_path / SYNCNET_FILE)
    video, audio = write_clip(tmp_path, 52, halved=True)
    command = (
        "sync",
        "--video",
        video,
        "--audio",
        audio,
        "--bundle",
        small_bundle(),
        "--provider",
        "cpu",
        "--json",
    )
    command += (
        "--steps",
        "1",
        "--guidance",
        "1",
        "--codec",
        "ffv1",
        "-o",
        tmp_path / "out.mkv",
        "--overwrite",
    )
    result = ran(tmp_path, *command, "--report", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["quality"]["syncnet"]
    assert found["windows"] == 47
    assert len(found["distances"]) == 31
    page = (tmp_path / "page.html").read_text("utf-8")
    assert f"LSE-C {found['lse_c']:.2f}, LSE-D {found['lse_d']:.2f}, " in page
    assert "the lips are late" in page
    same = (tmp_path / "out.mkv", tmp_path / "out.mkv", "--video", video, "--audio", audio)
    result = ran(tmp_path, "compare", *same, "--output", tmp_path / "compare.html", "--json")
    assert result.exit_code == 0, result.output
    a, b = json.loads(result.stdout)["clip"]["syncnet"]
    assert a == b
    assert a["windows"] == 47
    np.testing.assert_allclose(found["distances"], a["distances"], rtol=ALIKE)
    graph.write_bytes(b"damaged")
    refused = ran(tmp_path, *command, "--report", tmp_path / "page.html")
    assert refused.exit_code == 1
    assert "syncnet.onnx" in json.loads(refused.stdout)["error"]
