"""How well the built-in model's lips follow the speech, and how much they flicker, at other frame rates than 25.

The built-in portrait is filmed at each rate by the same camera, at four moments of its path, and synced to the built-in
sentence with `--fps source`. `opening`: correlation of the gap between the lips with the known mouth at each frame's
own time; `flicker`: of the mouth, see `latentsync_trt.measure.pictures.FlickerMeter`; `source_flicker`: of the same
part of the video that was filmed.

    python scripts/frame_rates.py --json benchmarks/frame-rates-demo.json
"""

import argparse
import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.config import MODEL_FPS, PRESETS
from latentsync_trt.measure.clips import face_views, mouth_gaps
from latentsync_trt.measure.lips import agreement
from latentsync_trt.measure.page import SHOWN_PX
from latentsync_trt.measure.pictures import FlickerMeter, mouth_part
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import SIDE_PX, SPEECH, camera_frames_at, spoken_mouth
from latentsync_trt.media.reader import read_frames
from latentsync_trt.version import __version__

RATES = {
    "23.976": Fraction(24000, 1001),
    "25": Fraction(25),
    "29.97": Fraction(30000, 1001),
    "50": Fraction(50),
    "59.94": Fraction(60000, 1001),
}
VARIABLE = "variable, 20 to 60"
_STARTS_S = (0, 11, 23, 37)
_TICKS_PER_S = 120_000
"""Of the clips' time base: all rates are exact in it."""
_ENCODING = {"crf": "0", "preset": "ultrafast"}


def times_of(name: str, duration_s: Fraction) -> Iterator[Fraction]:
    """The frames' times; those of the variable rate have random steps of 1/60 to 1/20 s, as telephones make."""
    generator, time_s = np.random.default_rng(3), Fraction(0)
    while time_s < duration_s:
        yield time_s
        step = Fraction(int(generator.integers(_TICKS_PER_S // 60, _TICKS_PER_S // 20)), _TICKS_PER_S)
        time_s += 1 / RATES[name] if name in RATES else step


def write_source(path: Path, times_s: list[Fraction], start_s: int) -> None:
    """Films the portrait from `start_s` on the camera's path, without loss."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", width=SIDE_PX, height=SIDE_PX, options=_ENCODING)
        stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS_PER_S)
        for rgb, time_s in zip(camera_frames_at(start_s + time_s for time_s in times_s), times_s, strict=True):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame.pts, frame.time_base = int(time_s * _TICKS_PER_S), stream.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def measure(source: Path, result: Path) -> dict[str, float]:
    """Correlation of the lips' opening, and the flicker of result and source."""
    mouth, shown = spoken_mouth(), list(read_frames(result))
    times_s = np.array([float(frame.time_s) for frame in shown])
    target = np.interp(times_s, np.arange(len(mouth.opening)) / MODEL_FPS, mouth.opening).astype(np.float32)
    gaps = mouth_gaps(frame.rgb for frame in shown)
    meters = FlickerMeter(), FlickerMeter()
    views = face_views([(frame.rgb for frame in read_frames(path)) for path in (source, result)], SHOWN_PX)
    for faces in views:
        for meter, face in zip(meters, faces or (None, None), strict=True):
            meter.add(None if face is None else face[mouth_part(SHOWN_PX)].astype(np.float32))
    filmed, painted = (meter.noise() or 0.0 for meter in meters)
    return {"opening": agreement(gaps, target).correlation, "flicker": painted, "source_flicker": filmed}


def main() -> None:
    """Measures all rates, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", action="append", choices=[*RATES, VARIABLE], help="One rate only; may be repeated.")
    parser.add_argument("--preset", default="balanced", choices=[*PRESETS])
    parser.add_argument(
        "--clips", type=int, default=len(_STARTS_S), help="Moments of the camera's path to average over."
    )
    parser.add_argument("--json", type=Path, help="File for the rows.")
    chosen = parser.parse_args()
    options = SyncOptions(preset=chosen.preset, codec="ffv1")
    duration_s, rows = audio_duration_s(SPEECH), []
    with TemporaryDirectory() as name, LipSync.from_bundle(find_bundle("demo")[0], "cpu") as lip_sync:
        for rate in chosen.rate or [*RATES, VARIABLE]:
            found = []
            for start_s in _STARTS_S[: chosen.clips]:
                source, result = Path(name) / "source.mp4", Path(name) / "out.mkv"
                write_source(source, list(times_of(rate, duration_s)), start_s)
                report = lip_sync.sync(source, SPEECH, result, options)
                found.append(measure(source, result) | {"frames": report.frames, "windows": report.windows})
            rows.append({"rate": rate} | {key: float(np.mean([one[key] for one in found])) for key in found[0]})
            print(json.dumps(rows[-1]), flush=True)
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"version": __version__, "preset": chosen.preset, "clips": chosen.clips, "rows": rows}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
