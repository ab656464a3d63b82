"""How much of the detail and the grain around it does a pasted mouth have?

    python -m scripts.measure_finish ASSETS [--pictures FOLDER] [--out benchmarks/finish-cpu.json]

Still frames of the clips in ASSETS, with several kinds of grain, are "painted" by stand-ins that
know the true face: blurred or denoised, at the networks' sizes. What the mouth has of each band of
the true face, and of the source's grain, is compared with what it has as it was painted.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise, product
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.compositing.blend import Blend
from latentsync_trt.compositing.finish import Finish, TrackDetail, gains_of, grain_of
from latentsync_trt.compositing.known_part import known_part
from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import FittedFace, fit_face
from latentsync_trt.face.align import align, crop, inverse, steps
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import Float32Array, Float64Array, Patch, UInt8Array
from latentsync_trt.version import __version__
from scripts.benchmark_file import write_benchmark

Picture = UInt8Array
Paint = Callable[[Float32Array], Float32Array]

FRAMES = 16
SEED = 1247
FRAME_INDEX = 20
"""Of the still frame of a clip, whose mouth is open."""
REACH_PX = 150
"""What is kept of a frame around the box of its face."""
JITTER_PX = 0.05
"""How far a detector's points move on a still face with noise."""

SIZES = {128: 0.5, 256: 1.0, 512: 1.0}
"""Factor by which frames are resized for each size of a network."""
CLIPS = ("demo1", "demo2", "demo3")
BLURS_PX = (1, 2, 4, 8)
"""Bands lie between pictures that are so much blurred, whatever the bands of the package are."""
CORE = 0.99
"""Where more of a patch shows, it is compared."""
LEAST_NOISE = 1.0
"""Where a channel has less noise, in levels, it is not compared."""
HALO_KERNEL = np.ones((5, 5), np.uint8)
HALO_QUANTILE = 0.999


def blurred(sigma_px: float) -> Paint:
    return lambda face: np.asarray(cv2.GaussianBlur(face, (0, 0), sigma_px), np.float32)


def denoised(levels: float) -> Paint:
    return lambda face: np.asarray(cv2.bilateralFilter(face, 5, levels, 2), np.float32)


@dataclass(frozen=True, slots=True)
class Painter:
    """Stands for a network."""

    name: str
    paint: Paint
    sees_noise: bool = True
    """Whether it paints the face of the source, else that without grain."""


PAINTERS = (
    Painter("blurred by 0.5 px", blurred(0.5)),
    Painter("blurred by 0.7 px", blurred(0.7)),
    Painter("blurred by 0.9 px", blurred(0.9)),
    Painter("denoised weakly", denoised(8)),
    Painter("denoised strongly", denoised(20)),
    Painter("blurred by 0.7 px, without grain", blurred(0.7), sees_noise=False),
)


def as_decoded(rgb: np.ndarray) -> Picture:
    """A picture with 8 bits and 4:2:0."""
    planes = cv2.cvtColor(np.clip(np.rint(rgb), 0, 255).astype(np.uint8), cv2.COLOR_RGB2YCrCb)
    height, width = planes.shape[:2]
    for index in (1, 2):
        small = cv2.resize(
            planes[..., index], (width // 2, height // 2), interpolation=cv2.INTER_AREA
        )
        planes[..., index] = small.repeat(2, axis=0).repeat(2, axis=1)
    return np.asarray(cv2.cvtColor(planes, cv2.COLOR_YCrCb2RGB), np.uint8)


def luma(picture: np.ndarray) -> Float32Array:
    planes = cv2.cvtColor(picture.astype(np.float32), cv2.COLOR_RGB2YCrCb)
    return np.ascontiguousarray(planes[..., 0])


Noise = Callable[[float], Float32Array]
"""Makes noise with standard deviation 1, blurred by so many pixels."""


def fine(planes: Float32Array, noise: Noise) -> None:
    planes[..., 0] += 4 * noise(0)


def coarse(planes: Float32Array, noise: Noise) -> None:
    planes[..., 0] += 5 * noise(1.3)


def night(planes: Float32Array, noise: Noise) -> None:
    """Stronger in the dark, and colored."""
    planes[..., 0] += (9 - 5 * planes[..., 0] / 255) * noise(0.5)
    planes[..., 1] += 5 * noise(1.5)
    planes[..., 2] += 6 * noise(1.5)


def film(planes: Float32Array, noise: Noise) -> None:
    """Strongest in the middle of the scale."""
    level = np.clip(planes[..., 0] / 255, 0, 1)
    strength = 3 + 5 * np.sqrt(level * (1 - level))
    planes[..., 0] += strength * noise(0.9)
    planes[..., 1] += 0.5 * strength * noise(1.2)
    planes[..., 2] += 0.5 * strength * noise(1.2)


GRAINS: dict[str, Callable[[Float32Array, Noise], None] | None] = {
    "none": None,
    "fine": fine,
    "coarse": coarse,
    "8-bit night video": night,
    "film scan": film,
}


def with_grain(clean: Picture, kind: str, number: int) -> Picture:
    """A frame of the source."""
    add = GRAINS[kind]
    if add is None:
        return as_decoded(clean)
    random = np.random.default_rng([SEED, number])

    def noise(sigma_px: float) -> Float32Array:
        white = random.standard_normal(clean.shape[:2], np.float32)
        if not sigma_px:
            return white
        soft = cv2.GaussianBlur(white, (0, 0), sigma_px)
        return np.asarray(soft / soft.std(), np.float32)

    planes = cv2.cvtColor(clean.astype(np.float32), cv2.COLOR_RGB2YCrCb)
    add(planes, noise)
    return as_decoded(cv2.cvtColor(planes, cv2.COLOR_YCrCb2RGB))


@dataclass(frozen=True, slots=True)
class Still:
    """A face without grain."""

    picture: Picture
    points: Float32Array
    """Brows and nose."""


def still_of(video: Path, scale: float, detector: MediaPipeDetector) -> Still:
    frame = next(islice(read_frames(video), FRAME_INDEX, None)).rgb
    face = max(detector.detect(frame), key=lambda each: each.box[2] - each.box[0])
    left, top = np.maximum(face.box[:2] - REACH_PX, 0).astype(int).tolist()
    right, bottom = (face.box[2:] + REACH_PX).astype(int).tolist()
    part = frame[top:bottom, left:right]
    if scale < 1:
        part = cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    height, width = part.shape[0] // 2 * 2, part.shape[1] // 2 * 2
    points = (face.points - (left, top) + 0.5) * scale - 0.5
    return Still(part[:height, :width], points.astype(np.float32))


@dataclass(frozen=True, slots=True)
class Results:
    """Frames of a still face with grain, as written with each finish."""

    clean: Picture
    """Without grain, nothing painted."""
    sources: list[Picture]
    plain: list[Picture]
    match: list[Picture]
    plain_detail: Picture
    match_detail: Picture
    """What was painted of the true face without grain, plain, and with the gains alone."""
    core: np.ndarray
    to_crop: Float64Array
    finish: Finish
    busy_ms: float
    """Time of one core, a frame."""


def pasted(frame: Picture, patch: Patch) -> Picture:
    """The frame with a patch, decoded."""
    result = frame.astype(np.float32)
    height, width = patch.weight.shape
    area = result[patch.y_px :, patch.x_px :][:height, :width]
    area += patch.weight[..., None] * (patch.rgb / np.float32(257) - area)
    return as_decoded(result)


def results_of(still: Still, side_px: int, grain: str, painter: Painter) -> Results:
    sources = [with_grain(still.picture, grain, number) for number in range(FRAMES)]
    bias = None
    faces, true_faces = list[FittedFace](), list[FittedFace]()
    for number, source in enumerate(sources):
        jitter = np.random.default_rng(number).normal(0, JITTER_PX, 2)
        matrix, bias = align((still.points + jitter).astype(np.float32), bias, side_px)
        face = crop(source, matrix, side_px)
        true = crop(still.picture, matrix, side_px).image
        for target, image in (
            (faces, face.image if painter.sees_noise else true),
            (true_faces, true),
        ):
            levels = np.clip(painter.paint(image.astype(np.float32)), 0, 255)
            target.append(fit_face(face, np.rint(levels * 257).astype(np.uint16)))
    plain = [composite(*each, Blend()) for each in zip(sources, faces, strict=True)]
    begun_s = time.process_time()
    parts = [known_part(*each, None) for each in zip(sources, faces, strict=True)]
    detail = TrackDetail()
    finishes = []
    for number, (part, following) in enumerate(pairwise([*parts, parts[-1]])):
        detail = detail.after(part, following)
        assert detail.sums is not None
        gains = gains_of(detail.sums)
        noise = grain_of(detail.sums, gains, SEED, Fraction(number, 25))
        finishes.append(Finish(None, tuple(gains.tolist()), noise))
    measured_s = time.process_time() - begun_s
    seconds = dict.fromkeys(("plain", "match"), 0.0)
    match = []
    for source, face, finish in zip(sources, faces, finishes, strict=True):
        for name, each in (("plain", Finish()), ("match", finish)):
            begun_s = time.process_time()
            patch = composite(source, face, Blend(finish=each))
            seconds[name] += time.process_time() - begun_s
        match.append(patch)
    core = np.ones(still.picture.shape[:2], bool)
    for patch in plain:
        weight = np.zeros(core.shape, np.float32)
        height, width = patch.weight.shape
        weight[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width] = patch.weight
        core &= weight > CORE
    clean = as_decoded(still.picture)
    alone = Blend(finish=replace(finishes[-1], grain=None))
    return Results(
        clean,
        sources,
        [pasted(*each) for each in zip(sources, plain, strict=True)],
        [pasted(*each) for each in zip(sources, match, strict=True)],
        pasted(clean, composite(clean, true_faces[-1], Blend())),
        pasted(clean, composite(clean, true_faces[-1], alone)),
        core,
        faces[-1].aligned.matrix,
        finishes[-1],
        1000 * (measured_s + seconds["match"] - seconds["plain"]) / FRAMES,
    )


def bands_in(picture: Float32Array, core: np.ndarray, result: Results) -> list[Float32Array]:
    """The samples of each band inside the mouth, at the network's size where the face is larger."""
    step = steps(inverse(result.to_crop))[0]
    inside = core.astype(np.float32)
    if step > 1:
        size = (round(picture.shape[1] / step), round(picture.shape[0] / step))
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        inside = cv2.resize(inside, size, interpolation=cv2.INTER_AREA)
    blurs = [picture, *(cv2.GaussianBlur(picture, (0, 0), sigma_px) for sigma_px in BLURS_PX)]
    return [(finer - coarser)[inside > CORE] for finer, coarser in pairwise(blurs)]


def noise_of(pictures: Sequence[Picture], core: np.ndarray) -> Float64Array:
    """Standard deviation in time in Y, Cr and Cb."""
    planes = [cv2.cvtColor(each.astype(np.float32), cv2.COLOR_RGB2YCrCb)[core] for each in pictures]
    return np.asarray(np.sqrt(np.var(planes, axis=0, ddof=1).mean(axis=0)), np.float64)


def psnr_db(picture: Float32Array, true: Float32Array, core: np.ndarray) -> float:
    return float(20 * np.log10(255) - 10 * np.log10(np.square(picture - true)[core].mean()))


def overshoot_percent(picture: Float32Array, true: Float32Array, core: np.ndarray) -> float:
    above = picture - cv2.dilate(true, HALO_KERNEL)
    below = cv2.erode(true, HALO_KERNEL) - picture
    beyond = np.maximum(np.maximum(above, below), 0)[core]
    return float(np.quantile(beyond, HALO_QUANTILE) / 2.55)


def rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 3) for value in values]


def shares(picture: Float32Array, true: Float32Array, result: Results) -> list[float]:
    """The standard deviation of each band beside that of the true picture."""
    pairs = zip(
        bands_in(picture, result.core, result), bands_in(true, result.core, result), strict=True
    )
    return rounded([ours.std() / theirs.std() for ours, theirs in pairs])


def row_of(clip: str, side_px: int, grain: str, painter: Painter, result: Results) -> dict:
    """A row of the file of benchmarks; bands are given from the finest on."""
    core = result.core
    true, plain, match = map(luma, (result.clean, result.plain_detail, result.match_detail))
    row: dict[str, object] = {
        "clip": clip,
        "side_px": side_px,
        "painter": painter.name,
        "grain": grain,
        "gains": rounded(result.finish.gains),
        "detail_plain": shares(plain, true, result),
        "detail_match": shares(match, true, result),
        "all_match": shares(luma(result.match[-1]), luma(result.sources[-1]), result),
        "psnr_change_db": round(psnr_db(match, true, core) - psnr_db(plain, true, core), 2),
        "overshoot_percent": round(overshoot_percent(match, true, core), 2),
        "busy_ms": round(result.busy_ms, 2),
    }
    if GRAINS[grain] is not None:
        source = noise_of(result.sources, core)
        used = source > LEAST_NOISE
        row["grain_plain"] = rounded((noise_of(result.plain, core) / source)[used])
        row["grain_match"] = rounded((noise_of(result.match, core) / source)[used])
    return row


def summary(rows: Sequence[dict]) -> dict[str, object]:
    """The least and the largest of all rows."""
    detail = [share for row in rows for share in row["detail_match"]]
    grain = [share for row in rows for share in row.get("grain_match", ())]
    return {
        "rows": len(rows),
        "detail": [min(detail), max(detail)],
        "rows_with_detail_in_0.85_to_1.15": sum(
            min(row["detail_match"]) >= 0.85 and max(row["detail_match"]) <= 1.15 for row in rows
        ),
        "grain": [min(grain), max(grain)],
        "most_of_a_band": max(share for row in rows for share in row["all_match"]),
        "least_psnr_change_db": min(row["psnr_change_db"] for row in rows),
        "most_overshoot_percent": max(row["overshoot_percent"] for row in rows),
    }


def write_strip(folder: Path, row: dict, result: Results) -> None:
    """Writes source, plain and match beside one another, at 200 %."""
    rows, columns = np.nonzero(result.core)
    top, left = max(rows.min() - 40, 0), max(columns.min() - 20, 0)
    area = (slice(top, rows.max() + 20), slice(left, columns.max() + 20))
    strip = np.hstack([each[-1][area] for each in (result.sources, result.plain, result.match)])
    large = cv2.resize(strip, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST)
    name = "-".join(str(row[key]) for key in ("clip", "side_px", "grain", "painter"))
    cv2.imwrite(str(folder / f"{name}.png"), large[..., ::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("assets", type=Path)
    parser.add_argument("--only", default="", help="a part of a row's name")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    detector = MediaPipeDetector()
    rows = []
    for clip, (side_px, scale) in product(CLIPS, SIZES.items()):
        still = still_of(args.assets / f"{clip}_video.mp4", scale, detector)
        for grain, painter in product(GRAINS, PAINTERS):
            if args.only not in f"{clip} {side_px} {grain} {painter.name}":
                continue
            result = results_of(still, side_px, grain, painter)
            rows.append(row_of(clip, side_px, grain, painter, result))
            print(rows[-1], flush=True)
            if args.pictures is not None:
                write_strip(args.pictures, rows[-1], result)
    total = summary(rows)
    print(total)
    if args.out is not None:
        command = "python -m scripts.measure_finish ASSETS"
        versions = f"latentsync-trt {__version__}, OpenCV {cv2.__version__}"
        write_benchmark(args.out, command, versions=versions, summary=total, rows=rows)


if __name__ == "__main__":
    main()
