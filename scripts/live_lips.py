"""How well lips of a live session follow the speech, beside those of `sync`: the built-in clip and model.

Speech comes in as from a microphone, so that each window has exactly the look-ahead. `opening`: correlation of the gap
between the lips with the known mouth; `closures`: share of m, b and p shown shut; `joint`: how much more than with
`sync` the mouth changes from frame to frame where windows meet, relative to the same inside windows; `psnr_db`: of the
mouth beside `sync`. The first frames, in which the mouth of a live session fades in, are left out.

    python scripts/live_lips.py --json benchmarks/live-lips-demo.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt import LipSync, LiveOptions, demo_clip
from latentsync_trt.measure.clips import face_views, mouth_gaps
from latentsync_trt.measure.lips import score
from latentsync_trt.measure.page import SHOWN_PX
from latentsync_trt.measure.pictures import mouth_part
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import spoken_mouth
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import Float32Array, UInt8Array
from latentsync_trt.version import __version__

_RATE_HZ, _PIECE = 16_000, 640
_FADE_FRAMES = 4


def live_frames(lip_sync: LipSync, video: Path, speech: Float32Array, options: LiveOptions) -> list[UInt8Array]:
    """The frames of the clip, spoken live."""
    frames = list[UInt8Array]()
    first = options.hop * _PIECE + (options.look_ahead_ms - 40) * _RATE_HZ // 1000
    with lip_sync.stream(video, options) as session:
        session.say(speech[:first], _RATE_HZ)
        at = first
        while len(frames) * _PIECE < len(speech):
            frames.append(next(session).frame)
            if at < len(speech):
                session.say(speech[at : at + _PIECE], _RATE_HZ)
                at += _PIECE
                if at >= len(speech):
                    session.end()
    return frames


def mouths(source: Sequence[UInt8Array], result: Sequence[UInt8Array]) -> Float32Array:
    """The mouth of each frame, float32 `(n, h, w, 3)`."""
    part = mouth_part(SHOWN_PX)
    return np.stack([faces[1][part].astype(np.float32) for faces in face_views([source, result], SHOWN_PX) if faces])


def joint(live: Float32Array, offline: Float32Array, hop: int) -> float:
    """See above."""
    own, other = (np.abs(np.diff(each, axis=0)).mean(axis=(1, 2, 3)) for each in (live, offline))
    steps = np.arange(1, len(live))
    meets, used = steps % hop == 0, steps > _FADE_FRAMES
    at, inside = (own[mask].mean() / other[mask].mean() for mask in (meets & used, ~meets & used))
    return float(at / inside)


def main() -> None:
    """Measures `sync`, and live sessions of some hops."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hop", type=int, action="append", help="[default: 16 and 8]")
    parser.add_argument("--look-ahead-ms", type=int, default=160)
    parser.add_argument("--json", type=Path, help="File for the rows.")
    chosen = parser.parse_args()
    rows = []
    with TemporaryDirectory() as name, LipSync.from_bundle("demo", "cpu") as lip_sync:
        video, audio = demo_clip(name)
        speech = np.concatenate(list(read_audio_blocks(audio)))
        source = [frame.rgb for frame in read_frames(video)]
        options = LiveOptions(wait=True)
        lip_sync.sync(video, audio, Path(name) / "out.mkv", replace(options.sync_options(), codec="ffv1"))
        offline = [frame.rgb for frame in read_frames(Path(name) / "out.mkv")]
        shown = mouths(source, offline)

        def row(frames: Sequence[UInt8Array]) -> dict[str, float]:
            gaps = mouth_gaps(frames)
            gaps[:_FADE_FRAMES] = np.nan
            found = score(gaps, spoken_mouth())
            return {"opening": round(found.opening, 3), "closures": round(found.closures, 3), "lag": found.lag_frames}

        rows.append({"hop": None, "look_ahead_ms": None, **row(offline)})
        print(json.dumps(rows[-1]), flush=True)
        for hop in chosen.hop or (16, 8):
            options = LiveOptions(wait=True, hop=hop, look_ahead_ms=chosen.look_ahead_ms)
            frames = live_frames(lip_sync, video, speech, options)
            live = mouths(source, frames)
            error = float(np.square(live[_FADE_FRAMES:] - shown[_FADE_FRAMES:]).mean())
            rows.append(
                {
                    "hop": hop,
                    "look_ahead_ms": chosen.look_ahead_ms,
                    **row(frames),
                    "joint": round(joint(live, shown, hop), 3),
                    "psnr_db": round(10 * np.log10(255**2 / error), 1),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if chosen.json:
        found = {"version": __version__, "preset": LiveOptions().preset, "rows": rows}
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
