"""Tells early that a bundle does not fit the face or the resolution: before painting, and from the
first faces.
"""

from collections.abc import Callable
from statistics import fmean

import numpy as np

from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.config import MODEL_RESOLUTION_PX
from latentsync_trt.errors import InputError
from latentsync_trt.face.identity import SAME_PLACE_AND_PERSON, look_of
from latentsync_trt.measure.pictures import FaceFit, face_fit
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import Face, FaceDetector, Picture, UInt8Array, UInt16Array

_DECIDING_FACES = 8
"""Faces after which the mean decides."""

MAX_COLOR = 9.0
"""Frames of one person are up to 7.7 apart; smears are 11.6 to 13.3 off. See
benchmarks/verdicts.json.
"""
_MIN_SHARPNESS = 0.4
"""Frames of one person are at least 0.63 as sharp."""


class ModelMismatchCheck:
    """Looks at the first faces of a run.

    Args:
        strict: raise `InputError` instead of calling `on_notice`.
    """

    def __init__(
        self,
        manifest: Manifest,
        resolution_px: int,
        on_notice: Callable[[str], None],
        *,
        strict: bool,
    ) -> None:
        self._manifest = manifest
        self._resolution_px = resolution_px
        self._on_notice = on_notice
        self._strict = strict
        self._knows_one_face = manifest.model == DEMO_NAME
        self._fits: list[FaceFit] = []
        self.fit: FaceFit | None = None
        """The mean fit of the first painted faces; None before."""
        self.text = ""
        """What is wrong; empty if nothing is."""

    def check_source_face(self, picture: Picture, face: Face, detector: FaceDetector) -> None:
        """Looks at a face before it is painted; gives notice of the first one if the built-in model
        does not know it.
        """
        if not self._knows_one_face:
            return
        self._knows_one_face = False
        demo = portrait()
        expected = look_of(demo, detector.detect(demo)[0])
        look = look_of(picture, face)
        if expected is None or look is None or 1 - float(expected @ look) > SAME_PLACE_AND_PERSON:
            self._report("another face than the demo's: expect a smear for a mouth")

    def check_painted_face(self, source: UInt8Array, painted: UInt16Array) -> None:
        """Looks at the next painted face, aligned, uint16 `(H, H, 3)` RGB, 257 × level, beside its
        source.
        """
        if self.fit is not None:
            return
        levels = np.rint(painted / np.float32(257)).astype(np.uint8)
        self._fits.append(face_fit(source, levels))
        if len(self._fits) < _DECIDING_FACES:
            return
        color = fmean(fit.color for fit in self._fits)
        sharpness = fmean(fit.sharpness for fit in self._fits)
        self.fit = FaceFit(color, sharpness)
        if not self.text and (color > MAX_COLOR or sharpness < _MIN_SHARPNESS):
            figures = f"color {color:.0f} off (Lab), sharpness {sharpness:.0%} of the source's"
            text = f"the painted mouth does not look like the face ({figures})"
            self._report(f"{text}: {self._cause()}")

    def _cause(self) -> str:
        model = self._manifest.model
        side_px = self._resolution_px
        trained_px = MODEL_RESOLUTION_PX.get(model, side_px)
        if model == DEMO_NAME:
            return "the built-in model knows one face, the demo's"
        if trained_px != side_px:
            return (
                f"model {model} was trained at {trained_px} px, "
                f"this run paints at {side_px} px (--resolution)"
            )
        return (
            f"probably bundle {self._manifest.name} holds other "
            f"weights than those of model {model}, or weights for "
            "another resolution; export it again from the right checkpoint"
        )

    def _report(self, text: str) -> None:
        self.text = text
        if self._strict:
            raise InputError(f"{text} (--strict)", usage=False)
        self._on_notice(text)
