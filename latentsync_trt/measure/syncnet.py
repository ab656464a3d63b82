"""SyncNet's LSE-C, LSE-D and offset, with which papers compare lip-sync.

Chung and Zisserman 2016, "Out of Time: Automated Lip Sync in the Wild"; LSE: Prajwal et al. 2020,
"A Lip Sync Expert Is All You Need for Speech to Lip Generation In the Wild". Windows, cepstra and
scores are those of the public code, https://github.com/joonson/syncnet_python, and of LatentSync's
`eval/`.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from latentsync_trt.audio.mel import cepstra_of
from latentsync_trt.bundle.find import SYNCNET_FILE, checkpoints_folder
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import BundleError, InputError
from latentsync_trt.face.align import cut, rescaled
from latentsync_trt.measure.page import svg
from latentsync_trt.measures import SyncNetMeasure
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.paths import path_exists, why_missing
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.types import AlignedFace, Float32Array, Picture, UInt8Array

INPUTS = ("faces", "cepstra")
OUTPUTS = ("faces_embedding", "cepstra_embedding")
EMBEDDING = 1024

_FRAMES = 5
_STEPS = 20
_STEPS_PER_FRAME = 4
"""Pictures and cepstra of a window of a fifth of a second."""
REACH = 15
"""Most frames of offset."""
AT_ONCE = 16
"""Windows of faces in one run of the network."""
_LEAST_WINDOWS = 46
"""Of two seconds; with less, the confidence depends on what is said."""
_FURTHEST = 3
"""Faces more frames apart have nothing between them."""
_EPSILON = 1e-6
"""Added to differences by PyTorch's `pairwise_distance`."""

VIEW_SIZE_PX = 224, 224
# In units of the pose's 75×100, in which the mesh of a face spans y = 2 to 85 in three real clips.
# The public code takes a square of 1.4 times the height of the face, from its top down and around
# its middle, gray outside the frame.
_UNIT_PX = 2
_LEFT = -18.5
_TOP = 3.5
_OUTSIDE = 110


class SyncNet:
    """The exported network, open on the CPU; raises `BundleError` if the file is another graph."""

    def __init__(self, path: Path) -> None:
        self._session = Session(path)
        names = tuple(
            tuple(each.name for each in ends)
            for ends in (self._session.inputs, self._session.outputs)
        )
        if names != (INPUTS, OUTPUTS):
            raise BundleError(
                f"{path}: is not SyncNet; make it with `latentsync-trt export --syncnet FILE`"
            )

    def embed(self, views: UInt8Array, cepstra: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Embeddings `(n, 1024)` and `(m, 1024)` of the windows of `views`, uint8 `(n + 4, 224,
        224, 3)` RGB, 25 per second, and `cepstra`, float32 `(4m + 16, 13)`.
        """
        channels = np.moveaxis(views[..., ::-1], -1, 0)  # BGR, as OpenCV reads pictures
        faces = np.moveaxis(sliding_window_view(channels, _FRAMES, axis=1), (1, -1), (0, 2)).astype(
            np.float32
        )
        steps = sliding_window_view(cepstra, _STEPS, axis=0)[::_STEPS_PER_FRAME, None]
        given = np.ascontiguousarray(faces), np.ascontiguousarray(steps)
        lips, speech = self._session.run(dict(zip(INPUTS, given, strict=True)))
        return lips, speech


def open_syncnet(given: str | Path | None) -> SyncNet | None:
    """The network in the file `given`, else in the folder of bundles; None without one there.
    Raises `InputError` if the given file does not exist, `BundleError` and `EngineBuildError` if a
    file is not SyncNet.
    """
    path = Path(given or checkpoints_folder() / SYNCNET_FILE)
    if given is not None and not path_exists(path):
        raise InputError(f"--syncnet {why_missing(path)}")
    if path_exists(path):
        return SyncNet(path)
    return None


class SyncMeter:
    """Measures one face against a recording that begins at `start_s` of the video, frame by frame;
    memory grows by some 15 KB a second. Raises `MediaError` if the recording cannot be read.
    """

    def __init__(self, network: SyncNet, recording: Path, start_s: Fraction) -> None:
        self._network = network
        self._start_s = start_s
        self._cepstra = cepstra_of(read_audio_blocks(recording))
        self._views = list[UInt8Array]()
        self._next = 0
        self._held: tuple[Fraction, UInt8Array] | None = None
        self._distances: list[Float32Array] = []

    def add(self, time_s: Fraction, frame: Picture, face: AlignedFace) -> None:
        """The next `face` as it is in `frame`, uint8 `(H, W, 3)` RGB; at any rate: a 25th takes the
        nearest in time.
        """
        at = (time_s - self._start_s) * MODEL_FPS
        if self._held is not None and at - self._held[0] <= _FURTHEST:
            self._show((self._held[0] + at) / 2)
        else:
            self._end()
            self._next = max(ceil(at - Fraction(1, 2)), 0)
        self._held = at, view_of(frame, face)

    def _show(self, until: Fraction) -> None:
        """The held face is that of the frames before `until`."""
        while self._held is not None and self._next < until:
            self._views.append(self._held[1])
            self._next += 1
            if len(self._views) == AT_ONCE + _FRAMES - 1:
                self._measure()

    def _end(self) -> None:
        """The held face is the last before a gap."""
        if self._held is not None:
            self._show(self._held[0] + Fraction(1, 2))
            self._measure()
        self._held = None
        self._views = []

    def _measure(self) -> None:
        """Distances of the windows so far, as far as the recording goes, from speech at all
        offsets; keeps the last views. As in the public code, zeros stand for speech beyond both
        ends of the recording.
        """
        first = self._next - len(self._views)
        end = (len(self._cepstra) - _STEPS) // _STEPS_PER_FRAME + 1
        count = min(len(self._views) - _FRAMES + 1, end - first)
        if count > 0:
            low = max(first - REACH, 0)
            high = min(first + count + REACH, end)
            steps = self._cepstra[low * _STEPS_PER_FRAME : (high - 1) * _STEPS_PER_FRAME + _STEPS]
            lips, speech = self._network.embed(np.stack(self._views[: count + _FRAMES - 1]), steps)
            speech = np.pad(speech, ((low - first + REACH, first + count + REACH - high), (0, 0)))
            around = sliding_window_view(speech, 2 * REACH + 1, axis=0)
            self._distances.append(
                np.linalg.norm(lips[:, :, None] - around + np.float32(_EPSILON), axis=1)
            )
        self._views = self._views[1 - _FRAMES :]

    def result(self) -> SyncNetMeasure | None:
        """The measure of all faces since the last result; None with less than two seconds of
        them.
        """
        self._end()
        table = np.concatenate([np.zeros((0, 2 * REACH + 1), np.float32), *self._distances])
        self._distances = []
        if len(table) < _LEAST_WINDOWS:
            return None
        means = table.mean(axis=0)
        median = float(np.median(means))
        lse_d = float(means.min())
        best = int(means.argmin())
        return SyncNetMeasure(
            median - lse_d, lse_d, REACH - best, len(table), tuple(means.tolist())
        )


def view_of(frame: Picture, face: AlignedFace) -> UInt8Array:
    """What SyncNet sees of a face, upright: uint8 `(224, 224, 3)` RGB; `frame`: uint8 `(H, W, 3)`
    RGB.
    """
    matrix = rescaled(face, (75 * _UNIT_PX, 100 * _UNIT_PX))
    matrix[:, 2] -= _UNIT_PX * _LEFT, _UNIT_PX * _TOP
    return cut(frame, matrix, VIEW_SIZE_PX, _OUTSIDE)


def curves_of(results: Mapping[str, SyncNetMeasure | None]) -> str:
    """A plot of the distances by the name of their result; empty where nothing was measured."""
    from matplotlib.figure import Figure

    if not any(results.values()):
        return ""
    figure = Figure(figsize=(12, 3), layout="constrained")
    axes = figure.add_subplot(xlabel="frames that the lips are late", ylabel="mean distance")
    for name, found in results.items():
        if found is not None:
            axes.plot(range(REACH, -REACH - 1, -1), found.distances, ".-", label=name)
    axes.legend(frameon=False)
    return svg(figure)
