"""Dialogues composed of people who were filmed while they spoke, with their own sound: it is known
who speaks when.

A person is a part of a clip, played at its own pace with its sound while the person speaks, and
else as a listener: held, slowly moved, or slowed. All follow one another without a jump, until the
next cut.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

import av
import cv2
import numpy as np

from latentsync_trt.audio.vad import find_speech
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import Float32Array, UInt8Array, within
from tests.clips import camera_frames, read_audio
from tests.sounds import sound_packets

Way = Literal["speaks", "mute", "rests", "nods", "turns", "slow", "chews", "smiles"]

SIDE_PX = 320
RATE_HZ = 16000
_PER_FRAME = RATE_HZ // MODEL_FPS
_SLOW = 0.25
_GRAIN = 2.0

# Left, top and side of the square around the head, and the middle of the mouth in it, as a part of
# the side.
_PLACES = {1: (340, 500, 520), 2: (200, 170, 660), 3: (330, 390, 520)}
PORTRAIT = 0
"""The built-in portrait, which only listens."""


@dataclass(frozen=True)
class Part:
    """For so long, people do what `ways` say, from left to right; `voice`: somebody outside the
    picture speaks.
    """

    lasts_s: float
    ways: dict[int, Way]
    cut: bool = False
    from_s: dict[int, float] = field(default_factory=dict)
    voice: int | None = None


class Dialogue:
    """`sound`: what is heard, or nothing, or only music."""

    def __init__(
        self, name: str, *parts: Part, sound: Literal["voices", "none", "music"] = "voices"
    ) -> None:
        self.name = name
        self.parts = parts
        self.sound = sound


@dataclass(frozen=True)
class Written:
    """`speaker (n,)` of each frame at 25 per second: who speaks, −1 = from outside, −2 = nobody;
    `places`: from the left of the picture to the right, who is where.
    """

    path: Path
    speaker: np.ndarray
    places: list[tuple[int, ...]]
    width_px: int


class Cast:
    """The people, as pictures `(320, 320, 3)` at 25 per second until `end_s`, and their sound."""

    def __init__(self, assets: Path, detector: MediaPipeDetector, end_s: int = 20) -> None:
        self._assets = assets
        self._detector = detector
        self._end_s = Fraction(end_s)
        self.mouth = cache(self._mouth)
        self.pictures, self.sound, self.spoken = (
            cache(self._pictures),
            cache(self._sound),
            cache(self._spoken),
        )

    def _clip(self, who: int) -> Path:
        """A negative number is of a voice alone."""
        return self._assets / (f"demo{who}_video.mp4" if who > 0 else f"demo{-who}_audio.wav")

    def _pictures(self, who: int) -> list[UInt8Array]:
        shown: Iterable[UInt8Array] = islice(
            camera_frames(self._end_s), int(self._end_s * MODEL_FPS)
        )
        if who != PORTRAIT:
            left, top, side = _PLACES[who]
            read = read_frames(self._clip(who), Playback(Fraction(MODEL_FPS), self._end_s))
            shown = (frame.picture[top : top + side, left : left + side] for frame in read)
        size = (SIDE_PX, SIDE_PX)
        return [
            np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), np.uint8)
            for frame in shown
        ]

    def _mouth(self, who: int, frame: int) -> Float32Array:
        mesh = self._detector.detect(self.pictures(who)[frame])[0].landmarks
        assert mesh is not None
        return mesh[[13, 14]].mean(axis=0)

    def _sound(self, who: int) -> Float32Array:
        return read_audio(self._clip(who), RATE_HZ)

    def _spoken(self, who: int) -> np.ndarray:
        times_s = np.arange(len(self.sound(who)) // _PER_FRAME) / MODEL_FPS
        return within(times_s, find_speech(lambda: [self.sound(who)]).spans_s)


def compose(cast: Cast, dialogue: Dialogue, path: Path) -> Written:
    """Writes the clip as H.264 and AAC."""
    sound = list[Float32Array]()
    speaker = list[int]()
    places = list[tuple[int, ...]]()
    width_px = SIDE_PX * max(len(part.ways) for part in dialogue.parts)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=MODEL_FPS, options={"crf": "20", "preset": "ultrafast"}
        )
        stream.width = width_px
        stream.height = SIDE_PX
        stream.pix_fmt = "yuv420p"
        packets = []
        for picture in _pictures(cast, dialogue, width_px, sound, speaker, places):
            packets += stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24"))
        packets += stream.encode(None)
        if dialogue.sound != "none":
            if dialogue.sound == "music":
                heard = _music(len(speaker))
            else:
                heard = np.concatenate(sound)
            packets += sound_packets(container, [(0, heard)], codec="aac", rate_hz=RATE_HZ)
        for packet in packets:
            container.mux(packet)
    return Written(path, np.array(speaker), places, width_px)


def _pictures(
    cast: Cast,
    dialogue: Dialogue,
    width_px: int,
    sound: list[Float32Array],
    speaker: list[int],
    places: list[tuple[int, ...]],
) -> Iterator[UInt8Array]:
    at: dict[int, float] = {}
    grains = np.rint(np.random.default_rng(3).normal(0, _GRAIN, (5, SIDE_PX, SIDE_PX, 1))).astype(
        np.int16
    )
    for number, part in enumerate(dialogue.parts):
        for who in part.ways:
            if who in part.from_s or who not in at:
                at[who] = part.from_s.get(who, 0.0) * MODEL_FPS
        voice_at = round(1.5 * number * MODEL_FPS)
        for index in range(round(part.lasts_s * MODEL_FPS)):
            heads = []
            heard = np.zeros(_PER_FRAME, np.float32)
            says = -2
            for who, way in part.ways.items():
                frame = round(at[who])
                head = cast.pictures(who)[frame]
                if way in ("chews", "smiles"):
                    head = mouth_moved(head, way, index, cast.mouth(who, frame))
                elif way in ("nods", "turns"):
                    head = moved(head, way, index)
                heads.append(
                    np.clip(head + grains[(index + who) % len(grains)], 0, 255).astype(np.uint8)
                )
                if way == "speaks":
                    heard = heard + cast.sound(who)[frame * _PER_FRAME :][:_PER_FRAME]
                    says = who if cast.spoken(who)[frame] else says
                at[who] += {"speaks": 1, "mute": 1, "slow": _SLOW}.get(
                    way, 1.0 if who == PORTRAIT else 0.0
                )
            if part.voice is not None:
                heard = (
                    heard + cast.sound(part.voice)[(voice_at + index) * _PER_FRAME :][:_PER_FRAME]
                )
                says = -1 if cast.spoken(part.voice)[voice_at + index] else says
            sound.append(heard)
            speaker.append(says)
            places.append(tuple(part.ways))
            yield _beside(heads, width_px)


def _beside(heads: list[UInt8Array], width_px: int) -> UInt8Array:
    """Heads side by side in a picture that may be wider, around them a wall."""
    picture = np.full((SIDE_PX, width_px, 3), 110, np.uint8)
    picture[::40] = 150
    left = (width_px - SIDE_PX * len(heads)) // 2
    picture[:, left : left + SIDE_PX * len(heads)] = np.hstack(heads)
    return picture


def moved(head: UInt8Array, way: Way, index: int) -> UInt8Array:
    """The head at frame `index` of a part in which it nods or turns."""
    phase = 2 * np.pi * index / MODEL_FPS
    middle = np.array([SIDE_PX / 2, SIDE_PX / 2])
    turn = np.eye(2)
    shift = np.zeros(2)
    if way == "nods":
        angle = np.radians(2.5 * np.sin(0.7 * phase))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        turn[1] *= 1 + 0.04 * np.sin(1.1 * phase)
        shift = np.array([3 * np.sin(0.4 * phase), 7 * np.sin(1.1 * phase)])
    else:
        turn = np.array(
            [[1 - 0.12 * (1 - np.cos(0.5 * phase)), 0.0], [0.05 * np.sin(0.5 * phase), 1.0]]
        )
        shift = np.array([12 * np.sin(0.5 * phase), 0.0])
    matrix = np.column_stack([turn, middle - turn @ middle + shift])
    return np.asarray(
        cv2.warpAffine(head, matrix, (SIDE_PX, SIDE_PX), borderMode=cv2.BORDER_REPLICATE), np.uint8
    )


def mouth_moved(head: UInt8Array, way: Way, index: int, mouth: Float32Array) -> UInt8Array:
    """The jaw dropped by up to 12 px, or the mouth as much wider, which is at `mouth (2,)`, as in
    `moved`.
    """
    share = 0.5 - 0.5 * np.cos(2 * np.pi * index / MODEL_FPS * (1.2 if way == "chews" else 0.3))
    y, x = np.mgrid[0:SIDE_PX, 0:SIDE_PX].astype(np.float32)
    across = x - mouth[0]
    down = y - mouth[1]
    near = np.exp(-np.square(across / 45) - np.square(down / 30))
    if way == "chews":
        y = y - 12 * share * np.exp(-np.square(across / 45) - np.square(down / 45)) * np.clip(
            (down + 4) / 8, 0, 1
        )
    else:
        x = x - 0.25 * share * across * near
        y = y + 6 * share * near * (np.abs(across) / 25).clip(0, 1)
    return np.asarray(cv2.remap(head, np.float32(x), np.float32(y), cv2.INTER_LINEAR), np.uint8)


def _music(frames: int) -> Float32Array:
    """Three tones that swell."""
    times_s = np.arange(frames * _PER_FRAME) / RATE_HZ
    tones = [
        np.sin(2 * np.pi * hz * times_s) * (0.6 + 0.4 * np.sin(2 * np.pi * times_s / 3))
        for hz in (220, 277, 330)
    ]
    return np.asarray(0.1 * np.sum(tones, axis=0), np.float32)


HELD_OUT = (
    Dialogue(
        "two, the other rests",
        Part(3.2, {2: "speaks", 3: "rests"}, from_s={2: 10.4, 3: 10.1}),
        Part(2.6, {2: "rests", 3: "speaks"}),
        Part(2.2, {2: "speaks", 3: "rests"}),
        Part(3, {2: "rests", 3: "speaks"}),
    ),
    Dialogue(
        "two, the other nods",
        Part(2.3, {1: "speaks", 3: "nods"}, from_s={1: 5.2, 3: 12.5}),
        Part(3.4, {1: "nods", 3: "speaks"}),
        Part(2.2, {1: "speaks", 3: "nods"}),
    ),
    Dialogue(
        "two, the other slowed",
        Part(3, {1: "slow", 2: "speaks"}, from_s={1: 5.3, 2: 12.2}),
        Part(2.8, {1: "speaks", 2: "slow"}),
        Part(2.5, {1: "slow", 2: "speaks"}),
    ),
    Dialogue(
        "two, the other smiles or turns",
        Part(2.6, {3: "speaks", 2: "smiles"}, from_s={3: 14.8, 2: 14.9}),
        Part(2.1, {3: "turns", 2: "speaks"}),
        Part(2.4, {3: "speaks", 2: "turns"}),
        Part(2, {3: "smiles", 2: "speaks"}),
    ),
    Dialogue(
        "two, one chews",
        Part(3, {1: "speaks", PORTRAIT: "chews"}, from_s={1: 6.2, PORTRAIT: 3}),
        Part(2, {1: "rests", PORTRAIT: "nods"}, voice=-2),
    ),
    Dialogue(
        "three, changes every 2 to 3 s",
        Part(2.4, {1: "nods", 2: "speaks", 3: "slow"}, from_s={1: 5.1, 2: 15.6, 3: 11.2}),
        Part(2.1, {1: "slow", 2: "rests", 3: "speaks"}),
        Part(2.7, {1: "speaks", 2: "turns", 3: "nods"}),
        Part(2, {1: "rests", 2: "speaks", 3: "smiles"}),
    ),
    Dialogue(
        "three, one of them the portrait",
        Part(3, {2: "slow", PORTRAIT: "rests", 3: "speaks"}, from_s={2: 11, PORTRAIT: 0, 3: 16.3}),
        Part(3, {2: "speaks", PORTRAIT: "turns", 3: "nods"}),
    ),
    Dialogue(
        "close-ups",
        Part(2.4, {3: "speaks"}, from_s={3: 13}),
        Part(3, {2: "speaks"}, cut=True, from_s={2: 17}),
        Part(2.2, {3: "nods"}, cut=True, from_s={3: 15.2}),
        Part(2.5, {1: "speaks"}, cut=True, from_s={1: 7.2}),
        Part(2.3, {2: "speaks"}, cut=True, from_s={2: 10.4}),
    ),
    Dialogue(
        "a pair, close-ups and a voice from outside",
        Part(2.5, {1: "speaks", 2: "rests"}, from_s={1: 5, 2: 15}),
        Part(2.5, {2: "speaks"}, cut=True, from_s={2: 15}),
        Part(2.5, {1: "rests"}, cut=True, from_s={1: 7.5}, voice=-3),
        Part(3, {1: "nods", 2: "speaks"}, cut=True, from_s={1: 7.5, 2: 16.8}),
    ),
    Dialogue(
        "a voice from outside",
        Part(2.6, {2: "speaks", 3: "nods"}, from_s={2: 10.4, 3: 17}),
        Part(3, {2: "nods", 3: "rests"}, voice=-1),
        Part(2.6, {2: "rests", 3: "speaks"}),
        Part(2.4, {2: "smiles", 3: "turns"}, voice=-2),
    ),
    Dialogue(
        "no sound",
        Part(2.6, {2: "nods", 3: "speaks"}, from_s={2: 12, 3: 10.2}),
        Part(3, {2: "speaks", 3: "rests"}),
        Part(2.4, {2: "slow", 3: "speaks"}),
        sound="none",
    ),
    Dialogue(
        "only music",
        Part(2.5, {1: "speaks", 2: "turns"}, from_s={1: 6, 2: 17}),
        Part(2.6, {1: "rests", 2: "speaks"}),
        sound="music",
    ),
)
"""Whose people and times were not used to choose any limit: only second halves of the clips."""
