"""How well a bundle follows sentences, voices, a language and camera paths that nothing was trained on."""

import json
import wave
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.bench.sync_measure import agreement, closed_rate, closure_recall, mouth_gaps
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.face.align import AlignState, align, crop
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.media.patch import planes_of
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.pipeline import LipSync
from latentsync_trt.types import BoolArray, ColourTags, Float32Array, Frame, UInt8Array, VideoInfo
from scripts.train_demo.espeak import Speaker, Voice
from scripts.train_demo.recordings import Recording, say
from scripts.train_demo.scene import SIDE_PX, Scene, Studio, draw_scene
from scripts.train_demo.texts import HELD_OUT
from scripts.train_demo.visemes import MouthTrack

_SCENE_SEED = 1_000_003
"""Far from the seeds of the clips that are trained on."""

_PAUSE_S = 0.6
_ALIGNED_PX = 128
_MOUTH_ROWS, _MOUTH_COLUMNS = slice(54, 102), slice(28, 100)
"""The mouth in an aligned face of 128 pixels."""

_SSIM_SIGMA, _SSIM_C1, _SSIM_C2 = 1.5, (0.01 * 255) ** 2, (0.03 * 255) ** 2


@dataclass(frozen=True, slots=True)
class Score:
    """One sentence.

    `opening`: correlation of the measured gap with the mouth that belongs to the speech, at lag 0; `lag_frames`: where
    it is best; `wrong`: with another sentence's mouth; `closures`: share of m, b, p shown shut; `silence`: share of
    silent frames shown shut; `ssim`: of the mouth to what the studio draws; `still`: change from frame to frame beside
    the mouth, over the source's.
    """

    sentence: str
    voice: str
    frames: int
    opening: float
    lag_frames: int
    wrong: float
    closures: float
    silence: float
    ssim: float
    still: float


def evaluate(bundle: Path, folder: Path, options: SyncOptions, provider: str = "cpu") -> list[Score]:
    """Dubs a still portrait with every held-out sentence, and measures the results; clips stay in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    speaker, studio, detector = Speaker(), Studio(), MediaPipeDetector()
    spoken = [(text, voice, say(speaker, text, voice, pause_s=_PAUSE_S)) for text, voice in _sentences()]
    scores = []
    with LipSync.from_bundle(bundle, provider) as lip_sync:
        for number, (text, voice, recording) in enumerate(spoken):
            scene = draw_scene(np.random.Generator(np.random.PCG64([_SCENE_SEED, number])))
            source, out = folder / f"{number}-source.mkv", folder / f"{number}-out.mkv"
            _write_clip(source, studio.film(scene, None, len(recording.track)))
            _write_sound(folder / f"{number}.wav", recording.samples)
            lip_sync.sync(source, folder / f"{number}.wav", out, options)
            made = np.stack([frame.rgb for frame in read_frames(out, rgb_only=True)])[: len(recording.track)]
            other = spoken[(number + 1) % len(spoken)][2].track
            name = f"{voice.language}+{voice.variant}"
            scores.append(_score(text, name, made, _Truth(recording, other, scene), studio, detector))
    (folder / "scores.json").write_text(json.dumps([asdict(score) for score in scores], indent=2, ensure_ascii=False))
    return scores


def mean_scores(scores: Sequence[Score]) -> dict[str, float]:
    """Means over all sentences, NaN left out."""
    names = ("opening", "lag_frames", "wrong", "closures", "silence", "ssim", "still")
    return {name: round(float(np.nanmean([getattr(score, name) for score in scores])), 4) for name in names}


@dataclass(frozen=True, slots=True)
class _Truth:
    recording: Recording
    other: MouthTrack
    scene: Scene


def _score(
    text: str, voice: str, made: UInt8Array, truth: _Truth, studio: Studio, detector: MediaPipeDetector
) -> Score:
    track = truth.recording.track
    gaps = mouth_gaps(made, detector)
    found = agreement(gaps, track.opening)
    common = min(len(track), len(truth.other))
    source = list(studio.film(truth.scene, None, len(track)))
    target = studio.film(truth.scene, track, len(track))
    faces = _aligned(source, [source, made, list(target)], detector)
    mouths = faces[:, :, _MOUTH_ROWS, _MOUTH_COLUMNS]
    return Score(
        sentence=text,
        voice=voice,
        frames=len(track),
        opening=found.correlation,
        lag_frames=found.lag_frames,
        wrong=agreement(gaps[:common], truth.other.opening[:common]).correlation,
        closures=closure_recall(gaps, track.shut),
        silence=closed_rate(gaps, track.silent),
        ssim=float(np.mean([ssim(a, b) for a, b in zip(mouths[1], mouths[2], strict=True)])),
        still=_stillness(faces[0], faces[1]),
    )


def _sentences() -> Iterator[tuple[str, Voice]]:
    variants = ("f3", "m6", "belinda", "paul")
    number = 0
    for language, texts in HELD_OUT.items():
        for text in texts:
            yield text, Voice(language, variants[number % len(variants)], 150 + 10 * (number % 4))
            number += 1


def _aligned(source: list[UInt8Array], clips: list[list[UInt8Array]], detector: MediaPipeDetector) -> UInt8Array:
    """The faces of several clips, cut out where the source's face is: `(clips, n, 128, 128, 3)`."""
    tracker = FaceTracker(detector)
    state: AlignState | None = None
    rows = []
    for index, frame in enumerate(source):
        tracked = tracker.update(frame)
        if tracked is None:
            raise ValueError(f"frame {index} of a filmed clip shows no face")
        matrix, state = align(tracked.face.points, state, _ALIGNED_PX, whole_pixels=False)
        rows.append(np.stack([crop(clip[index], matrix, _ALIGNED_PX).image for clip in clips]))
    return np.stack(rows, axis=1)


def _stillness(source: UInt8Array, made: UInt8Array) -> float:
    """Mean change from frame to frame where the face is generated but nothing speaks, over the source's."""
    where: BoolArray = mouth_mask(_ALIGNED_PX) < 0.5
    where = where.copy()
    where[_MOUTH_ROWS, _MOUTH_COLUMNS] = False
    where[_MOUTH_ROWS.stop :] = False
    before, after = (np.abs(np.diff(clip.astype(np.float32), axis=0))[:, where].mean() for clip in (source, made))
    return float(after / before)


def ssim(a: UInt8Array, b: UInt8Array) -> float:
    """Structural similarity of two pictures `(H, W, 3)` by their luma, Gaussian windows of 11 pixels (Wang et al.)."""
    x, y = (cv2.cvtColor(np.ascontiguousarray(part), cv2.COLOR_RGB2GRAY).astype(np.float64) for part in (a, b))

    def mean(values: "np.ndarray") -> "np.ndarray":
        return cv2.GaussianBlur(values, (11, 11), _SSIM_SIGMA)

    mean_x, mean_y = mean(x), mean(y)
    var_x, var_y, both = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2, mean(x * y) - mean_x * mean_y
    top = (2 * mean_x * mean_y + _SSIM_C1) * (2 * both + _SSIM_C2)
    return float((top / ((mean_x**2 + mean_y**2 + _SSIM_C1) * (var_x + var_y + _SSIM_C2))).mean())


def _write_clip(path: Path, frames: Iterator[UInt8Array]) -> None:
    colour = ColourTags(1, 1, 1, full_range=False)
    info = VideoInfo(SIDE_PX, SIDE_PX, Fraction(MODEL_FPS), None, "ffv1", "bgr0", 0, colour)
    with VideoWriter(path, info, lossless=True) as writer:
        for index, rgb in enumerate(frames):
            writer.write(Frame(index, Fraction(index, MODEL_FPS), rgb, planes_of(rgb, colour)))


def _write_sound(path: Path, samples: Float32Array) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(SAMPLE_RATE_HZ)
        sound.writeframes(np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
