"""One clip: decode → find the faces → paint the mouths → encode, each stage in its own thread.

Each stage is a generator over the previous one, joined by a bounded queue, so memory depends on the size of a picture
and of a window, not on the length of the clip. Those before painting begin while the networks open.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter
from typing import Any, cast

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.face.choice import speakers_of
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Paster
from latentsync_trt.measure.syncnet import SyncMeter, open_syncnet
from latentsync_trt.media.c2pa import sign
from latentsync_trt.media.parts import Work
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.runtime.networks.devices import AnyNetworks, Devices
from latentsync_trt.runtime.networks.networks import Notices
from latentsync_trt.runtime.networks.threads import Stage
from latentsync_trt.sync.alarm import Alarm
from latentsync_trt.sync.compose import Composer, load_enhancer
from latentsync_trt.sync.faces import FaceFinder, analyze
from latentsync_trt.sync.inpaint import Inpainter, check_noise, graphs_for, make_inpainter, resolution_of
from latentsync_trt.sync.inputs import Inputs, fingerprint
from latentsync_trt.sync.paint import Encoded, Gathered, PaintDevice, Painter, Sight, Window, faces_of, streams_at
from latentsync_trt.sync.quality import Quality, write_report
from latentsync_trt.sync.speakers import (
    OpenVoices,
    Span,
    expected_frames,
    notices_of_model,
    notices_of_rate,
    soundtrack_of,
    timeline_of,
)
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import (
    DeviceTime,
    Enhancer,
    FaceDetector,
    Float32Array,
    Frame,
    Patch,
    Progress,
    ProgressCallback,
    SyncReport,
)
from latentsync_trt.values import parse_face

# With one network at a time on the device, each processes this many windows before the next is loaded.
_LOW_MEMORY_WINDOWS = 4

# Of an older clip, which so many stages of windows pass each stage of a younger one.
_STAGES_AFTER = 24


@dataclass(frozen=True, slots=True)
class Helpers:
    """What a caller may bring: `detector` finds faces; `enhancer` improves painted ones; `noise`
    float32 `(1, 4, 1, h, w)` replaces that of the seed."""

    detector: FaceDetector | None = None
    enhancer: Enhancer | None = None
    noise: Float32Array | None = None


class Run:
    """One clip through all stages; arguments and errors as those of `LipSync.run`."""

    def __init__(self, devices: Devices, inputs: Inputs, helpers: Helpers, on_progress: ProgressCallback) -> None:
        self._start_s = perf_counter()
        self._inputs, self._options, self._on_progress = inputs, inputs.options, on_progress
        self._devices, self._manifest = devices, devices.bundle.manifest
        self._resolution_px = resolution_of(self._manifest, inputs.options, devices.options)
        check_noise(self._resolution_px, helpers.noise)
        if helpers.enhancer is None and inputs.options.enhancer is not None:
            helpers = replace(helpers, enhancer=load_enhancer(inputs.options.enhancer))
        self._helpers = helpers
        self._inpainters = [self._inpainter(device.networks) for device in devices.all]
        self._clock = StageClock()
        self._opened_s = self._written_s = self._start_s
        self._notices = Notices(devices.notices.on_notice)
        self._alarm = Alarm(self._manifest, self._resolution_px, self._notices.add, strict=inputs.options.strict)
        starts_s, shows = [piece.at_s for piece in inputs.voices.recordings], inputs.page is not None
        self._quality = Quality(starts_s, pictures=shows, alarm=self._alarm, syncnet=self._meters())

    def _meters(self) -> list[SyncMeter]:
        """SyncNet's, of each speaker, if it is to measure."""
        given, heard = self._devices.options.syncnet, self._inputs.voices.recordings
        network = open_syncnet(given) if given or self._inputs.page is not None else None
        return [] if network is None else [SyncMeter(network, piece.path, piece.at_s) for piece in heard]

    def execute(self, own_detector: MediaPipeDetector) -> SyncReport:
        """Runs all stages; encoding runs in this thread. `own_detector` finds outlines, and faces if no other does."""
        with closing(self._read_audio()) as speech:
            span, playback, notices = timeline_of(self._inputs, speech)
            self._announce(notices)
            writer, finder = self._writer(span, playback), self._finder(self._helpers.detector or own_detector, span)
            self._announce(writer.notices)
            painter = self._painter(speech, playback)
            painter.frames_done = writer.frames_done
            paster = Paster(own_detector, mouth_mask(self._resolution_px), paste=self._options.paste)
            composer = Composer(paster, self._helpers.enhancer, self._quality, self._clock, writer.frames_done)
            with closing(self._gathered(finder, painter, playback, own_detector)) as gathered:
                self._open_networks()
                painter.devices = self._paint_devices()
                with writer, closing(self._composed(painter, gathered, composer)) as composed:
                    expected = expected_frames(playback, self._inputs.info)
                    self._on_progress(Progress("painting first frames", writer.frames_done, expected))
                    count = self._write(writer, composed, painter, expected)
                    if not finder.frames_with_face:
                        raise finder.no_face(self._inputs.video, count)
                    self._on_progress(Progress("finishing", count, count))
        self._announce(writer.notices)
        report = self._report(writer, count, finder, painter)
        if self._inputs.page is not None:
            write_report(self._inputs.page, self._inputs.video, report, self._quality, self._options)
        return report

    def _report(self, writer: VideoWriter, count: int, finder: FaceFinder, painter: Painter) -> SyncReport:
        wall_s = perf_counter() - self._start_s
        first_s, done = painter.first or (self._opened_s, count)
        if count - done < done - writer.frames_done:  # a window takes as long for one frame as for all
            first_s, done = self._opened_s, writer.frames_done
        pace_s = self._written_s - first_s
        return SyncReport(
            output=str(self._inputs.output),
            bundle=self._manifest.name,
            provider=self._devices.selection.name,
            frames=count,
            frames_with_face=finder.frames_with_face,
            windows=sum(device.windows for device in painter.devices),
            duration_s=float(writer.end_s),
            wall_s=wall_s,
            opened_s=self._opened_s - self._start_s,
            startup_s=first_s - self._start_s,
            finish_s=self._start_s + wall_s - self._written_s,
            frames_per_s=(count - done) / pace_s if pace_s else 0.0,
            stages=self._clock.times(),
            engines=self._devices.times(),
            notices=(*self._devices.take_notices(), *self._notices.take()),
            untouched=tuple(finder.untouched),
            quality=self._quality.result(),
            devices=tuple(
                DeviceTime(own.name, own.networks.selection.name, used.windows, used.busy_s, own.error)
                for own, used in zip(self._devices.all, painter.devices, strict=True)
            ),
        )

    def _read_audio(self) -> OpenVoices:
        """The recordings come first, since an engine may take minutes to build."""
        voices, devices = self._inputs.voices, self._devices
        rates = notices_of_rate(self._inputs.info, self._options)
        self._announce((*notices_of_model(self._manifest, self._resolution_px), *rates, *devices.selection.notices()))
        self._announce(() if voices.notice is None else (voices.notice,))
        self._on_progress(Progress("reading audio", 0, None))
        with self._clock.measure("encode audio", frames=0):
            filters = filters_of(devices.bundle)
            return OpenVoices(voices, devices.encode_mel, filters, self._options, self._quality.listen)

    def _open_networks(self) -> None:
        self._on_progress(Progress("opening networks", 0, None))
        # An enhancer may use the GPU, also while CUDA graphs would be recorded.
        open_them = self._devices.prepare if self._helpers.enhancer is None else self._devices.warm_up
        with self._clock.measure("open", frames=0):
            open_them(graphs_for(self._options))
        self._opened_s = self._written_s = perf_counter()
        self._announce(self._devices.selection.notices())  # of a provider that it fell back to

    def _announce(self, notices: Iterable[str]) -> None:
        for text in notices:
            self._notices.add(text)

    def _write(
        self,
        writer: VideoWriter,
        composed: Iterable[tuple[Frame, tuple[Patch, ...]]],
        painter: Painter,
        expected: int | None,
    ) -> int:
        count = done = writer.frames_done
        for frame, patches in composed:
            with self._clock.measure("encode"):
                writer.write(frame, patches)
            self._written_s = perf_counter()
            if count == done:
                self._announce(writer.notices)
            count = frame.index + 1
            of = None if expected is None else max(count, expected)
            picture, written_s = partial(writer.small_rgb, frame, patches), float(frame.time_s + frame.duration_s)
            # Frames to paint are written a window at a time; others may be written before one is painted.
            reached_s, reached = painter.last or (self._written_s, done)
            reached_s, reached = (self._written_s, count) if count > reached else (reached_s, reached)
            pace = (reached - done) / (reached_s - self._opened_s)
            self._on_progress(Progress("lip-sync", count, of, picture, written_s, pace))
        return count

    def _gathered(
        self, finder: FaceFinder, painter: Painter, playback: Playback, detector: FaceDetector
    ) -> Generator[Gathered, None, None]:
        """Every frame of the output, and the windows to paint, from now on while the networks open."""
        read = cast(Generator[Frame, None, None], read_frames(self._inputs.video, playback))
        frames = in_background(self._clock.measured("decode", read), finder.prepared, name="decode")
        found = in_background(finder.find(frames), name="face")
        jobs = self._alarm.watch(finder.cut_out(found, self._inputs.voices.speaks), detector)
        return in_background(painter.gather(jobs), depth=self._frames_ahead(painter.streams), name="gather")

    def _composed(
        self, painter: Painter, gathered: Generator[Gathered, None, None], composer: Composer
    ) -> Generator[tuple[Frame, tuple[Patch, ...]], None, None]:
        ahead = self._frames_ahead(painter.streams)
        painted = in_background(painter.paint(gathered), depth=ahead, name="paint")
        return composer.stages(painted, in_background)

    def _frames_ahead(self, streams: int) -> int:
        """How many frames may wait before the networks, and after them.

        They finish a batch of windows at once; meanwhile, the stages around them must be able to
        continue. So at most about three times as many wait in all: in both queues, and in the
        Painter, which holds more for several batches at a time.
        """
        return (self._windows_at_once() + streams) * self._manifest.frames

    def _finder(self, detector: FaceDetector, span: Span) -> FaceFinder:
        voices, tracks = self._inputs.voices, self._inputs.tracks
        choice = parse_face(self._options.face) if voices.faces is None else voices.speaker_of
        if tracks is None and speakers_of(choice) is not None:
            tracks, _ = analyze(self._inputs.video, detector, self._on_progress)
        return FaceFinder(
            detector,
            self._resolution_px,
            self._clock,
            choice=choice,
            tracks=tracks,
            wanted=span.__contains__,
            pixel_aspect=self._inputs.info.sample_aspect_ratio,
            on_notice=self._notices.add,
        )

    def _inpainter(self, networks: AnyNetworks) -> Inpainter:
        return make_inpainter(
            self._manifest,
            self._options,
            networks.codec,
            networks.denoiser,
            noise=self._helpers.noise,
            windows_per_batch=lambda: self._devices.windows_per_batch,
        )

    def _encode_ahead(self, windows: Sequence[Window[Sight]]) -> Encoded | None:
        def encode() -> list[Float32Array]:
            with self._clock.measure("encode faces", frames=sum(len(window.used) for window in windows)):
                return self._inpainters[0].encode([faces_of(window) for window in windows])

        return self._devices.ahead(encode)

    def _paint_devices(self) -> tuple[PaintDevice, ...]:
        return tuple(
            PaintDevice(inpainter, own.run, partial(self._stage, own.networks), own.networks.side_by_side)
            for inpainter, own in zip(self._inpainters, self._devices.all, strict=True)
        )

    def _stage(self, networks: AnyNetworks, stage: Stage, action: Callable[[], Any]) -> Any:
        # Clips that shared the GPU evenly would begin and end together, and leave it idle meanwhile.
        return networks.stage(stage, action, after=_STAGES_AFTER * self._devices.clips.index(self))

    def _painter(self, speech: OpenVoices, playback: Playback) -> Painter:
        devices = self._devices
        return Painter(
            self._manifest.frames,
            speech.windows,
            self._clock,
            streams=streams_at(playback.fps or self._inputs.info.frames_per_s),
            at_once=self._windows_at_once,
            on_failure=lambda position, error: devices.leave_out(devices.all[position], error),
            encode_ahead=self._encode_ahead,
        )

    def _windows_at_once(self) -> int:
        return max(self._devices.windows_per_batch, _LOW_MEMORY_WINDOWS if self._devices.low_memory else 1)

    def _writer(self, span: Span, playback: Playback) -> VideoWriter:
        inputs, helpers = self._inputs, self._helpers
        sound = soundtrack_of(inputs.voices, inputs.mix, inputs.own, span)
        credentials, name, info, fps = inputs.credentials, inputs.output.name, inputs.info, playback.fps
        if fps is not None:
            info = replace(info, frames_per_s=Fraction(fps), time_base=1 / Fraction(fps))
        brought = {"detector": helpers.detector, "enhancer": helpers.enhancer, "noise": helpers.noise}
        made = fingerprint(inputs, self._devices.bundle.folder, self._devices.selection.name, brought)
        return VideoWriter(
            inputs.output,
            info,
            inputs.encoder,
            sound,
            inputs.video,
            others_delay_s=inputs.picture_delay_s,
            work=Work(made, self._options.resume),
            mark=self._options.mark,
            sign=None if credentials is None else lambda path: sign(path, inputs.video, credentials, name),
        )
