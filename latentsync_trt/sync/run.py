"""One clip: decode → find the face → paint the mouth → encode, each stage in its own thread.

Each stage is a generator over the previous one, joined by a bounded queue, so memory depends on the size of a picture
and of a window, not on the length of the clip.
"""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import perf_counter

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import frames_in
from latentsync_trt.media.writer import VideoWriter, check_output_path
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.faces import FaceFinder, Job
from latentsync_trt.sync.inpaint import graphs_for, make_inpainter
from latentsync_trt.sync.paint import Painter
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import FaceDetector, Float32Array, Frame, Patch, Progress, ProgressCallback, SyncReport

# Pictures that wait between two stages: enough to even out their pace, few enough for 4K in little memory.
_QUEUE_DEPTH = 4

# With one network at a time on the device, each processes this many windows before the next is loaded.
_LOW_MEMORY_WINDOWS = 4


class Run:
    """One clip through all stages; errors as `LipSync.sync`."""

    def __init__(self, networks: Networks, video: Path, audio: Path, output: Path, options: SyncOptions) -> None:
        check_output_path(output, video, audio, lossless=options.lossless)
        self._networks, self._manifest = networks, networks.bundle.manifest
        self._video, self._audio, self._output = video, audio, output
        self._options = options
        self._info = probe(video)
        with closing(read_audio_blocks(audio)) as blocks:
            next(blocks, None)  # fail on an unreadable file before opening the networks
        self._clock = StageClock(networks.on_span)
        self._speech = self._open_networks_and_audio()

    def execute(self, detector: FaceDetector, noise: Float32Array | None, on_progress: ProgressCallback) -> SyncReport:
        """Runs all stages; encoding runs in this thread."""
        start, notices = perf_counter(), self._notices()
        finder = FaceFinder(detector, self._manifest.resolution_px, self._clock)
        painter = self._painter(noise)
        count, total = 0, self._expected_frames()
        with closing(self._composed(finder, painter)) as composed, self._writer() as writer:
            for frame, patch in composed:
                with self._clock.measure("encode"):
                    writer.write(frame, patch)
                count += 1
                on_progress(Progress("lip-sync", count, total))
            if not finder.frames_with_face:
                raise NoFaceError(
                    f"{self._video}: no face in any of its {count} frames; a face must look at the camera, "
                    "and be at least 50 px wide and 80 px high"
                )
            on_progress(Progress("finishing", count, total))
        return SyncReport(
            output=str(self._output),
            bundle=self._manifest.name,
            provider=self._networks.selection.name,
            frames=count,
            frames_with_face=finder.frames_with_face,
            windows=painter.windows,
            duration_s=count / MODEL_FPS,
            wall_s=perf_counter() - start,
            stages=self._clock.times(),
            engines=self._networks.times(),
            notices=(*notices, *self._networks.take_notices(), *writer.notices),
        )

    def _open_networks_and_audio(self) -> SpeechStream:
        with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
            opening = opener.submit(self._open_networks)
            with self._clock.measure("encode audio", frames=0):
                speech = SpeechStream(lambda: read_audio_blocks(self._audio), self._networks.encode_mel)
            opening.result()
        return speech

    def _open_networks(self) -> None:
        with self._clock.measure("open", frames=0):
            self._networks.prepare(graphs_for(self._options))

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
        )
        return self._clock.measured("decode", frames)

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

    def _notices(self) -> list[str]:
        """Anything about this run that the caller might not expect."""
        notices = self._networks.selection.notices()
        if self._manifest.model == DEMO_NAME:
            notices += [f"the built-in model is {note}" for note in self._manifest.notes]
        of_video, of_audio = frames_in(self._info.duration_s, MODEL_FPS), self._speech.frame_count
        if self._options.length == "audio" and of_video is not None and of_video < of_audio:
            verb = "starts again" if self._options.extend == "loop" else "holds its last frame"
            lengths = f"the video lasts {of_video / MODEL_FPS} s, the audio {of_audio / MODEL_FPS} s"
            notices.append(f"{lengths}: the picture {verb} (--extend, --length)")
        return notices
