"""Held-out cases: sentences, voices, a language and camera paths that were not trained on; and their measurement."""

import wave
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.config import SyncOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.clips import face_views
from latentsync_trt.measure.lips import SyncScore, agreement, score
from latentsync_trt.media.demo_clip import SpokenMouth
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.espeak import Speaker, Voice
from scripts.train_demo.recordings import HELD_OUT_VARIANTS, Recording, say
from scripts.train_demo.scene import PortraitRenderer, Scene, draw_scene
from scripts.train_demo.texts import HELD_OUT
from scripts.train_demo.visemes import MouthTrack

_SCENE_SEED = 1_000_003
"""Differs from the seeds of all training clips."""

_PAUSE_S = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A sentence with its voice and scene; `other`: the mouth of another sentence, as a negative control."""

    number: int
    text: str
    recording: Recording
    other: MouthTrack
    scene: Scene

    @property
    def voice(self) -> str:
        """espeak-ng's name of the voice."""
        return f"{self.recording.voice.language}+{self.recording.voice.variant}"

    def __len__(self) -> int:
        return len(self.recording.track)


def held_out_cases(count: int | None = None) -> list[Case]:
    """All held-out sentences, or `count` of them with alternating languages; reproducible in a new process."""
    speaker = Speaker()
    # Always all sentences: espeak-ng's samples depend on what it spoke before.
    spoken = [(text, say(speaker, text, voice, pause_s=_PAUSE_S)) for text, voice in _sentences()]
    cases = [
        Case(number, text, recording, spoken[(number + 1) % len(spoken)][1].track, _scene(number))
        for number, (text, recording) in enumerate(spoken)
    ]
    each = len(cases) // len(HELD_OUT)
    return cases if count is None else sorted(cases, key=lambda case: case.number % each)[:count]


def write_inputs(case: Case, renderer: PortraitRenderer, folder: Path) -> tuple[Path, Path]:
    """Writes the video, a face with a still mouth, and the speech; returns both paths."""
    video, audio = folder / f"{case.number}-source.mkv", folder / f"{case.number}.wav"
    write_pictures(video, renderer.frames(case.scene, None, len(case)), lossless=True)
    write_sound(audio, case.recording.samples)
    return video, audio


def dub(lip_sync: LipSync, inputs: tuple[Path, Path], out: Path, options: SyncOptions, frames: int) -> UInt8Array:
    """Runs the pipeline; returns the first `frames` of the result, `(n, H, W, 3)` RGB."""
    lip_sync.sync(*inputs, out, replace(options, overwrite=True))
    return np.stack([frame.rgb for frame in read_frames(out)])[:frames]


def lip_scores(gaps: Float32Array, case: Case) -> tuple[SyncScore, float]:
    """How well the lips of a dubbed case follow its speech, and their correlation with another sentence's mouth.

    `gaps (n,)` of the lips: of `mouth_gaps`.
    """
    track = case.recording.track
    mouth = SpokenMouth(track.opening, track.shut, track.silent)
    # Only where both speak: all sentences begin and end in silence, which correlates any two of them.
    common = min(len(track), len(case.other))
    both = ~(track.silent[:common] | case.other.silent[:common])
    wrong = agreement(gaps[:common][both], case.other.opening[:common][both]).correlation
    return score(gaps, mouth), wrong


def aligned_faces(
    source: Iterable[UInt8Array], clips: list[Iterable[UInt8Array]], side_px: int, detector: MediaPipeDetector
) -> UInt8Array:
    """The faces of several clips, cropped at the source's face: `(clips, n, side_px, side_px, 3)`.

    Raises:
        ValueError: no face was found in a frame of the source.
    """
    rows = []
    for index, faces in enumerate(face_views([source, *clips], side_px, detector)):
        if faces is None:
            raise ValueError(f"no face found in frame {index} of the source")
        rows.append(np.stack(faces[1:]))
    return np.stack(rows, axis=1)


def _sentences() -> Iterator[tuple[str, Voice]]:
    number = 0
    for language, texts in HELD_OUT.items():
        for text in texts:
            variant = HELD_OUT_VARIANTS[number % len(HELD_OUT_VARIANTS)]
            yield text, Voice(language, variant, 150 + 10 * (number % 4))
            number += 1


def _scene(number: int) -> Scene:
    return draw_scene(np.random.Generator(np.random.PCG64([_SCENE_SEED, number])))


def write_sound(path: Path, samples: Float32Array) -> None:
    """Writes mono samples `(n,)` at 16 kHz as 16-bit WAV."""
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(SAMPLE_RATE_HZ)
        sound.writeframes(np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
