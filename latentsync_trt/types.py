"""Frozen dataclasses passed between the stages, and spans of time.

Arrays: images are uint8 `(H, W, 3)` in RGB, row 0 at the top; geometry is in pixels with (x, y)
order and the center of the top-left pixel at (0, 0); times are exact seconds as `Fraction`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.measures import Interval, Measures

UInt8Array = NDArray[np.uint8]
UInt16Array = NDArray[np.uint16]
SampleArray = NDArray[np.unsignedinteger[Any]]
"""uint8 or uint16."""
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Complex128Array = NDArray[np.complex128]
BoolArray = NDArray[np.bool_]
SpanSeconds = tuple[float, float]
"""Begin and end of a span, in seconds."""


@dataclass(frozen=True, slots=True)
class ColorTags:
    """ITU-T H.273 code points of a stream; 2 = not specified."""

    primaries: int = 2
    transfer: int = 2
    matrix: int = 2
    full_range: bool | None = None
    """None where the source does not say."""


@dataclass(frozen=True, slots=True)
class HdrMetadata:
    """What a file says about the display that its HDR picture was made on."""

    mastering: tuple[Fraction, ...] | None = None
    """x and y of the primaries red, green, blue and of white, then the least and largest cd/m²;
    None if not stated.
    """
    light: tuple[int, int] | None = None
    """The brightest pixel and the brightest mean of a picture, in cd/m²; None if not stated."""
    dynamic: tuple[str, ...] = ()
    """Kinds of metadata that change from picture to picture."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """A video stream's properties. What the file does not state is None."""

    width_px: int
    """After rotation, as are `height_px` and `sample_aspect_ratio`."""
    height_px: int
    duration_s: Fraction | None
    pixel_format: str
    """FFmpeg's name for the `YuvPlanes` of its frames."""
    interlaced: bool
    sample_aspect_ratio: Fraction
    """Width of a pixel / its height."""
    color: ColorTags = ColorTags()
    """How the `YuvPlanes` of its frames are coded."""
    frames_per_s: Fraction | None = None
    """The mean over the file."""
    start_s: Fraction | None = None
    """Time stamp of the first picture."""
    time_base: Fraction | None = None
    """Seconds of which all its times are multiples."""
    hdr: HdrMetadata = HdrMetadata()
    """What the first picture says."""
    captions: bool = False
    """Whether the first picture has captions (CEA-608, CEA-708)."""
    chroma_place: tuple[int, int] | None = None
    """How far a chroma sample lies to the right of and below the first pixel that it covers, in
    half pixels.
    """
    top_field_first: bool | None = None
    """Of interlaced pictures, whether the top field is the earlier one."""
    views: tuple[str, ...] = ()
    """Why the first picture is no plain one: "360°" or "3D"."""


@dataclass(frozen=True, slots=True, eq=False)
class YuvPlanes:
    """A picture as three planes, coded as `color` says: uint8, or uint16 where `bits` is above 8.
    With matrix 0, the planes hold G, B and R.
    """

    y: SampleArray
    """`(H, W)`."""
    u: SampleArray
    """`(ceil(H/a), ceil(W/b))` with a and b 1 or 2: 4:2:0, 4:2:2, 4:4:0 or 4:4:4."""
    v: SampleArray
    """Shaped like `u`."""
    color: ColorTags
    bits: int = 8

    @property
    def pixels_per_sample(self) -> tuple[int, int]:
        """How many rows and columns of pixels a chroma sample covers: each 1 or 2."""
        rows = 1 if self.u.shape[0] == self.y.shape[0] else 2
        columns = 1 if self.u.shape[1] == self.y.shape[1] else 2
        return rows, columns


class Picture(Protocol):
    """Read-only RGB image, uint8 `(H, W, 3)`: an array, or an object that computes only the parts
    that are read.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and 3."""
        ...

    def __getitem__(self, place: tuple[slice, slice], /) -> UInt8Array:
        """Returns these rows and columns."""
        ...

    def __array__(self) -> UInt8Array:
        """Returns the whole picture."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One output frame."""

    index: int
    time_s: Fraction
    """Time in the output."""
    duration_s: Fraction
    """Duration in the output."""
    source_s: Fraction
    """Time of its picture in the source, whose first one is at 0; it goes back where the source is
    played again or backwards.
    """
    picture: Picture
    """What faces are found and painted in."""
    planes: YuvPlanes | None
    """The same picture in the encoder's chroma sampling, so that unchanged pixels are never
    converted; None for RGB output.
    """
    damaged: bool = False
    """Whether a part of the picture is missing or wrong in the source's file."""
    new_aspect: Fraction | None = None
    """Width / height of its pixels, where that is no longer the first picture's."""
    has_captions: bool = False
    """Whether it is the first one in the source with closed captions (CEA-608, CEA-708)."""

    @property
    def rgb(self) -> UInt8Array:
        """The whole picture as an array `(H, W, 3)`."""
        return np.asarray(self.picture)


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """New pixels for one rectangle of a frame, whose top-left corner is at `x_px`, `y_px`."""

    x_px: int
    y_px: int
    rgb: UInt16Array
    """`(h, w, 3)`: 257 × the 8-bit level, SDR as in `Frame.picture`."""
    weight: Float32Array
    """`(h, w)` in [0, 1]: how much of it shows; pixels of weight 0 must reach the output unchanged.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """A face in a frame, in pixels."""

    box: Float32Array
    """`(4,)`: left, top, right, bottom."""
    points: Float32Array
    """`(3, 2)`: mean upper edge of the left brow, of the right brow (left and right in the image),
    nose center.
    """
    score: float = 1.0
    """In [0, 1]."""
    landmarks: Float32Array | None = None
    """`(n, 2)`: more points of the face, always the same ones, which help to recognize a cut; None
    if the detector has none.
    """


class FaceDetector(Protocol):
    """Finds the faces of one frame."""

    def detect(self, frame: UInt8Array) -> list[Face]:
        """Returns the faces in `frame` (uint8 `(H, W, 3)` RGB), in no particular order; empty if
        there is none.
        """
        ...


class Enhancer(Protocol):
    """Improves painted faces before they are pasted."""

    def enhance(self, face: Float32Array) -> Float32Array:
        """Returns the same face at the same place, RGB float32 `(n, n, 3)` in [0, 1] with n ≥ H.

        Args:
            face: RGB float32 `(H, H, 3)` in [0, 1], in the network's pose; what was not painted is
                like the source.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AlignedFace:
    """A face, aligned to the network's reference pose."""

    image: UInt8Array
    """`(H, H, 3)` RGB at the network's resolution."""
    matrix: Float64Array
    """`(2, 3)`: maps pixels of the frame to those of the upright crop."""
    crop_size_px: tuple[int, int]
    """Width and height of the crop before it is resized to H×H."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameMask:
    """A part of a frame that stays as it is in the source."""

    from_frame: Float64Array
    """Shape `(2, 3)`: frame pixels → pixels of the mask."""
    levels: UInt8Array
    """255 where the source stays, 0 where it may be painted over, uint8 `(h, w)`."""


class Denoiser(Protocol):
    """Holds the latents of one window and updates them step by step."""

    def begin(
        self,
        latents: Float32Array,
        conditioning: Float32Array,
        audio: Float32Array,
        guidance: float,
    ) -> None:
        """Begins with a window: float32 `(4, F, h, w)`, `(9, F, h, w)` and `(F, S, D)`; at a
        guidance of 1 or below, all steps run without guidance.
        """
        ...

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool) -> None:
        """Updates the latents once, with the coefficients `(5,)` of `diffusion.Step`; `cached`
        reuses features of the last full step.
        """
        ...

    def latents(self) -> Float32Array:
        """Returns the current latents, float32 `(4, F, h, w)`."""
        ...


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds one stage was busy, and the frames it handled."""

    stage: str
    busy_s: float
    frames: int


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Time spent on one engine."""

    graph: str
    provider: str
    node_share: float
    """Share of the graph's nodes that run on `provider`."""
    built: bool
    """Whether it was built in this run."""
    build_s: float
    """Duration of the build, in this run or earlier, for the cache."""
    open_s: float
    """Sum over all openings, without building."""
    runs: int = 0
    first_ms: float = 0.0
    """Duration of the first run."""
    mean_ms: float = 0.0
    """Mean of all other runs; the first, if there are none."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` output frames (None if unknown) have passed `stage`."""

    stage: str
    done: int
    total: int | None
    picture: Callable[[], UInt8Array] | None = field(default=None, compare=False, repr=False)
    """Makes a small picture of the newest finished frame: uint8 `(h, w, 3)` RGB, h ≤ 480, square
    pixels. Only in stage "lip-sync"; to be called within the callback.
    """
    written_s: float = field(default=0.0, compare=False)
    """Seconds of the output that are written."""
    frames_per_s: float = field(default=0.0, compare=False)
    """Pace of painting; 0 before, and in other stages."""
    left_s: float | None = field(default=None, compare=False)
    """Seconds until the last frame, where more is known than the pace."""

    @property
    def seconds_left(self) -> float | None:
        """Time until the last frame; None where pace or number of frames is unknown."""
        if self.left_s is not None:
            return self.left_s
        if self.total and self.frames_per_s:
            return (self.total - self.done) / self.frames_per_s
        return None

    @property
    def writes(self) -> bool:
        """Whether `done` counts frames of the result; other stages count those of the source."""
        return self.stage in ("lip-sync", "finishing")


NoticeCallback = Callable[[str], None]
"""Gets a sentence for the user about something unusual that did not end the run;
it is called from any thread.
"""

ProgressCallback = Callable[[Progress], None]


Front = Literal["free", "kept", "covered"]
"""What is in front of the mouths that follow a voice in a frame: nothing; something that stays as
it is; so much that a face is not painted.
"""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a finished run did."""

    output: str
    bundle: str
    provider: str
    frames: int
    frames_with_face: int
    windows: int
    duration_s: float
    """Duration of the output."""
    wall_s: float
    """Time from the start of this call, after waiting for others, to the finished file."""
    startup_s: float
    """The part of `wall_s` until the first windows have been painted, or `opened_s` where hardly
    any follow.
    """
    frames_per_s: float
    """Frames painted between `startup_s` and `finish_s` by that time; from `opened_s` on where
    fewer frames follow the first windows than these have.
    """
    stages: tuple[StageTime, ...]
    """How long each stage was busy; they overlap."""
    engines: tuple[EngineTime, ...]
    notices: tuple[str, ...]
    untouched: tuple[Interval, ...] = ()
    """Times without a painted face."""
    in_front: tuple[Interval, ...] = ()
    """Times with something in front of a mouth that follows a voice; see `Front`."""
    painted: tuple[Interval, ...] = ()
    """Times at which a face is painted, with whose it is, as "person 0"; by person, in order."""
    speech: tuple[Interval, ...] = ()
    """Times at which a recording is heard, with whose it is; by recording, in order."""
    quality: Measures | None = None
    opened_s: float = 0.0
    """The part of `wall_s` until all networks are open."""
    finish_s: float = 0.0
    """The part of `wall_s` after the last frame was written."""
    picture_delay_s: float = 0.0
    """Time of the output at which the source's first picture is shown; negative where the output
    begins later in the source, as a preview does.
    """

    redone: tuple[SpanSeconds, ...] = ()
    """The times of a result that were done again, of which alone `frames`, `painted`, `untouched`,
    `in_front` and `quality` tell; none where all of it was made.
    """

    @property
    def painting_s(self) -> float:
        return self.wall_s - self.startup_s - self.finish_s


def within(times_s: Float64Array, spans_s: Sequence[SpanSeconds]) -> BoolArray:
    """Returns whether each of `times_s (n,)` is in one of the spans, which ascend and are apart."""
    edges = np.array(spans_s, np.float64).reshape(-1)
    edges_before = np.searchsorted(edges, times_s, side="right")
    return edges_before % 2 == 1


def runs_of_true(values: BoolArray) -> list[tuple[int, int]]:
    """Returns first and past-the-last index of each run of True in `values (n,)`."""
    changes = np.diff(values.astype(np.int8), prepend=0, append=0)
    edges = np.flatnonzero(changes).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
