"""How soon a live session answers, and how steadily: rows as JSON, in real time on this machine.

    python scripts/measure_live.py BUNDLE --provider cuda --hop 16 --speech microphone --seconds 600 --json live.json

`--speech`: "microphone" says the built-in sentence over and over without an end, in pieces of 40 ms in real time; "tts"
says it at four times real time in pieces of 200 ms, ends the utterance, and begins the next one when the face is idle.
A receiver in this process takes a frame every 40 ms and encodes its picture with x264 (veryfast, zerolatency).

`delay_ms`: from the beginning of a frame's speech until its picture has been encoded; with "tts" that of the first
frame of each utterance, from its first `say`. `tick_late_ms`: how much later than due a frame was there and encoded.
`drift_ms`: median delay in the last tenth less that in the first. `barge_in`: milliseconds from `stop` until the sound
has ended, and until a picture of the idle clip is shown. `streams`: sessions admitted at once, and their late frames
while all speak. `networks_s_per_spoken_s`: seconds in which networks run, with kept latents, and what it adds to encode
every window instead.
"""

import argparse
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt import LipSync, LiveOptions, LiveSession
from latentsync_trt.bench.rows import environment
from latentsync_trt.config import PRESETS
from latentsync_trt.errors import Busy
from latentsync_trt.live import sessions
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.conversion import frame_of
from latentsync_trt.media.demo_clip import SPEECH, camera_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.inpaint import make_inpainter
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Float32Array

_TICK_S = 0.04
_RATE_HZ = 16_000
_PIECE_S = {"microphone": 0.04, "tts": 0.2}
_SPEED = {"microphone": 1.0, "tts": 4.0}
_X264 = {"preset": "veryfast", "tune": "zerolatency", "crf": "23"}
_BEGINNING_S = 3.0
"""Left out of the microphone's delays: a stream that begins."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of one tick; times in seconds of `perf_counter`."""

    due_s: float
    out_s: float
    delay_s: float | None
    utterance: int
    is_idle: bool
    is_late: bool


class Receiver(threading.Thread):
    """Takes a frame every 40 ms and encodes its picture, until `finish`."""

    def __init__(self, session: LiveSession) -> None:
        super().__init__(name="receiver", daemon=True)
        self.session, self.seen = session, list[Seen]()
        self._over = threading.Event()
        height, width = session.loop.planes[0].y.shape
        self._size = width + width % 2, height + height % 2
        self._encoder = av.CodecContext.create("libx264", "w")
        self._encoder.width, self._encoder.height = self._size
        self._encoder.pix_fmt, self._encoder.time_base = "yuv420p", Fraction(1, 25)
        self._encoder.options = _X264
        self._idle = {id(planes) for planes in session.loop.planes}

    def run(self) -> None:
        """The loop."""
        begun_s = time.perf_counter()
        while not self._over.is_set():
            due_s = begun_s + len(self.seen) * _TICK_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
            live = next(self.session)
            given_s = time.perf_counter()
            frame = frame_of(live.planes, *self._size)
            frame = frame if frame.format.name == "yuv420p" else frame.reformat(format="yuv420p")
            frame.pts, frame.time_base = len(self.seen), Fraction(1, 25)
            self._encoder.encode(frame)
            out_s = time.perf_counter()
            delay_s = None if live.delay_s is None else live.delay_s + out_s - given_s
            is_idle = id(live.planes) in self._idle
            self.seen.append(Seen(due_s, out_s, delay_s, live.utterance, is_idle, live.late))

    def finish(self) -> None:
        """Ends it."""
        self._over.set()
        self.join()


def say(session: LiveSession, speech: Float32Array, kind: str, until_s: float) -> float:
    """Says `speech` at the pace of `kind`, or until a time; returns when its first piece was said."""
    begun_s, piece = time.perf_counter(), round(_PIECE_S[kind] * _RATE_HZ)
    for start in range(0, len(speech), piece):
        due_s = begun_s + start / _RATE_HZ / _SPEED[kind]
        time.sleep(max(0.0, due_s - time.perf_counter()))
        if time.perf_counter() > until_s:
            break
        session.say(speech[start : start + piece], _RATE_HZ)
    return begun_s


def wait_until(condition: Callable[[], bool], most_s: float = 60.0) -> None:
    """Looks every 5 ms."""
    end_s = time.perf_counter() + most_s
    while not condition() and time.perf_counter() < end_s:
        time.sleep(0.005)


def percentiles(values: list[float]) -> dict[str, float | int]:
    """In milliseconds."""
    if not values:
        return {"n": 0}
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return {
        "p50": round(1e3 * p50, 1),
        "p99": round(1e3 * p99, 1),
        "max": round(1e3 * max(values), 1),
        "n": len(values),
    }


def speak(session: LiveSession, speech: Float32Array, kind: str, seconds: float) -> dict[str, Any]:
    """Speech for so long, received in real time."""
    receiver, end_s, first_s = Receiver(session), time.perf_counter() + seconds, dict[int, float]()
    receiver.start()
    time.sleep(0.5)
    if kind == "microphone":
        repeated = np.tile(speech, int(seconds * _RATE_HZ / len(speech)) + 1)
        said_s = say(session, repeated, kind, end_s)
    else:
        number = 0
        while time.perf_counter() < end_s:
            number += 1
            first_s[number] = say(session, speech, kind, end_s + 60)
            session.end()
            wait_until(lambda: session.idle)
    session.end()
    wait_until(lambda: session.idle)
    receiver.finish()
    seen = receiver.seen
    if kind == "microphone":
        spoken = [one for one in seen if one.delay_s is not None and one.out_s > said_s + _BEGINNING_S]
        delays_s = [one.delay_s + _PIECE_S[kind] for one in spoken if one.delay_s is not None]
    else:
        shown_s = {one.utterance: one.out_s for one in reversed(seen) if one.utterance}
        delays_s = [shown_s[number] - first_s[number] for number in first_s if number in shown_s]
    tenth = max(1, len(delays_s) // 10)
    drift_s = statistics.median(delays_s[-tenth:]) - statistics.median(delays_s[:tenth]) if delays_s else 0.0
    return {
        "delay_ms": percentiles(delays_s),
        "drift_ms": round(1e3 * drift_s, 1),
        "tick_late_ms": percentiles([one.out_s - one.due_s for one in seen]),
        **{name: value for name, value in asdict(session.counts).items() if name != "painting_s"},
        "networks_s_per_spoken_s": round(session.counts.painting_s / max(session.counts.spoken * _TICK_S, 1e-9), 3),
    }


def barge_in(session: LiveSession, speech: Float32Array, times: int) -> dict[str, Any]:
    """Speech that is stopped in its middle."""
    receiver, sound_s, idle_s = Receiver(session), list[float](), list[float]()
    receiver.start()
    for number in range(times):
        say(session, speech, "tts", time.perf_counter() + 60)
        session.end()
        wait_until(lambda: bool(receiver.seen) and bool(receiver.seen[-1].utterance))
        time.sleep(1.0 + 0.013 * number)
        stopped_s, count = time.perf_counter(), len(receiver.seen)
        session.stop()
        wait_until(lambda count=count: any(one.is_idle for one in receiver.seen[count:]))
        after = [one for one in receiver.seen[count:] if one.out_s > stopped_s]
        # The first frame given after `stop` has the last 20 ms of sound.
        silent = next(one for one in after if not one.utterance or one.due_s > stopped_s)
        sound_s.append(silent.out_s + 0.02 - stopped_s)
        idle_s.append(next(one for one in after if one.is_idle).out_s - stopped_s)
        time.sleep(0.5)
    receiver.finish()
    return {"sound_ms": percentiles(sound_s), "idle_ms": percentiles(idle_s)}


def streams(
    lip_sync: LipSync, first: LiveSession, speech: Float32Array, options: LiveOptions, most: int
) -> dict[str, Any]:
    """As many sessions as are admitted, at most `most`, all of them speaking for 20 s."""
    refused = ""
    with ExitStack() as opened:
        speaking = [first]
        try:
            while len(speaking) < most:
                speaking.append(opened.enter_context(lip_sync.stream(first.loop, options)))
        except Busy as error:
            refused = str(error)
        late = [session.counts.late for session in speaking]
        found: list[dict[str, Any]] = [{} for _ in speaking]

        def one(place: int) -> None:
            found[place] = speak(speaking[place], speech, "microphone", 20.0)

        threads = [threading.Thread(target=one, args=(place,)) for place in range(len(speaking))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        late = [session.counts.late - before for session, before in zip(speaking, late, strict=True)]
    return {
        "admitted": len(speaking),
        "refused": refused,
        "late": late,
        "delay_p99_ms": [each["delay_ms"].get("p99") for each in found],
    }


def encoding(lip_sync: LipSync, session: LiveSession, options: LiveOptions) -> float:
    """Seconds that it takes to encode a window of the loop's faces."""
    model = lip_sync._slot.model
    assert model is not None  # which the session uses
    inpainter = make_inpainter(model, options.sync_options())
    targets = [session.loop.targets[session.loop.index(place)] for place in range(model.bundle.manifest.frames)]
    faces = np.stack([target.face.image for target in targets if target.face is not None])
    times_s = []
    for _ in range(4):
        begun_s = time.perf_counter()
        inpainter.encode([faces])
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


def main() -> None:
    """Measures one bundle, hop and pace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle")
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--video", type=Path, help="Idle clip.  [default: 4 s of the built-in portrait]")
    parser.add_argument("--audio", type=Path, default=SPEECH)
    parser.add_argument("--hop", type=int, default=8)
    parser.add_argument("--look-ahead-ms", type=int, default=160)
    parser.add_argument("--preset", default="fast", choices=[*PRESETS])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cache-interval")
    parser.add_argument("--speech", default="microphone", choices=[*_PIECE_S])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--barge-ins", type=int, default=10)
    parser.add_argument("--most-streams", type=int, default=8, help="1 leaves the measure of streams out.")
    parser.add_argument("--admit-all", action="store_true", help="To try this script where painting is too slow.")
    parser.add_argument("--json", type=Path, help="File to which a row is added.")
    chosen = parser.parse_args()
    tune_process()
    if chosen.admit_all:
        sessions.MOST_LOAD = math.inf
    options = LiveOptions(
        hop=chosen.hop,
        look_ahead_ms=chosen.look_ahead_ms,
        preset=chosen.preset,
        steps=chosen.steps,
        cache_interval=chosen.cache_interval,
        buffer_s=60.0,
    )
    speech = np.concatenate(list(read_audio_blocks(chosen.audio)))
    begun_s = time.perf_counter()
    with TemporaryDirectory() as folder, LipSync.from_bundle(chosen.bundle, chosen.provider) as lip_sync:
        video = chosen.video
        if video is None:
            video = Path(folder) / "idle.mp4"
            write_pictures(video, camera_frames(Fraction(4)))
        with lip_sync.stream(video, options) as session:
            opened_s = time.perf_counter() - begun_s
            manifest = lip_sync._bundle.manifest
            (cost,) = lip_sync._live._costs.values() if lip_sync._live is not None else ()
            row: dict[str, Any] = {
                "bundle": manifest.name,
                "resolution_px": manifest.resolution_px,
                "frames": manifest.frames,
                "hop": chosen.hop,
                "look_ahead_ms": chosen.look_ahead_ms,
                "plan": {"preset": chosen.preset, "steps": chosen.steps, "cache_interval": chosen.cache_interval},
                "speech": chosen.speech,
                "seconds": chosen.seconds,
                "picture_px": list(session.loop.planes[0].y.shape[::-1]),
                "opened_s": round(opened_s, 2),
                "loop_mb": round(session.loop.size_bytes / 1e6, 1),
                "window_first_ms": round(1e3 * cost.first_s, 1),
                "window_busy_ms": round(1e3 * cost.busy_s, 1),
            }
            row |= speak(session, speech, chosen.speech, chosen.seconds)
            encode_s = encoding(lip_sync, session, options)
            row["encode_window_ms"] = round(1e3 * encode_s, 1)
            row["networks_s_per_spoken_s_without_kept_latents"] = round(
                row["networks_s_per_spoken_s"] + encode_s * row["windows"] / max(row["spoken"] * _TICK_S, 1e-9), 3
            )
            print(json.dumps(row), flush=True)
            if chosen.barge_ins:
                row["barge_in"] = barge_in(session, speech, chosen.barge_ins)
                print(json.dumps(row["barge_in"]), flush=True)
            if chosen.most_streams > 1:
                row["streams"] = streams(lip_sync, session, speech, options, chosen.most_streams)
                print(json.dumps(row["streams"]), flush=True)
            found: dict[str, Any] = {"environment": environment(sys.argv, [lip_sync._selection]), "rows": []}
    if chosen.json:
        if chosen.json.exists():
            found = json.loads(chosen.json.read_text(encoding="utf-8"))
        found["rows"].append(row)
        chosen.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
