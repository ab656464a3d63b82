"""What windows of fewer frames than the model was trained on do to the picture.

    python scripts/short_windows.py --bundle demo-dynamic --json benchmarks/short-windows-demo.json

`n` frames of the built-in clip are left over after full windows (`leftover`: the window reaches back over frames that
are painted already), or are a whole track (`track`: mirrored in time). They are painted in a window of 16 frames, and
in one of max(n, m). `position`: in a window of 16 that has them in its middle instead, which windows of a clip do by
chance. `packed`: as many tracks of n frames as fit, one after the other in one window of 16.

Against the 16: `psnr` of the generated part in dB, of the `worst` moment, and `gap`, by how much the lips' opening
differs, in percent of its spread. For both, with `_16` for the 16: `opening`, the correlation of lips and spoken mouth
over all moments, and `flicker` of the frames, for leftovers with the two frames before them. `cost`: processor time of
the window relative to one of 16.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt import SyncOptions
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bench.compare.clip import FlickerMeter
from latentsync_trt.bench.material import generated_part
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import MODEL_FPS, PRESETS, RuntimeOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import SPEECH, spoken_mouth
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.inpaint import graphs_for, make_inpainter
from latentsync_trt.sync.jobs import Job
from latentsync_trt.sync.lips import agreement, gap_of
from latentsync_trt.sync.speakers import Voices
from latentsync_trt.sync.speech import OpenVoices
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.sync.windows import _reflected
from latentsync_trt.types import Float32Array, UInt16Array
from latentsync_trt.version import __version__
from scripts.overlap import filmed

ENDS = (38, 39, 52, 53, 66, 67, 81, 82, 95, 96, 110, 111)
"""Frames of the clip at which a track ends: pairs of moments, all over the sentence."""

LEAST = {"leftover": (2, 4, 8, 12), "track": (2, 4, 8)}
FULL = {"position": (1, 2, 4, 8), "packed": (3, 4, 5, 8)}
Order = tuple[int, ...]


@dataclass
class Clip:
    """The faces of a clip, painted in windows that are painted once each."""

    jobs: list[Job]
    networks: Networks
    preset: str
    known: dict[Order, list[UInt16Array]] = field(default_factory=dict)
    cost_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bundle, options = self.networks.bundle, SyncOptions(preset=self.preset)
        self.networks.prepare(graphs_for(options))
        voices = Voices((SoundPiece(SPEECH),))
        self.speech = OpenVoices(voices, self.networks.encode_mel, filters_of(bundle), options.silence)
        self.inpainter = make_inpainter(bundle.manifest, options, self.networks.codec, self.networks.denoiser)
        self.detector = MediaPipeDetector()
        self.side_px = bundle.manifest.resolution_px
        self.part = generated_part(self.side_px)

    def paint(self, order: Order) -> list[UInt16Array]:
        """Painted faces of a window of these frames."""
        if order not in self.known:
            faces = np.stack([self.jobs[i].targets[0].face.image for i in order])  # type: ignore[union-attr]
            audio = self.speech.windows(0, [self.jobs[i].frame for i in order])
            start_s = time.process_time()
            (painted,) = self.inpainter.paint([(faces, audio)])
            self.cost_s[len(order)].append(time.process_time() - start_s)
            self.known[order] = list(painted)
        return self.known[order]

    def shown(self, picture: UInt16Array) -> Float32Array:
        return picture[self.part].astype(np.float32) / 257

    def gap(self, index: int, picture: UInt16Array) -> float:
        """Gap of the lips, painted into the frame."""
        if id(picture) not in self.gaps:
            job = self.jobs[index]
            target, rgb = job.targets[0], np.asarray(job.frame.picture)
            matrix, size = target.face.matrix, rgb.shape[1::-1]  # type: ignore[union-attr]
            how = cv2.WARP_INVERSE_MAP | cv2.INTER_LINEAR
            drawn = cv2.warpAffine(picture.astype(np.float32) / 257, matrix, size, flags=how)
            share = cv2.warpAffine(1 - mouth_mask(self.side_px), matrix, size, flags=how)[..., None]
            mixed = np.rint(drawn * share + rgb * (1 - share)).astype(np.uint8)
            found = self.detector.mesh(mixed, target.tracked)
            self.gaps[id(picture)] = float("nan") if found is None else gap_of(found)
        return self.gaps[id(picture)]


def back(end: int, count: int) -> Order:
    return tuple(range(end - count, end))


def mirrored(end: int, count: int, length: int) -> Order:
    return tuple(end - count + _reflected(position, count) for position in range(length))


def packed(end: int, count: int) -> Order:
    """The track that ends here and those that end at the following moments, mirrored to 16."""
    first = ENDS.index(end)
    order = [i for k in range(16 // count) for i in back(ENDS[(first + 5 * k) % len(ENDS)], count)]
    return tuple(order[_reflected(position, len(order))] for position in range(16))


def flicker(clip: Clip, pictures: list[UInt16Array]) -> float:
    meter = FlickerMeter()
    for picture in pictures:
        meter.add(clip.shown(picture))
    return meter.result() or float("nan")


def measure(clip: Clip, kind: str, count: int, length: int) -> dict[str, object]:
    """A row: `count` frames in windows of `length`, over all moments."""
    errors, gaps, wanted = [], ([], []), []
    flickers: tuple[list[float], list[float]] = ([], [])
    opening = spoken_mouth().opening
    for end in ENDS:
        if kind == "leftover":
            found = [clip.paint(back(end, frames))[-count:] for frames in (length, 16)]
        elif kind == "position":
            middle = (16 - count) // 2
            found = [clip.paint(back(end + middle, 16))[-count - middle : -middle], clip.paint(back(end, 16))[-count:]]
        elif kind == "track":
            found = [clip.paint(mirrored(end, count, frames))[:count] for frames in (length, 16)]
        else:
            found = [clip.paint(packed(end, count))[:count], clip.paint(mirrored(end, count, 16))[:count]]
        before = clip.paint(back(end - count, 16))[-2:] if kind == "leftover" else []
        difference = [np.square(clip.shown(a) - clip.shown(b)).mean() for a, b in zip(*found, strict=True)]
        errors.append(float(np.mean(difference)))
        wanted += [float(opening[index]) for index in back(end, count)]
        for side, pictures in enumerate(found):
            gaps[side].extend(clip.gap(index, face) for index, face in zip(back(end, count), pictures, strict=True))
            if len(before) + count > 2:
                flickers[side].append(flicker(clip, [*before, *pictures]))
    short, usual = (np.array(each, np.float32) for each in gaps)
    target = np.array(wanted, np.float32)
    least = max(float(np.mean(errors)), 1e-9)
    cost = np.min(clip.cost_s[length]) / np.min(clip.cost_s[16])
    return {
        "kind": kind,
        "n": count,
        "length": length,
        "psnr": round(10 * np.log10(255**2 / least), 1),
        "worst": round(10 * np.log10(255**2 / max(errors)), 1),
        "gap": round(100 * float(np.nanmean(np.abs(short - usual)) / np.nanstd(usual)), 1),
        "opening": round(agreement(short, target, 0).correlation, 3),
        "opening_16": round(agreement(usual, target, 0).correlation, 3),
        "flicker": round(float(np.mean(flickers[0])), 2) if flickers[0] else None,
        "flicker_16": round(float(np.mean(flickers[1])), 2) if flickers[1] else None,
        "cost": round(float(cost), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True, help="a model exported with --dynamic that knows the portrait")
    parser.add_argument("--preset", default="balanced", choices=[*PRESETS])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bundle = Bundle.load(find_bundle(given.bundle)[0])
    networks = Networks(bundle, select_provider("cpu", 0), RuntimeOptions(), may_fall_back=False, on_notice=None)
    count = int(audio_duration_s(SPEECH) * MODEL_FPS)
    with MediaPipeDetector() as detector:
        finder = FaceFinder(detector, bundle.manifest.resolution_px, StageClock())
        jobs = list(finder.cut_out(finder.find(filmed(Fraction(0), count))))  # type: ignore[arg-type]
    clip, rows = Clip(jobs, networks, given.preset), []
    cases = [(kind, n, 16) for kind, counts in FULL.items() for n in counts]
    for kind, shortest in LEAST.items():
        cases += [(kind, n, length) for n in range(1, 16) for length in sorted({max(n, least) for least in shortest})]
    for case in cases:
        rows.append(measure(clip, *case))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    found = {
        "kind": "short windows",
        "latentsync_trt": __version__,
        "bundle": bundle.manifest.name,
        "preset": given.preset,
        "moments": len(ENDS),
        "rows": rows,
    }
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
