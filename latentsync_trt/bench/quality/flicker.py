"""Change from frame to frame that is no movement. Pure."""

from collections import deque

import numpy as np

from latentsync_trt.types import Float32Array

# The second difference of white noise has 1 + 4 + 1 times its variance; steady movement has none.
_GAIN = 6.0
_SPAN = 3


class FlickerMeter:
    """Watches pictures one by one; keeps three."""

    def __init__(self) -> None:
        self._last: deque[Float32Array] = deque(maxlen=_SPAN)
        self._sum = 0.0
        self._count = 0

    def add(self, picture: Float32Array | None) -> None:
        """The next picture, of one shape with the last; None where there is none, after which a new run begins."""
        if picture is None:
            self._last.clear()
            return
        self._last.append(picture)
        if len(self._last) == _SPAN:
            first, middle, last = self._last
            self._sum += float(np.mean(np.square(first - 2 * middle + last, dtype=np.float64)))
            self._count += 1

    def result(self) -> float | None:
        """The standard deviation of the white noise that would change as much, in the pictures' unit; None where there
        were never three pictures in a row."""
        return float(np.sqrt(self._sum / self._count / _GAIN)) if self._count else None
