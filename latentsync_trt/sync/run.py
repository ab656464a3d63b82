"""One clip: decode → find the face → paint the mouth → encode, each stage in its own thread.

Each stage is a generator over the previous one, joined by a bounded queue, so memory depends on the size of a picture
and of a window, not on the length of the clip.
"""

from collections.abc import Generator, Iterable
from contextlib import closing
from time import perf_counter

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import read_frames
from latentsync_trt.media.timing import frames_in
from latentsync_trt.media.writer import VideoWriter
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.faces import FaceFinder, Job
from latentsync_trt.sync.inpaint import check_noise, graphs_for, make_inpainter
from latentsync_trt.sync.inputs import check_inputs
from latentsync_trt.sync.notices import notices_of_length, notices_of_model, notices_of_rate
from latentsync_trt.sync.paint import Painter
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import FaceDetector, Float32Array, Frame, Patch, Progress, ProgressCallback, SyncReport

# Pictures that wait between two stages: enough to even out their pace, few enough for 4K in little memory.
_QUEUE_DEPTH = 4

# With one network at a time on the device, each processes this many windows before the next is loaded.
_LOW_MEMORY_WINDOWS = 4


class Run:
    """One clip through all stages; arguments and errors as those of `LipSync.sync`."""

    def __init__(self, networks: Networks, video: object, audio: object, output: object, options: SyncOptions) -> None:
        self._start_s = perf_counter()
        inputs = check_inputs(video, audio, output, options)
        self._networks, self._manifest = networks, networks.bundle.manifest
        self._video, self._audio, self._output, self._info = inputs.video, inputs.audio, inputs.output, inputs.info
        self._options, self._delays = options, inputs.delays
        self._clock = StageClock(networks.on_span)
        self._speech: SpeechStream

    def execute(self, detector: FaceDetector, noise: Float32Array | None, on_progress: ProgressCallback) -> SyncReport:
        """Runs all stages; encoding runs in this thread."""
        check_noise(self._manifest, noise)
        finder, writer = self._finder(detector), self._writer()
        self._announce(writer.notices)
        self._read_audio_and_open_networks(on_progress)
        startup_s = perf_counter() - self._start_s
        painter = self._painter(noise)
        count, total = 0, self._expected_frames()
        with closing(self._speech), closing(self._composed(finder, painter)) as composed, writer:
            for frame, patch in composed:
                with self._clock.measure("encode"):
                    writer.write(frame, patch)
                if not count:
                    self._announce(writer.notices)
                count += 1
                on_progress(Progress("lip-sync", count, total))
            if not finder.frames_with_face:
                raise finder.no_face(self._video, count)
            on_progress(Progress("finishing", count, total))
        self._announce(finder.notices())
        return self._report(count, finder, painter, startup_s)

    def _report(self, count: int, finder: FaceFinder, painter: Painter, startup_s: float) -> SyncReport:
        wall_s = perf_counter() - self._start_s
        return SyncReport(
            output=str(self._output),
            bundle=self._manifest.name,
            provider=self._networks.selection.name,
            frames=count,
            frames_with_face=finder.frames_with_face,
            windows=painter.windows,
            duration_s=count / MODEL_FPS,
            wall_s=wall_s,
            startup_s=startup_s,
            frames_per_s=count / (wall_s - startup_s),
            stages=self._clock.times(),
            engines=self._networks.times(),
            notices=self._networks.take_notices(),
        )

    def _read_audio_and_open_networks(self, on_progress: ProgressCallback) -> None:
        """The recording comes first, since an engine may take minutes to build."""
        networks, info = self._networks, self._info
        self._announce((*notices_of_model(self._manifest), *notices_of_rate(info), *networks.selection.notices()))
        on_progress(Progress("reading audio", 0, None))
        with self._clock.measure("encode audio", frames=0):
            self._speech = SpeechStream(self._recording, networks.encode_mel)
        self._announce(notices_of_length(info, self._speech.frame_count, self._options))
        on_progress(Progress("opening networks", 0, None))
        with self._clock.measure("open", frames=0):
            networks.prepare(graphs_for(self._options))
        self._announce(networks.selection.notices())  # of a provider that it fell back to

    def _recording(self) -> Generator[Float32Array, None, None]:
        return read_audio_blocks(self._audio, delay_s=self._delays.sound_s)

    def _announce(self, notices: Iterable[str]) -> None:
        for text in notices:
            self._networks.notice(text)

    def _composed(self, finder: FaceFinder, painter: Painter) -> Generator[tuple[Frame, Patch | None], None, None]:
        """Every frame of the output, with its new pixels if it shows a face."""
        # The networks finish a batch of windows at once; meanwhile, the stages around them must be able to continue.
        ahead = self._windows_at_once() * self._manifest.frames
        frames = in_background(self._read(), depth=_QUEUE_DEPTH, name="decode")
        found = in_background(finder.find(frames), depth=_QUEUE_DEPTH, name="face")
        jobs = in_background(finder.cut_out(found), depth=_QUEUE_DEPTH, name="align")
        gathered = in_background(painter.gather(jobs), depth=ahead, name="gather")
        painted = in_background(painter.paint(gathered), depth=ahead, name="paint")
        return in_background(self._compose(painted), depth=_QUEUE_DEPTH, name="compose")

    def _read(self) -> Generator[Frame, None, None]:
        frames = read_frames(
            self._video,
            rgb_only=self._options.lossless,
            frame_count=None if self._options.length == "video" else self._speech.frame_count,
            extend=self._options.extend if self._options.length == "audio" else None,
            delay_s=self._delays.picture_s,
        )
        return self._clock.measured("decode", frames)

    def _finder(self, detector: FaceDetector) -> FaceFinder:
        return FaceFinder(
            detector,
            self._manifest.resolution_px,
            self._clock,
            pixel_aspect=self._info.sample_aspect_ratio,
            on_notice=self._networks.notice,
        )

    def _painter(self, noise: Float32Array | None) -> Painter:
        networks = self._networks
        inpainter = make_inpainter(
            self._manifest,
            self._options,
            networks.codec,
            networks.denoiser,
            noise=noise,
            windows_per_batch=networks.windows_per_batch,
        )
        return Painter(
            inpainter,
            self._manifest.frames,
            self._speech.windows,
            self._clock,
            at_once=self._windows_at_once,
            before=networks.between_windows,
        )

    def _windows_at_once(self) -> int:
        return max(self._networks.windows_per_batch, _LOW_MEMORY_WINDOWS if self._networks.low_memory else 1)

    def _compose(self, jobs: Generator[Job, None, None]) -> Generator[tuple[Frame, Patch | None], None, None]:
        mask = mouth_mask(self._manifest.resolution_px)
        with closing(jobs):
            for job in jobs:
                if job.face is None or job.painted is None:
                    yield job.frame, None
                    continue
                with self._clock.measure("compose"):
                    patch = composite(job.frame.picture, job.face, job.painted, mask)
                yield job.frame, patch

    def _writer(self) -> VideoWriter:
        options = self._options
        return VideoWriter(
            self._output,
            self._info,
            audio=self._audio,
            audio_delay_s=self._delays.sound_s,
            crf=options.crf,
            encoder=options.encoder,
            lossless=options.lossless,
        )

    def _expected_frames(self) -> int | None:
        """Frames of the output; None where the video does not state its length."""
        of_audio, of_video = self._speech.frame_count, frames_in(self._info.duration_s, MODEL_FPS)
        if self._options.length == "audio":
            return of_audio
        if of_video is None or self._options.length == "video":
            return of_video
        return min(of_audio, of_video)
