"""How well does the built-in model speak?

    python -m scripts.measure_built_in [--bundle FOLDER] [--out benchmarks/demo-held-out.json]

Lip-syncs the built-in portrait to three sentences that no stage of training has seen, in voices
that none has heard, with the defaults of `sync`, and compares the lips with what the phonemes
require, and the finest detail of the mouth with that of the mouth that `scripts.train_demo.mouth`
draws for the same phonemes.
"""

import argparse
import json
import multiprocessing
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.align import crop_size_px, inverse, transformed
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.clips import measure_clip
from latentsync_trt.media.demo_clip import SENTENCE, camera_frames, filmed, portrait
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array
from scripts.make_demo_assets import VOICE, with_pauses, write_flac
from scripts.train_demo.mouth import AREA, ENLARGE
from scripts.train_demo.networks import RESOLUTION_PX
from scripts.train_demo.scene import PortraitRenderer
from scripts.train_demo.score import SpokenMouth, score
from scripts.train_demo.speech import Speaker, Voice
from scripts.train_demo.tracking import find_portrait
from scripts.train_demo.visemes import MouthTrack

SPOKEN = (
    (SENTENCE, VOICE),
    ("Every member of the jury promised to be both fair and patient.", Voice("en-us", "m6")),
    (
        "A small robot swept the empty platform before the first bus arrived.",
        Voice("en-us", "belinda"),
    ),
)
BAND_EDGES_PX = (0.7, 1.2, 2.0, 3.4)
"""Standard deviations of the blurs between which a band of detail lies, the finest from 0 on."""
MOUTH_CENTER = (0.5, 0.68)
MOUTH_HALF_SIZE = (0.28, 0.16)
"""The mouth in an aligned face, as shares of its width and height."""
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder, LipSync.from_bundle(arguments.bundle, "cpu") as lip_sync:
        for number in range(len(SPOKEN)):
            rows.append(measured(lip_sync, number, Path(folder)))
            print(rows[-1], flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def measured(lip_sync: LipSync, number: int, folder: Path) -> dict[str, object]:
    """The row of a sentence."""
    speech = folder / f"{number}.flac"
    track = spoken(number, speech)
    source = folder / "source.mp4"
    write_pictures(source, camera_frames(Fraction(len(track), MODEL_FPS)))
    result = folder / f"{number}.mkv"
    lip_sync.sync(source, speech, result, SyncOptions(codec="ffv1"))
    gaps = measure_clip(result, speech).gaps
    mouth = SpokenMouth(track.opening, track.shut, track.silent)
    lips = score(gaps, mouth)
    sentence, voice = SPOKEN[number]
    shares = shares_of_detail([frame.rgb for frame in read_frames(result)], drawn(track))
    return {
        "sentence": sentence,
        "voice": f"{voice.language}+{voice.variant}",
        "frames": len(track),
        "opening": round(lips.opening, 4),
        "lag_frames": lips.lag_frames,
        "closures": round(lips.closures, 4),
        "silence": round(lips.silence, 4),
        "range": round(float(np.nanmax(gaps) - np.nanmin(gaps)), 4),
        "detail": [round(float(share), 3) for share in shares],
    }


def spoken(number: int, target: Path) -> MouthTrack:
    """Writes the speech of a sentence; returns its mouth. In a process of its own, since what
    espeak-ng says depends on what it said before.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        samples, rate_hz, track = pool.apply(_said, (number,))
    write_flac(samples, rate_hz, target)
    return track


def _said(number: int) -> tuple[np.ndarray, int, MouthTrack]:
    utterance = Speaker().say(*SPOKEN[number])
    samples, track = with_pauses(utterance)
    return samples, utterance.rate_hz, track


def drawn(track: MouthTrack) -> list[UInt8Array]:
    """The built-in clip with the mouths as they should be."""
    renderer = PortraitRenderer(find_portrait(), torch.device("cpu"))
    photograph = portrait()
    left, top, right, bottom = AREA
    frames = []
    for index, pose in enumerate(torch.from_numpy(track.values())):
        large = renderer.mouth.draw(pose[None])[0].permute(1, 2, 0).numpy()
        size = (large.shape[1] // ENLARGE, large.shape[0] // ENLARGE)
        picture = photograph.copy()
        part = cv2.resize(large, size, interpolation=cv2.INTER_AREA)
        picture[top:bottom, left:right] = np.rint(part)
        frames.append(filmed(picture, index))
    return frames


def shares_of_detail(results: list[UInt8Array], targets: list[UInt8Array]) -> Float64Array:
    """What mouths of `results` have of each band of detail of `targets`, finest first."""
    follower = MainFace(MediaPipeDetector(), RESOLUTION_PX)
    size = np.array(crop_size_px(RESOLUTION_PX), np.float32)
    corners = np.array([(-1, -1), (1, 1)], np.float32) * MOUTH_HALF_SIZE + MOUTH_CENTER
    bands = np.zeros((2, len(BAND_EDGES_PX)))
    for index, target in enumerate(targets):
        tracked = follower.update(filmed(portrait(), index))
        box = transformed((corners * size).astype(np.float32), inverse(tracked.matrix))
        (left, top), (right, bottom) = np.rint(box).astype(int)
        mouth = np.s_[top:bottom, left:right]
        bands[0] += detail_of(results[index], mouth)
        bands[1] += detail_of(target, mouth)
    return bands[0] / bands[1]


def detail_of(rgb: UInt8Array, part: tuple[slice, slice]) -> Float64Array:
    """Standard deviations of the bands in a part of a picture, finest first."""
    plane: Float32Array = rgb.astype(np.float32) @ LUMA
    spreads = []
    for edge_px in BAND_EDGES_PX:
        coarser = cv2.GaussianBlur(plane, (0, 0), edge_px)
        spreads.append(float((plane - coarser)[part].std()))
        plane = coarser
    return np.array(spreads)


if __name__ == "__main__":
    main()
