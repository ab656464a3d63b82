"""The live sessions of one `LipSync`: opens as many as can be painted in real time."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.audio.streaming import StreamingAudioEncoder
from latentsync_trt.compositing.blend import FaceBlender
from latentsync_trt.config import MODEL_RESOLUTION_PX
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.live.frame import FRAME_S
from latentsync_trt.live.idle import IdleLoop, blank_loop, load_idle
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.painter import Canceled, SessionPainter
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.live.session import LiveSession
from latentsync_trt.live.speech_queue import silent_frame
from latentsync_trt.media.files import check_file
from latentsync_trt.runtime.providers.table import CPU
from latentsync_trt.sync.inpainter import make_inpainter
from latentsync_trt.sync.inputs import path_argument
from latentsync_trt.sync.model_slot import ModelSlot, graphs_for

IdleClip = str | Path | IdleLoop

LEAST_MEASURE_S = 2.0
"""Windows are measured for so long at most, or for five times the time in which their frames are
shown: three windows that are painted in just less than real time need three times that.
"""

MOST_LOAD = 0.9
"""Share of the time in which the networks may paint; the rest evens out."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a window, of the networks: seconds until its first frames are painted, and of all its
    frames.
    """

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
        manifest = self._slot.bundle.manifest
        chosen = options.sync_options()
        if options.hop > manifest.frames:
            raise InputError(
                f"--hop {options.hop}: windows of bundle "
                f"{manifest.name} have {manifest.frames} frames"
            )
        if not isinstance(video, IdleLoop):
            check_file(path_argument(video, "video"))
        if not options.slow:
            self._refuse_published_on_cpu()
        detector = self._slot.detector()
        with ExitStack() as opening:
            model = opening.enter_context(
                self._slot.use_model(graphs_for(chosen), for_live_session=True)
            )
            inpainter = make_inpainter(model, chosen)
            encoder = StreamingAudioEncoder(
                model.audio_encoder, filters_of(model.bundle), manifest.frames
            )
            blender = FaceBlender(detector, paste=options.paste)
            # Before the clip is read, which takes minutes where painting is too slow.
            key = chosen.sampling, chosen.guidance, options.hop
            if key not in self._costs:
                blank = SessionPainter(inpainter, blank_loop(inpainter.side_px), encoder, blender)
                self._costs[key] = measured(blank, options.hop)
            cost = self._costs[key]
            load = self._admit(cost, options)
            if isinstance(video, IdleLoop):
                loop = video
            else:
                loop = load_idle(Path(video), options, detector, inpainter)
            painter = SessionPainter(inpainter, loop, encoder, blender)
            paint_s = cost.first_s + composing_s(painter, loop)
            held = opening.pop_all()
        session = LiveSession(
            painter, loop, options, paint_s=paint_s, on_close=held.close, **others
        )
        held.callback(self._loads.pop, session, None)
        self._loads[session] = load
        return session

    def close(self) -> None:
        for session in list(self._loads):
            session.close()

    def _refuse_published_on_cpu(self) -> None:
        """Raises `Busy` for a published model on the CPU: on two cores a window of three steps took
        four minutes (benchmarks/calibrate-cpu-full.json), and to open it alone takes longer than to
        measure others.
        """
        model = self._slot.bundle.manifest.model
        if self._slot.selection.provider is CPU and model in MODEL_RESOLUTION_PX:
            cure = "use a GPU (latentsync-trt doctor), or run it anyway with --slow"
            raise Busy(f"live: model {model} paints far slower than real time on the CPU; {cure}")

    def _admit(self, cost: Cost, options: LiveOptions) -> float:
        """Share of the time in which the networks paint for a session that speaks; raises `Busy` if
        it does not fit beside those that are open, or alone unless `options.slow`.
        """
        hop = options.hop
        others = sum(list(self._loads.values()))
        load = cost.busy_s / float(hop * FRAME_S)
        if others + load <= MOST_LOAD or (options.slow and not others):
            return load
        least = "at least " if cost.busy_s >= measure_s(hop) else ""
        takes = (
            f"a window of {hop} frames takes {least}{cost.busy_s:.2f} "
            f"s of {float(hop * FRAME_S):.2f} s"
        )
        why = (
            f"painting is slower than real time here ({takes}); "
            "use a bundle of lower resolution, fewer --steps, a "
        )
        why += "higher --hop, or a faster GPU, or run it anyway with --slow"
        if others:
            why = (
                f"no room for another session: {takes}, and those "
                f"open may take {others:.0%} of the time already "
            )
            why += f"(of {MOST_LOAD:.0%}); close one, or open it on another GPU"
        raise Busy(f"live: {why}")


def measure_s(hop: int) -> float:
    """How long windows are measured at most."""
    return max(LEAST_MEASURE_S, float(5 * hop * FRAME_S))


def measured(painter: SessionPainter, hop: int) -> Cost:
    """The least of two windows after a first one, as far as they are painted within `measure_s`;
    without any, that.
    """
    most_s = measure_s(hop)
    end_s = perf_counter() + most_s
    costs = list[Cost]()

    def check() -> None:
        if perf_counter() > end_s:
            raise Canceled

    silence = silent_frame(np.zeros(0, np.float32))
    planned = [PlannedFrame(place, silence, 1.0, place == 0) for place in range(hop)]
    try:
        for _ in range(3):
            window_s = perf_counter()
            faces = painter.decoded(painter.latents(planned, silence.sound, check))
            next(faces)
            first_s = perf_counter()
            for _ in faces:
                check()
            costs.append(Cost(first_s - window_s, perf_counter() - window_s))
    except Canceled:
        pass
    counted = costs[1:] or costs or [Cost(most_s, most_s)]
    return Cost(min(each.first_s for each in counted), min(each.busy_s for each in counted))


def composing_s(painter: SessionPainter, loop: IdleLoop) -> float:
    """How long it takes to show a face in its frame: the clip's own, in place of a painted one."""
    face = loop.targets[0].face
    if face is None:
        return 0.0
    begun_s = perf_counter()
    painter.picture(0, painter.patch(0, face.image.astype(np.uint16) * 257, begins=True), 1.0)
    return perf_counter() - begun_s
