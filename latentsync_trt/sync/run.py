"""One clip on its way: decode → find the face → paint the mouth → encode, each stage in a thread of its own.

No arithmetic happens here. Every stage is a generator over the one before it, joined by a bounded queue, so memory
depends on the size of a picture and of a window, not on the length of the clip.
"""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import perf_counter

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.diffusion.loop import initial_noise
from latentsync_trt.diffusion.plan import plan_for
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import frames_in
from latentsync_trt.media.writer import VideoWriter, check_output_path
from latentsync_trt.runtime.networks.networks import Networks, graphs_for
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.job import Job
from latentsync_trt.sync.paint import Painter
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import (
    FaceDetector,
    Float32Array,
    Frame,
    Patch,
    Progress,
    ProgressCallback,
    SyncReport,
    VideoInfo,
)

# Pictures that wait between two stages: enough to even out their pace, few enough for 4K in little memory.
_QUEUE_DEPTH = 4

# Where networks take turns in memory, each stays for so many windows before the next is loaded.
_WINDOWS_IN_TURN = 4


class Run:
    """One clip on its way."""

    def __init__(self, networks: Networks, video: Path, audio: Path, output: Path, options: SyncOptions) -> None:
        check_output_path(output, video, audio, lossless=options.lossless)
        self._networks = networks
        self._video, self._audio, self._output = video, audio, output
        self._options = options
        self._info: VideoInfo = probe(video)
        self._mask = mouth_mask(networks.bundle.manifest.resolution_px)
        self._clock = StageClock(networks.on_span)
        self._speech = self._open_networks_and_listen()
        self._frames_with_face = 0
        self._windows = 0

    def execute(self, detector: FaceDetector, noise: Float32Array | None, on_progress: ProgressCallback) -> SyncReport:
        """Runs all stages; the last one, encoding, in this thread."""
        start = perf_counter()
        frames = in_background(self._read(), depth=_QUEUE_DEPTH, name="decode")
        finder = FaceFinder(detector, self._networks.bundle.manifest.resolution_px, self._clock)
        found = in_background(finder.find(frames), depth=_QUEUE_DEPTH, name="face")
        jobs = in_background(finder.cut_out(found), depth=_QUEUE_DEPTH, name="align")
        painter = self._painter(noise)
        # The networks give out a window at once. What comes before and after them must be able to go on meanwhile.
        ahead = self._windows_at_once() * self._networks.bundle.manifest.frames
        turns = in_background(painter.gather(jobs), depth=ahead, name="gather")
        painted = in_background(painter.paint(turns), depth=ahead, name="paint")
        composed = in_background(self._compose(painted), depth=_QUEUE_DEPTH, name="compose")
        count, notices = 0, self._notices()
        total = self._expected_frames()
        with closing(composed), self._writer() as writer:
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
        self._windows, self._frames_with_face = painter.windows, finder.frames_with_face
        return self._report(count, perf_counter() - start, (*notices, *self._networks.take_notices(), *writer.notices))

    def _open_networks_and_listen(self) -> SpeechStream:
        with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
            opening = opener.submit(self._open_networks)
            with self._clock.measure("encode audio", frames=0):
                speech = SpeechStream(lambda: read_audio_blocks(self._audio), self._networks.encode_mel)
            opening.result()
        return speech

    def _open_networks(self) -> None:
        with self._clock.measure("open", frames=0):
            self._networks.prepare(graphs_needed(self._options))

    def _read(self) -> Generator[Frame, None, None]:
        frames = read_frames(
            self._video,
            rgb_only=self._options.lossless,
            frame_count=None if self._options.length == "video" else self._speech.frame_count,
            extend=self._options.extend if self._options.length == "audio" else None,
        )
        return self._clock.measured("decode", frames)

    def _painter(self, noise: Float32Array | None) -> Painter:
        return Painter(
            self._inpainter(noise),
            self._networks.bundle.manifest.frames,
            self._speech.windows,
            self._clock,
            at_once=self._windows_at_once,
            before=self._networks.between_windows,
        )

    def _windows_at_once(self) -> int:
        return max(self._networks.windows_per_batch, _WINDOWS_IN_TURN if self._networks.low_memory else 1)

    def _compose(self, jobs: Generator[Job, None, None]) -> Generator[tuple[Frame, Patch | None], None, None]:
        with closing(jobs):
            for job in jobs:
                yield job.frame, self._patch(job)

    def _patch(self, job: Job) -> Patch | None:
        if job.face is None or job.painted is None:
            return None
        with self._clock.measure("compose"):
            return composite(job.frame.picture, job.face, job.painted, self._mask)

    def _inpainter(self, noise: Float32Array | None) -> Inpainter:
        manifest, options = self._networks.bundle.manifest, self._options
        latent_px = manifest.latent_px
        return Inpainter(
            codec=self._networks,
            denoiser=self._networks.denoiser(),
            mask=self._mask,
            latent_mask=latent_mask(manifest.resolution_px),
            noise=initial_noise(options.seed, latent_px, latent_px) if noise is None else noise,
            guidance=options.guidance,
            schedule=solver_schedule(options.sampling.solver, options.sampling.steps),
            plan=plan_for(options),
            windows_per_batch=self._networks.windows_per_batch,
        )

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
        """Frames the output will have, None where the video does not say how long it is."""
        of_audio = self._speech.frame_count
        if self._options.length == "audio":
            return of_audio
        of_video = frames_in(self._info.duration_s, MODEL_FPS)
        if of_video is None or self._options.length == "video":
            return of_video
        return min(of_audio, of_video)

    def _notices(self) -> list[str]:
        """What the run does to the caller's material that the caller might not expect."""
        notices = self._networks.selection.notices()
        if self._networks.bundle.manifest.model == DEMO_NAME:
            notices += [f"the built-in model is {note}" for note in self._networks.bundle.manifest.notes]
        of_video, of_audio = frames_in(self._info.duration_s, MODEL_FPS), self._speech.frame_count
        if self._options.length == "audio" and of_video is not None and of_video < of_audio:
            verb = "starts again" if self._options.extend == "loop" else "holds its last frame"
            lengths = f"the video lasts {of_video / MODEL_FPS} s, the audio {of_audio / MODEL_FPS} s"
            notices.append(f"{lengths}: the picture {verb} (--extend, --length)")
        return notices

    def _report(self, frames: int, wall_s: float, notices: tuple[str, ...]) -> SyncReport:
        return SyncReport(
            output=str(self._output),
            bundle=self._networks.bundle.manifest.name,
            provider=self._networks.selection.name,
            frames=frames,
            frames_with_face=self._frames_with_face,
            windows=self._windows,
            duration_s=frames / MODEL_FPS,
            wall_s=wall_s,
            stages=self._clock.times(),
            engines=self._networks.times(),
            notices=notices,
        )


def graphs_needed(options: SyncOptions) -> tuple[str, ...]:
    plan = plan_for(options)
    return graphs_for(
        guidance=options.guidance,
        full_steps_only=all(step.full for step in plan),
        unguided_too=not all(step.guided for step in plan),
    )
