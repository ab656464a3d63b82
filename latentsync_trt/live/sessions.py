"""The live sessions of one `LipSync`: opens as many as can be painted in real time."""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.audio.streaming import StreamingAudioEncoder
from latentsync_trt.compositing.blend import FaceBlender
from latentsync_trt.config import MODEL_RESOLUTION_PX
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.live.cost import WindowCost, blank_loop, composing_s, measure_cost
from latentsync_trt.live.idle import IdleLoop, load_idle
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.painter import SessionPainter
from latentsync_trt.live.session import LiveSession
from latentsync_trt.media.files import check_file
from latentsync_trt.paths import path_argument
from latentsync_trt.runtime.providers.table import CPU
from latentsync_trt.sync.inpainter import make_inpainter
from latentsync_trt.sync.model_slot import ModelSlot, graphs_for

IdleClip = str | Path | IdleLoop

MOST_LOAD = 0.9
"""Share of the time in which the networks may paint; the rest evens out."""


class LiveSessions:
    """Opens sessions and knows those that are open."""

    def __init__(self, slot: ModelSlot) -> None:
        self._slot = slot
        self._loads: dict[LiveSession, float] = {}
        self._costs: dict[object, WindowCost] = {}

    def open(
        self,
        video: IdleClip,
        options: LiveOptions,
        executors: tuple[Executor, Executor] | None,
        now: Callable[[], float],
    ) -> LiveSession:
        """Opens a session; `executors`, `now`: as for `LiveSession`."""
        self._check(video, options)
        sync_options = options.sync_options()
        detector = self._slot.detector()
        with ExitStack() as opened:
            model = opened.enter_context(
                self._slot.use_model(graphs_for(sync_options), for_live_session=True)
            )
            inpainter = make_inpainter(model, sync_options)
            blank = SessionPainter(
                inpainter,
                blank_loop(inpainter.side_px),
                StreamingAudioEncoder(
                    model.audio_encoder, filters_of(model.bundle), model.bundle.manifest.frames
                ),
                FaceBlender(
                    detector, paste=options.paste, finish=options.finish, seed=options.seed
                ),
            )
            # Before the clip is read, which takes minutes where painting is too slow.
            cost = self._cost_of(blank, options)
            load = self._admit(cost, options)
            if not isinstance(video, IdleLoop):
                video = load_idle(Path(video), options, detector, inpainter)
            painter = blank.on(video)
            paint_s = cost.first_s + composing_s(painter)
            held = opened.pop_all()
        session = LiveSession(
            painter, options, executors=executors, now=now, paint_s=paint_s, on_close=held.close
        )
        held.callback(self._loads.pop, session, None)
        self._loads[session] = load
        return session

    def _check(self, video: IdleClip, options: LiveOptions) -> None:
        """Raises `InputError` and `Busy` for what can be known before the networks are open."""
        manifest = self._slot.bundle.manifest
        if options.hop > manifest.frames:
            raise InputError(
                f"--hop {options.hop}: windows of bundle "
                f"{manifest.name} have {manifest.frames} frames"
            )
        if not isinstance(video, IdleLoop):
            check_file(path_argument(video, "video"))
        # On two cores a window of three steps of a published model took four minutes
        # (benchmarks/calibrate-cpu-full.json), and to open it alone takes longer than to measure
        # others.
        is_published = manifest.model in MODEL_RESOLUTION_PX
        if is_published and self._slot.selection.provider is CPU and not options.slow:
            raise Busy(
                f"live: model {manifest.model} paints far slower than real time on the CPU; use a "
                "GPU (latentsync-trt doctor), or run it anyway with --slow"
            )

    def _cost_of(self, painter: SessionPainter, options: LiveOptions) -> WindowCost:
        """Returns what a window takes, measured once for all sessions with such options."""
        key = options.sync_options().sampling, options.guidance, options.hop
        if key not in self._costs:
            self._costs[key] = measure_cost(painter, options.hop)
        return self._costs[key]

    def close(self) -> None:
        for session in list(self._loads):
            session.close()

    def _admit(self, cost: WindowCost, options: LiveOptions) -> float:
        """Returns the share of the time in which the networks paint for a session that speaks;
        raises `Busy` if it does not fit beside those that are open, or alone unless `options.slow`.
        """
        others = sum(list(self._loads.values()))
        load = cost.load(options.hop)
        takes = cost.sentence(options.hop)
        if others + load <= MOST_LOAD or (options.slow and not others):
            return load
        if others:
            raise Busy(
                f"live: no room for another session: {takes}, and those open may take "
                f"{others:.0%} of the time already (of {MOST_LOAD:.0%}); close one, or open it on "
                "another GPU"
            )
        raise Busy(
            f"live: painting is slower than real time here ({takes}); use a bundle of lower "
            "resolution, fewer --steps, a higher --hop, or a faster GPU, or run it anyway with "
            "--slow"
        )
