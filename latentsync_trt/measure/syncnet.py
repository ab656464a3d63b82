"""SyncNet's LSE-C, LSE-D and offset, with which papers compare lip-sync.

Chung and Zisserman 2016, "Out of Time: Automated Lip Sync in the Wild"; LSE: Prajwal et al. 2020,
"A Lip Sync Expert Is All You Need for Speech to Lip Generation In the Wild". Windows, cepstra and
scores are those of the public code, https://github.com/joonson/syncnet_python, and of LatentSync's
`eval/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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

SYNCNET_INPUTS = ("faces", "cepstra")
SYNCNET_OUTPUTS = ("faces_embedding", "cepstra_embedding")
EMBEDDING = 1024
"""Numbers in an embedding."""

_FRAMES_PER_WINDOW = 5
"""Pictures in a window of a fifth of a second."""
_STEPS_PER_WINDOW = 20
"""Cepstra in a window."""
_STEPS_PER_FRAME = 4
"""Cepstra in 40 ms."""
REACH = 15
"""The largest offset, in frames."""
WINDOWS_PER_RUN = 16
"""Windows of faces in one run of the network."""
_LEAST_WINDOWS = 46
"""Windows in two seconds; with less, the confidence depends on what is said."""
_MOST_FRAMES_APART = 3
"""Faces more frames apart have nothing between them."""
_EPSILON = 1e-6
"""What PyTorch's `pairwise_distance` adds to differences."""

VIEW_SIZE_PX = (224, 224)
_VIEW_UNIT_PX = 2
"""Pixels in a unit of the pose's 75×100.

In three real clips the mesh of a face spans y = 2 to 85 of these units.
"""
_VIEW_LEFT = -18.5
_VIEW_TOP = 3.5
"""Where the view begins, in those units. The public code takes a square of 1.4 times the height of
the face, from its top down and around its middle.
"""
_OUTSIDE_LEVEL = 110
"""The gray outside the frame, as in the public code."""


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """What the network makes of windows of a face and of speech."""

    lips: Float32Array
    """Shape `(n, 1024)`."""
    speech: Float32Array
    """Shape `(m, 1024)`."""


class SyncNet:
    """The exported network, open on the CPU; raises `BundleError` if the file is another graph."""

    def __init__(self, path: Path) -> None:
        self._session = Session(path)
        inputs = tuple(each.name for each in self._session.inputs)
        outputs = tuple(each.name for each in self._session.outputs)
        if inputs != SYNCNET_INPUTS or outputs != SYNCNET_OUTPUTS:
            raise BundleError(
                f"{path}: is not SyncNet; make it with `latentsync-trt export --syncnet FILE`"
            )

    def embed(self, views: UInt8Array, cepstra: Float32Array) -> Embeddings:
        """Returns the embeddings of the windows of `views`, uint8 `(n + 4, 224, 224, 3)` RGB, 25
        per second, and of `cepstra`, float32 `(4m + 16, 13)`.
        """
        channels = np.moveaxis(views[..., ::-1], -1, 0)  # BGR, as OpenCV reads pictures
        windows = sliding_window_view(channels, _FRAMES_PER_WINDOW, axis=1)
        faces = np.moveaxis(windows, (1, -1), (0, 2)).astype(np.float32)
        steps = sliding_window_view(cepstra, _STEPS_PER_WINDOW, axis=0)
        by_frame = steps[::_STEPS_PER_FRAME, None]
        arrays = (np.ascontiguousarray(faces), np.ascontiguousarray(by_frame))
        lips, speech = self._session.run(dict(zip(SYNCNET_INPUTS, arrays, strict=True)))
        return Embeddings(lips, speech)


def open_syncnet(file: str | Path | None) -> SyncNet | None:
    """Returns the network in a file, by default in the folder of bundles; None without one there.
    Raises `InputError` if the named file does not exist, `BundleError` and `EngineBuildError` if a
    file is not SyncNet.
    """
    path = Path(file or checkpoints_folder() / SYNCNET_FILE)
    if file is not None and not path_exists(path):
        raise InputError(f"--syncnet {why_missing(path)}")
    if path_exists(path):
        return SyncNet(path)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _TimedView:
    """A face as SyncNet sees it."""

    at: Fraction
    """Frames since the recording began."""
    view: UInt8Array


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
        self._latest: _TimedView | None = None
        self._distances: list[Float32Array] = []

    def add(self, time_s: Fraction, frame: Picture, face: AlignedFace) -> None:
        """Adds the next `face` as it is in `frame`, uint8 `(H, W, 3)` RGB; at any rate: a 25th
        takes the nearest in time.
        """
        at = (time_s - self._start_s) * MODEL_FPS
        latest = self._latest
        if latest is not None and at - latest.at <= _MOST_FRAMES_APART:
            self._take_latest((latest.at + at) / 2)
        else:
            self._end()
            self._next = max(ceil(at - Fraction(1, 2)), 0)
        self._latest = _TimedView(at, view_of(frame, face))

    def _take_latest(self, until: Fraction) -> None:
        """Takes the latest face for the frames before `until`."""
        while self._latest is not None and self._next < until:
            self._views.append(self._latest.view)
            self._next += 1
            if len(self._views) == WINDOWS_PER_RUN + _FRAMES_PER_WINDOW - 1:
                self._measure()

    def _end(self) -> None:
        """Ends the faces that follow each other: the latest one is the last before a gap."""
        if self._latest is not None:
            self._take_latest(self._latest.at + Fraction(1, 2))
            self._measure()
        self._latest = None
        self._views = []

    def _measure(self) -> None:
        """Measures the distances of the windows so far, as far as the recording goes, from speech
        at all offsets; keeps the last views. As in the public code, zeros stand for speech beyond
        both ends of the recording.
        """
        first = self._next - len(self._views)
        end = (len(self._cepstra) - _STEPS_PER_WINDOW) // _STEPS_PER_FRAME + 1
        count = min(len(self._views) - _FRAMES_PER_WINDOW + 1, end - first)
        if count > 0:
            low = max(first - REACH, 0)
            high = min(first + count + REACH, end)
            last_step = (high - 1) * _STEPS_PER_FRAME + _STEPS_PER_WINDOW
            views = np.stack(self._views[: count + _FRAMES_PER_WINDOW - 1])
            heard = self._cepstra[low * _STEPS_PER_FRAME : last_step]
            embeddings = self._network.embed(views, heard)
            before = low - (first - REACH)
            after = first + count + REACH - high
            speech = np.pad(embeddings.speech, ((before, after), (0, 0)))
            around = sliding_window_view(speech, 2 * REACH + 1, axis=0)
            differences = embeddings.lips[:, :, None] - around + np.float32(_EPSILON)
            self._distances.append(np.linalg.norm(differences, axis=1))
        self._views = self._views[1 - _FRAMES_PER_WINDOW :]

    def result(self) -> SyncNetMeasure | None:
        """Returns the measure of all faces since the last result; None with less than two seconds
        of them.
        """
        self._end()
        nothing = np.zeros((0, 2 * REACH + 1), np.float32)
        table = np.concatenate([nothing, *self._distances])
        self._distances = []
        if len(table) < _LEAST_WINDOWS:
            return None
        means = table.mean(axis=0)
        lse_d = float(means.min())
        lse_c = float(np.median(means)) - lse_d
        offset = REACH - int(means.argmin())
        return SyncNetMeasure(lse_c, lse_d, offset, len(table), tuple(means.tolist()))


def view_of(frame: Picture, face: AlignedFace) -> UInt8Array:
    """Returns what SyncNet sees of a face in a `frame`, uint8 `(H, W, 3)` RGB, upright: uint8
    `(224, 224, 3)` RGB.
    """
    size_px = (75 * _VIEW_UNIT_PX, 100 * _VIEW_UNIT_PX)
    matrix = rescaled(face, size_px)
    matrix[:, 2] -= (_VIEW_UNIT_PX * _VIEW_LEFT, _VIEW_UNIT_PX * _VIEW_TOP)
    return cut(frame, matrix, VIEW_SIZE_PX, _OUTSIDE_LEVEL)


def curves_of(results: Mapping[str, SyncNetMeasure | None]) -> str:
    """Returns a plot of the distances by the name of their result; empty where nothing was
    measured.
    """
    from matplotlib.figure import Figure

    if not any(results.values()):
        return ""
    figure = Figure(figsize=(12, 3), layout="constrained")
    axes = figure.add_subplot(xlabel="frames that the lips are late", ylabel="mean distance")
    for name, measure in results.items():
        if measure is not None:
            axes.plot(range(REACH, -REACH - 1, -1), measure.distances, ".-", label=name)
    axes.legend(frameon=False)
    return svg(figure)
