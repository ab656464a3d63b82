"""Whether one sees where windows meet, on the built-in model, and what `--overlap` changes about that.

The built-in portrait is painted to the built-in sentence with windows that begin at four phases. `step`: the change of
the painted part between two frames at a joint (with overlap: at each step of the blend), relative to the change between
the same two frames in the middle of a window; `strongest`: that of the strongest tenth, and `strongest_inside`, where
only the phases of windows differ. `more_levels`: by how many 8-bit levels a joint changes more. `sharpness`: gradients
of blended frames relative to the same frames in the middle of a window. `work`: windows to paint, relative to 0.

    python scripts/overlap.py --preset fast --clips 1 --json benchmarks/overlap-demo.json
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt import SyncOptions
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bench.material import generated_part
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import MODEL_FPS, PRESETS, RuntimeOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import SPEECH, camera_frames_at
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.inpaint import Inpainter, graphs_for, make_inpainter
from latentsync_trt.sync.jobs import Job
from latentsync_trt.sync.paint import PaintDevice, Painter
from latentsync_trt.sync.speakers import Voices
from latentsync_trt.sync.speech import OpenVoices
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Float32Array, Frame, UInt8Array, UInt16Array
from latentsync_trt.version import __version__

Runs = dict[tuple[int, int, int], list[Float32Array]]
"""Painted parts by start, overlap and phase."""

OVERLAPS = (0, 2, 4, 8)
PHASES = (0, 4, 8, 12)
_STARTS_S = (0, 23)
_MIDDLE = range(4, 13)
"""Positions in a window that are far from its ends."""


class Remembered:
    """An inpainter that paints each window once: runs of other phases and overlaps share most of them."""

    def __init__(self, inpainter: Inpainter) -> None:
        self._inpainter = inpainter
        self._known: dict[tuple[bytes, bytes], Sequence[UInt16Array]] = {}

    def encode(self, windows: Sequence[UInt8Array]) -> list[UInt8Array]:
        return list(windows)

    def denoise(
        self, faces: Sequence[UInt8Array], audio: Sequence[Float32Array]
    ) -> list[tuple[UInt8Array, Float32Array]]:
        return list(zip(faces, audio, strict=True))

    def decode(self, windows: Sequence[tuple[UInt8Array, Float32Array]]) -> list[Sequence[UInt16Array]]:
        found = []
        for faces, audio in windows:
            key = faces.tobytes(), audio.tobytes()
            if key not in self._known:
                (self._known[key],) = self._inpainter.paint([(faces, audio)])
            found.append(self._known[key])
        return found


def filmed(start_s: int, count: int) -> Generator[Frame, None, None]:
    """Frames of the portrait from `start_s` on the camera's path."""
    period_s = Fraction(1, MODEL_FPS)
    pictures = camera_frames_at(start_s + index * period_s for index in range(count))
    for index, rgb in enumerate(pictures):
        yield Frame(index, index * period_s, period_s, index * period_s, rgb, None)


def painted(jobs: Sequence[Job], phase: int, painter: Painter, part: tuple[slice, slice]) -> list[Float32Array]:
    """The generated part of each painted face; the first `phase` frames are a track of their own."""

    def split() -> Generator[Job, None, None]:
        for job in jobs:
            target = job.targets[0]
            track = int(job.frame.index >= phase)
            yield Job(job.frame, (type(target)(track, 0, 0, target.tracked, target.matrix, target.face),))

    faces = (job.targets[0].painted for job in painter.paint(painter.gather(split())))
    return [face[part].astype(np.float32) / 257 for face in faces if face is not None]


def position(index: int, phase: int, overlap: int, frames: int) -> int:
    """Place of a frame in the window that begins last before it; −1 in the first `phase` frames."""
    return -1 if index < phase else (index - phase) % (frames - overlap)


def sharpness(picture: Float32Array) -> float:
    return float(np.abs(np.diff(picture, axis=0)).mean() + np.abs(np.diff(picture, axis=1)).mean())


def measure(runs: Runs, overlap: int, frames: int) -> dict[str, object]:
    """Numbers of one overlap; the reference are windows without overlap."""
    change, sharp = defaultdict(dict), defaultdict(dict)
    for (start, used, phase), shown in runs.items():
        for index in range(1, len(shown)):
            if used == 0 and position(index, phase, 0, frames) in _MIDDLE:
                change[start, index][phase] = changed(shown, index)
                sharp[start, index][phase] = sharpness(shown[index])
    steps, levels, sharpnesses = [], [], []
    for (start, used, phase), shown in runs.items():
        for index in range(phase + frames - overlap, len(shown) - 2 * frames):  # the last window is shifted
            place, usual = position(index, phase, overlap, frames), change[start, index]
            if used == overlap and place <= overlap and usual:
                steps.append(changed(shown, index) / np.mean(list(usual.values())))
                levels.append(changed(shown, index) - np.mean(list(usual.values())))
            if used == overlap and place < overlap and sharp[start, index]:
                sharpnesses.append(sharpness(shown[index]) / np.mean(list(sharp[start, index].values())))
    pairs = [list(usual.values()) for usual in change.values() if len(usual) > 1]
    inside = [each[0] / np.mean(each[1:]) for each in pairs]
    return {
        "overlap": overlap,
        "step": round(float(np.mean(steps)), 3),
        "strongest": round(float(np.quantile(steps, 0.9)), 3),
        "strongest_inside": round(float(np.quantile(inside, 0.9)), 3),
        "more_levels": round(float(np.mean(levels)), 3),
        "sharpness": round(float(np.mean(sharpnesses)), 3) if sharpnesses else 1.0,
        "steps": len(steps),
        "work": round(frames / (frames - overlap), 2),
    }


def changed(shown: Sequence[Float32Array], index: int) -> float:
    return float(np.abs(shown[index] - shown[index - 1]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="balanced", choices=[*PRESETS])
    parser.add_argument("--clips", type=int, default=len(_STARTS_S), help="moments of the camera's path")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bundle = Bundle.load(find_bundle("demo")[0])
    options, frames = SyncOptions(preset=given.preset), bundle.manifest.frames
    networks = Networks(bundle, select_provider("cpu", 0), RuntimeOptions(), may_fall_back=False, on_notice=None)
    networks.prepare(graphs_for(options))
    part = generated_part(bundle.manifest.resolution_px)
    inpainter = Remembered(make_inpainter(bundle.manifest, options, networks.codec, networks.denoiser))
    count = int(audio_duration_s(SPEECH) * MODEL_FPS)
    runs: Runs = {}
    for start_s in _STARTS_S[: given.clips]:
        with MediaPipeDetector() as detector:
            finder = FaceFinder(detector, bundle.manifest.resolution_px, StageClock())
            jobs = list(finder.cut_out(finder.find(filmed(start_s, count))))
        for overlap in OVERLAPS:
            for phase in PHASES:
                voices = Voices((SoundPiece(SPEECH),))
                speech = OpenVoices(voices, networks.encode_mel, filters_of(bundle), options.silence)
                painter = Painter(
                    [PaintDevice(cast(Inpainter, inpainter))], frames, speech.windows, StageClock(), overlap=overlap
                )
                runs[start_s, overlap, phase] = painted(jobs, phase, painter, part)
                print(start_s, overlap, phase, file=sys.stderr)
    rows = [measure(runs, overlap, frames) for overlap in OVERLAPS]
    found = {
        "kind": "overlap",
        "latentsync_trt": __version__,
        "bundle": "demo",
        "preset": given.preset,
        "clips": given.clips,
        "rows": rows,
    }
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
