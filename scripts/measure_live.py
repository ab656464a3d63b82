"""How soon a live session answers, and how steadily: a row as JSON, in real time on this machine.

    python scripts/measure_live.py BUNDLE --provider cuda --hop 16 --speech microphone --seconds 600
    > live.json

`--speech`: "microphone" says the built-in sentence over and over without an end, in pieces of 40 ms
in real time; "tts" says it at four times real time in pieces of 200 ms, ends the utterance, and
begins the next one when the face is idle. A receiver in this process takes a frame every 40 ms and
encodes its picture with x264 (veryfast, zerolatency).

`delay_ms`: from the beginning of a frame's speech until its picture has been encoded; with "tts"
that of the first frame of each utterance, from its first `say`. `tick_late_ms`: how much later than
due a frame was there and encoded. `barge_in`: milliseconds from `stop` until the sound has ended,
and until a picture of the idle clip is shown. `networks_s_per_spoken_s`: seconds in which networks
run.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import av
import numpy as np

from latentsync_trt import LipSync, LiveOptions, LiveSession
from latentsync_trt.bench.rows import environment
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.conversion import frame_from_planes
from latentsync_trt.media.demo_clip import SPEECH, camera_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Float32Array

_TICK_S = 0.04
_RATE_HZ = 16_000
_PIECE_S = {"microphone": 0.04, "tts": 0.2}
_SPEED = {"microphone": 1.0, "tts": 4.0}
_BEGINNING_S = 3.0  # left out of the microphone's delays


class Seen(NamedTuple):
    """What became of one tick; times in seconds of `perf_counter`."""

    due_s: float
    out_s: float
    delay_s: float | None
    utterance: int
    is_idle: bool


@contextmanager
def receiving(session: LiveSession) -> Iterator[list[Seen]]:
    """Takes a frame every 40 ms and encodes its picture, until the block ends; fills a list."""
    seen = list[Seen]()
    over = threading.Event()
    height, width = session.loop.planes[0].y.shape
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width = width + width % 2
    encoder.height = height + height % 2
    encoder.pix_fmt = "yuv420p"
    encoder.time_base = Fraction(1, 25)
    encoder.options = {"preset": "veryfast", "tune": "zerolatency", "crf": "23"}
    idle = {id(planes) for planes in session.loop.planes}

    def receive() -> None:
        begun_s = time.perf_counter()
        while not over.is_set():
            due_s = begun_s + len(seen) * _TICK_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
            live = next(session)
            given_s = time.perf_counter()
            frame = frame_from_planes(live.planes, encoder.width, encoder.height).reformat(
                format="yuv420p"
            )
            frame.pts = len(seen)
            frame.time_base = Fraction(1, 25)
            encoder.encode(frame)
            out_s = time.perf_counter()
            delay_s = None if live.delay_s is None else live.delay_s + out_s - given_s
            seen.append(Seen(due_s, out_s, delay_s, live.utterance, id(live.planes) in idle))

    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive)
        try:
            yield seen
        finally:
            over.set()
        received.result()


def say(session: LiveSession, speech: Float32Array, kind: str) -> float:
    """Says an utterance at the pace of `kind`; returns when its first piece was said."""
    begun_s = time.perf_counter()
    piece = round(_PIECE_S[kind] * _RATE_HZ)
    for start in range(0, len(speech), piece):
        due_s = begun_s + start / _RATE_HZ / _SPEED[kind]
        time.sleep(max(0.0, due_s - time.perf_counter()))
        session.say(speech[start : start + piece], _RATE_HZ)
    session.end()
    return begun_s


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def milliseconds(values_s: Sequence[float]) -> dict[str, float | int]:
    p50, p99, most = (
        round(1e3 * value, 1) for value in np.percentile(values_s, [50, 99, 100]).tolist()
    )
    return {"p50": p50, "p99": p99, "max": most, "n": len(values_s)}


def speak(session: LiveSession, speech: Float32Array, kind: str, seconds: float) -> dict[str, Any]:
    said_s = list[float]()
    end_s = time.perf_counter() + seconds
    with receiving(session) as seen:
        time.sleep(0.5)
        if kind == "microphone":
            said_s.append(say(session, np.resize(speech, round(seconds * _RATE_HZ)), kind))
        while kind == "tts" and time.perf_counter() < end_s:
            said_s.append(say(session, speech, kind))
            wait_until(lambda: session.idle)
        wait_until(lambda: session.idle)
    if kind == "microphone":
        begun = [one.delay_s for one in seen if one.out_s > said_s[0] + _BEGINNING_S]
        delays_s = [delay_s + _PIECE_S[kind] for delay_s in begun if delay_s is not None]
    else:
        shown_s = {one.utterance: one.out_s for one in reversed(seen) if one.utterance}
        delays_s = [
            shown_s[number] - first_s
            for number, first_s in enumerate(said_s, 1)
            if number in shown_s
        ]
    return {
        "delay_ms": milliseconds(delays_s),
        "tick_late_ms": milliseconds([one.out_s - one.due_s for one in seen]),
        **{name: value for name, value in asdict(session.counts).items() if name != "painting_s"},
        "networks_s_per_spoken_s": round(
            session.counts.painting_s / max(session.counts.spoken * _TICK_S, 1e-9), 3
        ),
    }


def barge_in(session: LiveSession, speech: Float32Array, times: int) -> dict[str, Any]:
    """Speech that is stopped in its middle."""
    sound_s = list[float]()
    idle_s = list[float]()
    with receiving(session) as seen:
        for number in range(times):
            say(session, speech, "tts")
            wait_until(lambda: bool(seen) and bool(seen[-1].utterance))
            time.sleep(1.0 + 0.013 * number)
            stopped_s = time.perf_counter()
            count = len(seen)
            session.stop()
            wait_until(lambda count=count: any(one.is_idle for one in seen[count:]))
            after = [one for one in seen[count:] if one.out_s > stopped_s]
            # The first frame given after `stop` has the last 20 ms of sound.
            silent = next(one for one in after if not one.utterance or one.due_s > stopped_s)
            sound_s.append(silent.out_s + 0.02 - stopped_s)
            idle_s.append(next(one for one in after if one.is_idle).out_s - stopped_s)
            time.sleep(0.5)
    return {"sound_ms": milliseconds(sound_s), "idle_ms": milliseconds(idle_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--hop", type=int, default=8)
    parser.add_argument("--speech", default="microphone", choices=[*_PIECE_S])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--barge-ins", type=int, default=10)
    chosen = parser.parse_args()
    tune_process()
    speech = np.concatenate(list(read_audio_blocks(SPEECH)))
    options = LiveOptions(hop=chosen.hop, buffer_s=60.0)
    with (
        TemporaryDirectory() as folder,
        LipSync.from_bundle(chosen.bundle, chosen.provider) as lip_sync,
    ):
        row: dict[str, Any] = {
            "environment": environment(sys.argv, [lip_sync.provider], 0),
            **vars(chosen),
        }
        video = Path(folder) / "idle.mp4"
        write_pictures(video, camera_frames(Fraction(4)))
        with lip_sync.stream(video, options) as session:
            row |= speak(session, speech, chosen.speech, chosen.seconds)
            row["barge_in"] = barge_in(session, speech, chosen.barge_ins)
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
