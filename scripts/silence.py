"""Measures what `--silence closed` does to lips and speech, on held-out sentences over room noise and music.

    python -m scripts.silence [--clips 4] [--preset fast] [--json FILE]

Each clip has two sentences with a pause between. Rows: one for each sound and choice of `--silence`, with the means
over all clips; for each sound, how well the detected speech fits the spoken phonemes. Takes half a minute for each
clip, sound and choice on two cores.
"""

import argparse
import json
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.audio.vad import find_speech
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.clips import mouth_gaps
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import BoolArray, Float32Array
from scripts.train_demo.held_out import Case, dub, held_out_cases, lip_scores, write_sound
from scripts.train_demo.recordings import SAMPLES_PER_FRAME, Recording
from scripts.train_demo.scene import PortraitRenderer
from scripts.train_demo.visemes import MouthTrack

Background = Callable[[int], Float32Array]

_PEAK = 0.95
_OPEN = 0.1
"""A frame whose mouth is open by this share of its widest must not be silenced."""

_CHORDS_HZ = ((220.0, 261.6, 329.6), (174.6, 220.0, 261.6), (261.6, 329.6, 392.0), (196.0, 246.9, 293.7))
_BEAT_S = 0.5


def room_noise(samples: int) -> Float32Array:
    """Pink noise above 50 Hz: fans and traffic."""
    spectrum = np.fft.rfft(np.random.default_rng(3).normal(size=samples))
    frequencies_hz = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE_HZ)
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(frequencies_hz, 50)), samples).astype(np.float32)


def music(samples: int) -> Float32Array:
    """Chords of five overtones, a drum on each beat and a cymbal between."""
    generator, times_s = np.random.default_rng(4), np.arange(samples) / SAMPLE_RATE_HZ
    total = np.zeros(samples)
    for beat in range(int(samples / SAMPLE_RATE_HZ / _BEAT_S) + 1):
        since_s = times_s - beat * _BEAT_S
        decay = np.where(since_s >= 0, np.exp(-2 * np.maximum(since_s, 0)), 0) * np.clip(since_s / 0.01, 0, 1)
        for tone_hz in _CHORDS_HZ[beat // 2 % len(_CHORDS_HZ)]:
            total += decay * sum(np.sin(2 * np.pi * tone_hz * over * since_s) / over for over in range(1, 6))
        total += 4 * np.where(since_s >= 0, np.exp(-30 * np.maximum(since_s, 0)), 0) * np.sin(120 * np.pi * since_s)
        off_s = since_s - _BEAT_S / 2
        total += 1.5 * np.where(off_s >= 0, np.exp(-60 * np.maximum(off_s, 0)), 0) * generator.normal(size=samples)
    return total.astype(np.float32)


SOUNDS: dict[str, tuple[Background, float] | None] = {
    "clean": None,
    "room noise, 20 dB": (room_noise, 20),
    "room noise, 10 dB": (room_noise, 10),
    "music, 20 dB": (music, 20),
    "music, 10 dB": (music, 10),
}
"""What is under the speech, and by how much it is softer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--sounds", nargs="+", default=list(SOUNDS), choices=list(SOUNDS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clips = _clips(arguments.clips)
    result: dict[str, Any] = {
        "command": f"python -m scripts.silence {shlex.join(sys.argv[1:])}",
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "detector": [_detected(clips, sound) for sound in arguments.sounds],
    }
    for row in result["detector"]:
        print(row, flush=True)
    result["lips"] = [row for sound in arguments.sounds for row in _lips(clips, sound, arguments.preset)]
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _clips(count: int) -> list[Case]:
    """Pairs of held-out sentences, in the voice and language of the first's half of the list."""
    cases = held_out_cases()
    return [_joined(one, two) for one, two in zip(cases[::2], cases[1::2], strict=True)][:count]


def _joined(one: Case, two: Case) -> Case:
    first, second = one.recording, two.recording
    tracks = first.track, second.track
    joint = len(first.track)
    silent = np.concatenate([track.silent for track in tracks])
    silent[joint - 4 : joint + 4] = True  # margins that each track leaves at its ends
    parts = {
        name: np.concatenate([getattr(track, name) for track in tracks])
        for name in ("opening", "width", "rounding", "shut")
    }
    samples = np.concatenate([first.samples, second.samples])
    recording = Recording(samples, MouthTrack(**parts, silent=silent), first.voice, ())
    return Case(one.number, f"{one.text} {two.text}", recording, two.other, one.scene)


def _sound(case: Case, name: str) -> Float32Array:
    samples, under = case.recording.samples, SOUNDS[name]
    if under is None:
        return samples
    make, softer_db = under
    spoken = samples[np.repeat(~case.recording.track.silent, SAMPLES_PER_FRAME)]
    background = make(len(samples))
    level = _rms(spoken) / _rms(background) * 10 ** (-softer_db / 20)
    total = samples + np.float32(level) * background
    return (total / max(1.0, float(np.abs(total).max()) / _PEAK)).astype(np.float32)


def _rms(samples: Float32Array) -> float:
    return float(np.sqrt(np.square(samples, dtype=np.float64).mean()))


def _detected(clips: list[Case], sound: str) -> dict[str, Any]:
    """Shares of frames: silent ones that are taken for speech, open mouths that are silenced; and processor time."""
    found, silent, opened, seconds, cpu_s = [], [], [], 0.0, 0.0
    for case in clips:
        samples, track = _sound(case, sound), case.recording.track
        start_s = time.process_time()
        speech = find_speech(lambda samples=samples: [samples])
        cpu_s += time.process_time() - start_s
        seconds += len(samples) / SAMPLE_RATE_HZ
        found.append(speech.at((np.arange(len(track)) + 0.5) / MODEL_FPS))
        silent.append(track.silent)
        opened.append(track.opening > _OPEN)
    spoken: BoolArray = np.concatenate(found)
    return {
        "sound": sound,
        "silent_taken_for_speech": round(float(spoken[np.concatenate(silent)].mean()), 3),
        "open_silenced": round(float(1 - spoken[np.concatenate(opened)].mean()), 3),
        "cpu_s_per_minute": round(60 * cpu_s / seconds, 3),
    }


def _lips(clips: list[Case], sound: str, preset: str) -> list[dict[str, Any]]:
    """Means over all clips for both choices of `--silence`; see `SyncScore`."""
    scores: dict[str, list[tuple[float, float, float]]] = {"model": [], "closed": []}
    renderer, detector = PortraitRenderer(), MediaPipeDetector()
    with tempfile.TemporaryDirectory() as name, LipSync.from_bundle("demo", "cpu") as lip_sync:
        for case in clips:
            video, audio, out = (Path(name) / file for file in ("source.mkv", "speech.wav", "out.mkv"))
            write_pictures(video, renderer.frames(case.scene, None, len(case)), lossless=True)
            write_sound(audio, _sound(case, sound))
            for silence, rows in scores.items():
                options = SyncOptions(preset=preset, silence=silence, codec="ffv1")  # type: ignore[arg-type]
                made = dub(lip_sync, (video, audio), out, options, len(case))
                found, _ = lip_scores(mouth_gaps(made, detector), case)
                rows.append((found.opening, found.closures, found.silence))
                print(sound, silence, found, flush=True)
    names = "opening", "closures", "shut_in_silence"
    return [
        {
            "sound": sound,
            "silence": silence,
            **dict(zip(names, np.nanmean(rows, axis=0).round(3).tolist(), strict=True)),
        }
        for silence, rows in scores.items()
    ]


if __name__ == "__main__":
    main()
