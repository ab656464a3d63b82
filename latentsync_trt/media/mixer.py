"""Layouts of channels, and sound mixed from one to another."""

from contextlib import suppress
from functools import cache

import numpy as np
from av import AudioFrame, AudioLayout, AudioResampler, FFmpegError

from latentsync_trt.types import Float32Array, Float64Array

_STANDARD = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""Layouts by number of channels. For all but 6.1, AAC has a channel configuration, which every
player knows.
"""

_LARGER = {
    "2.1": "5.1",
    "3.0(back)": "4.0",
    "3.1": "5.1",
    "quad": "5.0",
    "quad(side)": "5.0",
    "4.1": "5.1",
    "6.0": "7.1",
    "6.1": "7.1",
    "7.0": "7.1",
}
"""Standard layouts with a place for each channel of others, whose places are not in that of as many
channels.
"""

_PLACES_MIXED = {
    "FL",
    "FR",
    "FC",
    "LFE",
    "BL",
    "BR",
    "FLC",
    "FRC",
    "BC",
    "SL",
    "SR",
    "TC",
    "TFL",
    "TFC",
    "TFR",
    "TBL",
    "TBC",
    "TBR",
    "NONE",
}
"""Places that swresample can mix; with others, it may write beyond its memory."""
_LOW_FREQUENCY = ("LFE", "LFE2")

_PROBE_HZ = 48_000
"""The rate of the impulses that show how swresample mixes; any other would do."""

_SILENT_SHARE = 1e-6
"""All other channels together are silent below this share of the power of low frequencies."""
_CANCELED_SHARE = 10 ** (-12 / 10)
"""Channels cancel each other out where their mix has less than this share of the power that they
have together if they have nothing in common.
"""
_POWER_KEPT_PER_S = 0.01
"""How much of a power counts a second later, as chords and echoes may cancel each other out for
moments.
"""


def usual_layout(layout: AudioLayout) -> str:
    """Returns the name of `layout`; the standard one where places are not given, or odd, as "front
    left" for a microphone.
    """
    count = layout.nb_channels
    if count < 3 or " channels" in layout.name:
        return _STANDARD.get(count, layout.name)
    return layout.name


def standard_layout(layout: str) -> str:
    """Returns the standard layout that holds all channels of `layout`; itself if it has more than
    eight.
    """
    return _LARGER.get(layout) or _STANDARD.get(AudioLayout(layout).nb_channels, layout)


@cache
def channel_shares(source: str, target: str) -> Float32Array:
    """Returns the share of each channel of the layout `source` in each of `target`, float32
    `(m, n)`, mostly as swresample has it.

    Stereo becomes mono as its mean, surround sound mostly from the center, without the
    low-frequency channel, but with all others, of which swresample leaves some out. Where it does
    not know the places, channels keep their order, or become mono as their mean.
    """
    names = [channel.name for channel in AudioLayout(source).channels]
    source_count = len(names)
    target_count = AudioLayout(target).nb_channels
    # swresample would make it 3 dB softer than players that play mono on two speakers
    if source_count == 1 and target_count == 2:
        return np.ones((1, 2), np.float32)
    shares = np.full((source_count, target_count), 1 / source_count, np.float32)
    if _PLACES_MIXED.issuperset(names):
        with suppress(FFmpegError):  # where swresample cannot mix
            shares = _swresample_shares(source, target).reshape(shares.shape)
    if target_count == 1:
        left_out = (shares[:, 0] == 0) & ~np.isin(names, _LOW_FREQUENCY)
        shares[left_out] = shares[shares > 0].min()
        return shares / shares.sum()
    if source_count == target_count and shares.max() < 1:
        return np.eye(source_count, dtype=np.float32)
    return shares


def _swresample_shares(source: str, target: str) -> Float32Array:
    """Returns what swresample makes of one impulse after the other, a channel each."""
    impulses = np.eye(AudioLayout(source).nb_channels, dtype=np.float32).reshape(1, -1)
    # Without the option swresample does not normalize a mix into float: stereo would be 3 dB
    # too loud.
    resampler = AudioResampler("flt", target, _PROBE_HZ, options={"rematrix_maxval": "1.0"})
    frame = AudioFrame.from_ndarray(impulses, "flt", source)
    frame.sample_rate = _PROBE_HZ
    mixed = [part.to_ndarray().astype(np.float32) for part in resampler.resample(frame)]
    return np.concatenate(mixed, axis=1)


class Mixer:
    """Turns blocks of a sound at `rate_hz` into those of the layout `target`.

    Where a mono mix would be silent, as that of left and right with opposite phase, the louder
    channel takes its place, and where only the low-frequency channel has had sound, that one.
    """

    def __init__(self, target: str, rate_hz: int) -> None:
        self.channels = AudioLayout(target).nb_channels
        self.rate_hz = rate_hz
        self.canceled_s = 0.0
        """For how long channels canceled each other out."""
        self.low_s = 0.0
        """For how long only the low-frequency channel has had sound."""
        self._target = target
        self._source = ""
        self._begin(np.zeros(0, np.float32))

    def _begin(self, shares: Float32Array) -> None:
        """Begins a sound whose channels have these shares in the mono mix."""
        self._shares = shares
        self._used_shares = shares
        self._mix_power = 0.0
        self._recent_powers = np.zeros(len(shares))
        self._powers = np.zeros(len(shares))

    @np.errstate(invalid="ignore")  # what is not finite is refused later, with its time
    def mix(self, block: Float32Array, source: str) -> Float32Array:
        """Returns `block (n, m)` of the layout `source` as `(n, channels)`."""
        if source == self._target:
            return block
        shares = channel_shares(source, self._target)
        if self.channels > 1 or block.shape[1] == 1:
            return block @ shares
        if source != self._source:
            self._source = source
            self._begin(shares[:, 0])
        begins = not self._recent_powers.any()
        length_s = len(block) / self.rate_hz
        self._measure(block, length_s)
        before = self._used_shares
        self._used_shares = self._choose_shares(length_s)
        if begins:
            before = self._used_shares
        fading = np.linspace(0, 1, len(block), dtype=np.float32)[:, None]
        fading_shares = before + fading * (self._used_shares - before)
        return (block * fading_shares).sum(axis=1, keepdims=True)

    def _measure(self, block: Float32Array, length_s: float) -> None:
        """Adds the power of a block to that of each channel and of the mix."""
        powers = np.square(block, dtype=np.float64).sum(axis=0)
        mix_power = float(np.square(block @ self._shares, dtype=np.float64).sum())
        kept = _POWER_KEPT_PER_S**length_s
        self._powers = self._powers + powers
        self._recent_powers = kept * self._recent_powers + powers
        self._mix_power = kept * self._mix_power + mix_power

    def _choose_shares(self, length_s: float) -> Float32Array:
        """Returns the shares for a block of this length that has been measured, and counts those
        for which the mix is not used.
        """
        low_powers = np.where(self._shares == 0, self._powers, 0)
        if (self._powers - low_powers).sum() < _SILENT_SHARE * low_powers.sum():
            self.low_s += length_s
            return _only(low_powers)
        if self._mix_power < _CANCELED_SHARE * (np.square(self._shares) @ self._recent_powers):
            self.canceled_s += length_s
            # The channel that was used is kept unless another is twice as loud.
            return _only(self._shares * (1 + self._used_shares) * self._recent_powers)
        return self._shares


def _only(loudness: Float64Array) -> Float32Array:
    """Returns shares of which all is the loudest channel's."""
    return np.eye(len(loudness), dtype=np.float32)[loudness.argmax()]
