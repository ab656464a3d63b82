"""Measures what the verdict after a run and the alarm during it are decided by, on right and on wrong cases.

    python -m scripts.verdicts CLIP CLIP ... [--json FILE]

CLIPs are videos of people with their own sound. Lips: those of the clips and of the built-in clip, dubbed by the
built-in model, beside their own sound, that of the others, and their own at another time. Fits: what that model paints
on the built-in face, and on the clips, where it fails; and other frames of the same person. Takes a minute for each
clip on two cores.
"""

import argparse
import json
import platform
import shlex
import sys
import tempfile
from collections import deque
from dataclasses import asdict
from fractions import Fraction
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.measure.clips import face_views, measure_clip, square_rgb
from latentsync_trt.measure.lips import FOLLOWS, Following, Loudness, following
from latentsync_trt.measure.pictures import fit_of
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import demo_clip
from latentsync_trt.media.reader import read_frames
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import Float32Array

Talk = tuple[Float32Array, Float32Array]
"""Gaps between lips and the voice, frame by frame."""

_PAINTED_S = Fraction(16, 25)
_SIDE_PX, _COMPARED, _EVERY = 128, 200, 8


def talk_of(video: Path, audio: Path) -> Talk:
    """The lips of `video` and the voice in `audio`."""
    loudness = Loudness()
    deque(loudness.passing(read_audio_blocks(audio)), maxlen=0)
    gaps, voice_db = measure_clip(video, audio).gaps, loudness.levels_db()[:, 1:]
    count = min(len(gaps), len(voice_db))
    return gaps[:count], voice_db[:count]


def mismatched(talks: dict[str, Talk]) -> dict[str, Following]:
    """Lips beside the sound of others, and beside their own, rotated by a quarter, a half and three quarters."""
    found = {}
    for name, (gaps, own) in talks.items():
        for other, (_, voice_db) in talks.items():
            if other != name:
                count = min(len(gaps), len(voice_db))
                found[f"{name}, sound of {other}"] = following(gaps[:count], voice_db[:count])
        for quarter in (1, 2, 3):
            rotated = np.roll(own, quarter * len(own) // 4, axis=0)
            found[f"{name}, rotated by {quarter}/4"] = following(gaps, rotated)
    return found


def _pieces(talks: dict[str, Talk], length_s: int) -> dict[str, Any]:
    """The shares of pieces of the talks that are taken for lips that follow: beside their own sound, and others'."""
    frames, found = length_s * MODEL_FPS, dict[bool, list[bool]]()
    for (name, (gaps, _)), (other, (_, voice_db)) in product(talks.items(), repeat=2):
        for start in range(0, min(len(gaps), len(voice_db)) - frames + 1, MODEL_FPS):
            piece, right = slice(start, start + frames), name == other
            heard = voice_db[piece] if right else np.roll(voice_db, start // 2, axis=0)[piece]
            found.setdefault(right, []).append(following(gaps[piece], heard).distinct >= FOLLOWS)
    shares = {name: round(float(np.mean(found[right])), 3) for name, right in (("own", True), ("wrong", False))}
    return {"length_s": length_s, **{f"{name}_sound_follows": share for name, share in shares.items()}}


def _fits(clips: list[Path], built_in: tuple[Path, Path], folder: Path) -> list[dict[str, Any]]:
    rows = []
    options = SyncOptions(preset="fast", end=_PAINTED_S, overwrite=True)
    with LipSync.from_bundle("demo", "cpu") as lip_sync:
        for video, audio in (built_in, *((clip, clip) for clip in clips)):
            quality = lip_sync.sync(video, audio, folder / "painted.mkv", options).quality
            if quality is None or quality.color is None or quality.sharpness is None:
                raise ValueError(f"{video}: too few faces")
            name = "built-in" if video == built_in[0] else video.stem
            rows.append(_fit(f"{name}, painted by the built-in model", [quality.color], [quality.sharpness]))
    for clip in clips:
        frames = islice(square_rgb(clip, read_frames(clip)), 0, _COMPARED, _EVERY)
        faces = [views[0] for views in face_views([frames], _SIDE_PX) if views is not None]
        colors, sharpness = zip(*(fit_of(*pair) for pair in combinations(faces, 2)), strict=True)
        rows.append(_fit(f"{clip.stem}, other frames of the same person", colors, sharpness))
    return rows


def _fit(name: str, colors: Any, sharpness: Any) -> dict[str, Any]:
    return {"case": name, "most_color": round(max(colors), 2), "least_sharpness": round(min(sharpness), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built_in, dubbed = demo_clip(folder), folder / "dubbed.mp4"
        with LipSync.from_bundle("demo", "cpu") as lip_sync:
            lip_sync.sync(*built_in, dubbed)
        talks = {"built-in": talk_of(dubbed, built_in[1])}
        talks |= {clip.stem: talk_of(clip, clip) for clip in arguments.clips}
        matched = {name: following(*talk) for name, talk in talks.items()}
        result: dict[str, Any] = {
            "command": f"python -m scripts.verdicts {shlex.join(Path(each).name for each in sys.argv[1:])}",
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
            "lips": {"own sound": _rows(matched), "wrong sound": _rows(mismatched(talks))},
            "pieces": [_pieces(talks, length_s) for length_s in (5, 10)],
            "fit": _fits(arguments.clips, built_in, folder),
        }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


def _rows(found: dict[str, Following]) -> list[dict[str, Any]]:
    return [
        {"case": name, **{key: round(value, 2) for key, value in asdict(one).items()}} for name, one in found.items()
    ]


if __name__ == "__main__":
    main()
