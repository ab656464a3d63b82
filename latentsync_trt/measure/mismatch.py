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
from latentsync_trt.measure.pictures import fit_of
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import Face, FaceDetector, Picture, UInt8Array, UInt16Array

_FACES = 8
"""Faces after which the mean decides."""

_MOST_COLOR = 9.0
_LEAST_SHARPNESS = 0.4
"""Frames of one person are up to 7.7 apart, and at least 0.63 as sharp; smears are 11.6 to 13.3
off. See benchmarks/verdicts.json.
"""


class ModelMismatchCheck:
    """`color`, `sharpness`: of the first faces, see `fit_of`; None before. `text`: what is wrong;
    empty if nothing is.

    Args:
        strict: raise `InputError` instead of calling `notice`.
    """

    def __init__(
        self, manifest: Manifest, resolution_px: int, notice: Callable[[str], None], *, strict: bool
    ) -> None:
        self._manifest = manifest
        self._resolution_px = resolution_px
        self._notice = notice
        self._strict = strict
        self._is_met = manifest.model != DEMO_NAME
        self._first: list[tuple[float, float]] = []
        self.color: float | None = None
        self.sharpness: float | None = None
        self.text = ""

    def meet(self, picture: Picture, face: Face, detector: FaceDetector) -> None:
        """A face before it is painted: says of the first one if the built-in model does not know
        it.
        """
        if self._is_met:
            return
        self._is_met = True
        demo = portrait()
        known = look_of(demo, detector.detect(demo)[0])
        seen = look_of(picture, face)
        if known is None or seen is None or 1 - float(known @ seen) > SAME_PLACE_AND_PERSON:
            self._say("another face than the demo's: expect a smear for a mouth")

    def look(self, source: UInt8Array, painted: UInt16Array) -> None:
        """The next painted face, aligned, uint16 `(H, H, 3)` RGB, 257 × level, beside its
        source.
        """
        if self.color is not None:
            return
        self._first.append(fit_of(source, np.rint(painted / np.float32(257)).astype(np.uint8)))
        if len(self._first) == _FACES:
            self.color, self.sharpness = (
                fmean(values) for values in zip(*self._first, strict=True)
            )
            if not self.text and (self.color > _MOST_COLOR or self.sharpness < _LEAST_SHARPNESS):
                figures = (
                    f"color {self.color:.0f} off (Lab), sharpness "
                    f"{self.sharpness:.0%} of the source's"
                )
                self._say(
                    f"the painted mouth does not look like the face ({figures}): {self._cause()}"
                )

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

    def _say(self, text: str) -> None:
        self.text = text
        if self._strict:
            raise InputError(f"{text} (--strict)", usage=False)
        self._notice(text)
