"""Channels of sound: standard layouts, and how the channels of one layout become those of another."""

from functools import cache

import numpy as np
from av import AudioFrame, AudioLayout, AudioResampler, FFmpegError

from latentsync_trt.types import Float32Array

_STANDARD = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""By number of channels. For all but 6.1, AAC has a channel configuration, which every player knows."""

_LARGER = {"2.1": "5.1", "3.0(back)": "4.0", "3.1": "5.1", "quad": "5.0", "quad(side)": "5.0", "4.1": "5.1"}
_LARGER |= {"6.0": "7.1", "6.1": "7.1", "7.0": "7.1"}
"""Standard layouts with a place for each channel of others, whose places are not in that of as many channels."""

# Without it swresample does not normalize a mix into float: stereo would be 3 dB too loud.
_MIX_OPTIONS = {"rematrix_maxval": "1.0"}

_CANCELED, _KEPT = 10 ** (-12 / 10), 0.01
"""Of the power that channels with nothing in common have together; and how much of a power counts after a second, as
chords and echoes may cancel each other out for moments."""


def usual(layout: AudioLayout) -> str:
    """The name of `layout`; the standard one where places are not given, or odd, as "front left" for a microphone."""
    count, name = layout.nb_channels, layout.name
    return _STANDARD.get(count, name) if count < 3 or " channels" in name else name


def standard(layout: str) -> str:
    """The standard layout that holds all channels of `layout`; itself if it has more than eight."""
    return _LARGER.get(layout) or _STANDARD.get(AudioLayout(layout).nb_channels, layout)


@cache
def mixing(source: str, target: str) -> Float32Array:
    """The share of each channel of `source` in each of `target`, float32 `(m, n)`, mostly as swresample has it.

    Stereo becomes mono as its mean, surround sound mostly from the center, without the low-frequency channel. Where it
    does not know the places, channels keep their order, or become mono as their mean.
    """
    given, wanted = (AudioLayout(layout).nb_channels for layout in (source, target))
    if (given, wanted) == (1, 2):  # swresample would make it 3 dB softer than players that play mono on two speakers
        return np.ones((1, 2), np.float32)
    try:
        resampler = AudioResampler("flt", target, 48_000, options=_MIX_OPTIONS)
        impulses = AudioFrame.from_ndarray(np.eye(given, dtype=np.float32).reshape(1, -1), "flt", source)
        impulses.sample_rate = 48_000
        mixed = [part.to_ndarray().astype(np.float32) for part in resampler.resample(impulses)]
        shares = np.concatenate(mixed, axis=1).reshape(given, wanted)
    except FFmpegError:
        shares = np.full((given, wanted), 1 / given, np.float32)
    return np.eye(given, dtype=np.float32) if given == wanted and shares.max() < 1 else shares


class Mixer:
    """Turns blocks of a sound at `rate_hz` into those of the layout `target`.

    Where a mono mix would be silent, as that of left and right with opposite phase, the louder channel takes its place.
    `canceled_s`: for how long it did.
    """

    def __init__(self, target: str, rate_hz: int) -> None:
        self._target, self._source, self._power = target, "", 0.0
        self._shares = self._used = np.zeros(0, np.float32)
        self._powers = np.zeros(0)
        self.channels, self.rate_hz, self.canceled_s = AudioLayout(target).nb_channels, rate_hz, 0.0

    @np.errstate(invalid="ignore")  # what is not finite is refused later, with its time
    def mix(self, block: Float32Array, source: str) -> Float32Array:
        """`block (n, m)` of the layout `source` as `(n, channels)`."""
        if source == self._target:
            return block
        if self.channels > 1 or block.shape[1] == 1:
            return block @ mixing(source, self._target)
        if source != self._source:
            self._source, self._shares = source, mixing(source, self._target)[:, 0]
            self._used, self._powers, self._power = self._shares, np.zeros(len(self._shares)), 0.0
        begins, length_s = not self._powers.any(), len(block) / self.rate_hz
        before, self._used = self._used, self._shares
        self._powers = _KEPT**length_s * self._powers + np.square(block, dtype=np.float64).sum(axis=0)
        self._power = _KEPT**length_s * self._power + float(np.square(block @ self._shares, dtype=np.float64).sum())
        if self._power < _CANCELED * (np.square(self._shares) @ self._powers):
            louder = (self._shares * (1 + before) * self._powers).argmax()
            self._used = np.eye(len(self._shares), dtype=np.float32)[louder]
            self.canceled_s += length_s
        before = self._used if begins else before
        fading = np.linspace(0, 1, len(block), dtype=np.float32)[:, None]
        return (block * (before + fading * (self._used - before))).sum(axis=1, keepdims=True)
