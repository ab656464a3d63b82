"""Makes the moving picture of the README and of the first page of the site, and the still that
stands for it where nothing may move, from a run of the built-in model.

    latentsync-trt demo
    python scripts/readme_pictures.py demo

The moving one is two seconds of source beside result, with the words; the still is the picture that
the run drew, smaller.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from latentsync_trt.cli.demo import RESULT, SOURCE
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measure.demo_pictures import SIDE_BY_SIDE
from latentsync_trt.media.demo_clip import SPEECH, SpokenWord, spoken_words
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import UInt8Array

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MOVING = "demo.webp"
STILL = "demo.jpg"
MOST_BYTES = 700_000
FIRST_S = 2.1
"""From here, two seconds show wide, round and shut mouths: "Papa, mama, and the boats"."""
LENGTH_S = 2.0
QUALITY = 40
"""Of WebP."""
CAPTION_PX = 34
STILL_WIDTH_PX = 1000
STILL_QUALITY = 88
_DPI = 100


def main() -> None:
    run = Path(sys.argv[1])
    pictures = list(moving_pictures(run))
    size_bytes = write_webp(pictures, IMAGES / MOVING)
    print(f"{MOVING}: {len(pictures)} frames, {size_bytes} bytes of at most {MOST_BYTES}")
    still = cv2.imdecode(np.fromfile(run / SIDE_BY_SIDE, np.uint8), cv2.IMREAD_COLOR)
    height_px = round(still.shape[0] * STILL_WIDTH_PX / still.shape[1])
    small = cv2.resize(still, (STILL_WIDTH_PX, height_px), interpolation=cv2.INTER_AREA)
    jpeg = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, STILL_QUALITY])[1]
    (IMAGES / STILL).write_bytes(jpeg.tobytes())
    print(f"{STILL}: {len(jpeg)} bytes")


def moving_pictures(run: Path) -> Iterator[UInt8Array]:
    """Yields source beside result with the words below, `(h, w, 3)` RGB."""
    first = round(FIRST_S * MODEL_FPS)
    last = first + round(LENGTH_S * MODEL_FPS)
    words = [word for word in spoken_words(SPEECH) if word.end_s > FIRST_S]
    words = [word for word in words if word.start_s < FIRST_S + LENGTH_S]
    videos = (read_frames(run / name) for name in (SOURCE, RESULT))
    captions = dict[int, UInt8Array]()
    for index, pair in enumerate(zip(*videos, strict=True)):
        if not first <= index < last:
            continue
        pictures = np.hstack([frame.rgb for frame in pair])
        time_s = index / MODEL_FPS
        spoken = next((n for n, word in enumerate(words) if time_s < word.end_s), -1)
        if time_s < words[spoken].start_s:
            spoken = -1
        if spoken not in captions:
            captions[spoken] = caption(words, spoken, pictures.shape[1])
        yield np.vstack([pictures, captions[spoken]])


def caption(words: list[SpokenWord], spoken: int, width_px: int) -> UInt8Array:
    """Returns a line of all words in gray with the spoken one in bold, `(CAPTION_PX, width, 3)`."""
    figure = Figure(figsize=(width_px / _DPI, CAPTION_PX / _DPI), dpi=_DPI, facecolor="white")
    step = 1 / (len(words) + 1)
    for number, word in enumerate(words):
        now = number == spoken
        figure.text(
            (number + 1) * step,
            0.5,
            word.text,
            ha="center",
            va="center",
            fontsize=13,
            color="#d9591c" if now else "#667080",
            weight="bold" if now else "normal",
        )
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())
    return np.ascontiguousarray(drawn[..., :3])


def write_webp(pictures: list[UInt8Array], target: Path) -> int:
    """Writes an endless animation; returns its size in bytes. Each picture is whole: what is only
    added to those before leaves traces where something moves.
    """
    first, *others = [Image.fromarray(picture) for picture in pictures]
    first.save(
        target,
        save_all=True,
        append_images=others,
        duration=round(1000 / MODEL_FPS),
        loop=0,
        quality=QUALITY,
        method=6,
        kmin=0,
        kmax=1,
    )
    return target.stat().st_size


if __name__ == "__main__":
    main()
