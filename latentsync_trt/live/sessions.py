"""The live sessions of one `LipSync`: opens as many as can be painted in real time."""

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.audio.streaming import StreamingAudioEncoder
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.face.paste import Paster
from latentsync_trt.live.frame import FRAME_S
from latentsync_trt.live.idle import IdleLoop, load_idle
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.painter import SessionPainter
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.live.session import LiveSession
from latentsync_trt.live.speech_queue import silent_frame
from latentsync_trt.media.files import check_file
from latentsync_trt.sync.inputs import path_argument
from latentsync_trt.sync.model_slot import ModelSlot, graphs_for
from latentsync_trt.sync.windows import make_inpainter

IdleClip = str | Path | IdleLoop

MOST_LOAD = 0.9
"""Share of the time in which the networks may paint; the rest evens out."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a window: seconds until its first frames can be shown, and `busy_s` of the networks."""

    first_s: float
    busy_s: float


class LiveSessions:
    """Opens sessions and knows those that are open."""

    def __init__(self, slot: ModelSlot) -> None:
        self._slot = slot
        self._loads: dict[LiveSession, float] = {}
        self._costs: dict[object, Cost] = {}

    def open(self, video: IdleClip, options: LiveOptions, **others: Any) -> LiveSession:
        """`others`: arguments of `LiveSession`."""
        manifest, chosen = self._slot.bundle.manifest, options.sync_options()
        if options.hop > manifest.frames:
            raise InputError(f"--hop {options.hop}: windows of bundle {manifest.name} have {manifest.frames} frames")
        key = chosen.sampling, chosen.guidance, options.hop
        if not isinstance(video, IdleLoop):
            check_file(path_argument(video, "video"))
        detector = self._slot.detector()
        with ExitStack() as opening:
            model = opening.enter_context(self._slot.acquired(graphs_for(chosen), lasting=True))
            inpainter = make_inpainter(model, chosen)
            loop = video if isinstance(video, IdleLoop) else load_idle(Path(video), options, detector, inpainter)
            encoder = StreamingAudioEncoder(model.audio_encoder, filters_of(model.bundle), manifest.frames)
            painter = SessionPainter(inpainter, loop, encoder, Paster(detector, paste=options.paste))
            cost = self._costs[key] = self._costs.get(key) or measured(painter, options.hop)
            load = self._admit(cost, options.hop)
            held = opening.pop_all()
        session = LiveSession(painter, loop, options, paint_s=cost.first_s, on_close=held.close, **others)
        held.callback(self._loads.pop, session, None)
        self._loads[session] = load
        return session

    def close(self) -> None:
        for session in list(self._loads):
            session.close()

    def _admit(self, cost: Cost, hop: int) -> float:
        """Share of the time in which the networks paint for a session that speaks, `hop` frames at a time; raises
        `Busy` if it does not fit beside those that are open."""
        load, others = cost.busy_s / float(hop * FRAME_S), sum(list(self._loads.values()))
        if others + load <= MOST_LOAD:
            return load
        takes = f"a window of {hop} frames takes {cost.busy_s:.2f} s of {float(hop * FRAME_S):.2f} s"
        why = f"painting is slower than real time here ({takes}); use a bundle of lower resolution, fewer --steps, a "
        why += "higher --hop, or a faster GPU"
        if others:
            why = f"no room for another session: {takes}, and those open may take {others:.0%} of the time already "
            why += f"(of {MOST_LOAD:.0%}); close one, or open it on another GPU"
        raise Busy(f"live: {why}")


def measured(painter: SessionPainter, hop: int) -> Cost:
    """The least of two windows, after a first one."""

    def once() -> Cost:
        silence = silent_frame(np.zeros(0, np.float32))
        planned = [PlannedFrame(place, silence, 1.0, place == 0) for place in range(hop)]
        begun_s = perf_counter()
        faces = painter.decoded(painter.latents(planned, silence.sound, lambda: None))
        first = next(faces)
        decoded_s = perf_counter()
        painter.picture(0, painter.patch(0, first, begins=True), 1.0)
        composed_s = perf_counter()
        deque(faces, maxlen=0)
        return Cost(composed_s - begun_s, perf_counter() - composed_s + decoded_s - begun_s)

    costs = [once() for _ in range(3)][1:]
    return Cost(min(each.first_s for each in costs), min(each.busy_s for each in costs))
