"""The order of the stages: decode → find the face → paint the mouth → encode, each in a thread of its own.

No arithmetic happens here. Every stage is a generator over the one before it, joined by a bounded queue, so memory
depends on the size of a picture and of a window, not on the length of the clip.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Self

import numpy as np

from latentsync_trt.audio.encoder import SpeechStream, encode_audio
from latentsync_trt.bundle import DEMO_NAME, Bundle
from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.diffusion.inpainting import Inpainter
from latentsync_trt.diffusion.loop import initial_noise
from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import ddim_schedule
from latentsync_trt.diffusion.windows import Window, WindowPlanner
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.align import AlignState, align, crop
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.flow import StageClock, in_background
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import frames_in
from latentsync_trt.media.writer import VideoWriter, check_output_path
from latentsync_trt.runtime.networks import Networks
from latentsync_trt.runtime.providers import select_provider
from latentsync_trt.types import (
    AlignedFace,
    AudioFeatures,
    FaceDetector,
    Float32Array,
    Frame,
    Patch,
    Progress,
    SyncReport,
    VideoInfo,
)

ProgressCallback = Callable[[Progress], None]

# Pictures that wait between two stages: enough to even out their pace, few enough for 4K in little memory.
_QUEUE_DEPTH = 4


@dataclass(slots=True, eq=False)
class _Job:
    """A frame on its way through the stages; each adds what it found or made.

    `track_id` changes where the face is another one or was lost between. `painted`: float32 `(H, W, 3)`, about [−1, 1].
    """

    frame: Frame
    face: AlignedFace | None = None
    track_id: int | None = None
    painted: Float32Array | None = None
    done: bool = False


class LipSync:
    """A bundle on a provider, ready to sync any number of clips; sessions open once and stay."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._own_detector: FaceDetector | None = None

    @classmethod
    def from_bundle(cls, path: str | Path, provider: str = "auto") -> Self:
        """Opens the bundle in folder `path` on `provider` ("auto", "tensorrt", "cuda", "cpu").

        Raises:
            BundleError: damaged, edited, incomplete or too new. ProviderUnavailable: a named provider does not load.
        """
        return cls(Networks(Bundle.load(Path(path)), select_provider(provider)))

    def encode_audio(self, path: str | Path) -> AudioFeatures:
        """What the network hears of a whole recording; see `AudioFeatures`.

        Raises:
            MediaError: the file has no sound that can be read. InputError: its samples are not finite numbers.
        """
        return encode_audio(lambda: read_audio_blocks(Path(path)), self._networks.session("audio_encoder"))

    def sync(
        self,
        video: str | Path,
        audio: str | Path,
        output: str | Path,
        options: SyncOptions | None = None,
        *,
        detector: FaceDetector | None = None,
        noise: Float32Array | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> SyncReport:
        """Writes `video` to `output` with the lips following `audio`.

        Args:
            detector: finds faces; the built-in one if None. noise: `(1, 4, 1, h, w)` float32, instead of the seed's.
            on_progress: called after every frame that was written.

        Raises:
            InputError: a file or option cannot be used. NoFaceError: no face in the whole video.
            OutputError: the result cannot be written. InferenceError, EngineBuildError: the provider failed.
            Whatever is raised, no output is left behind.
        """
        run = _Run(self._networks, Path(video), Path(audio), Path(output), options or SyncOptions())
        return run.execute(detector or self._detector(), noise, on_progress or _ignore)

    def _detector(self) -> FaceDetector:
        if self._own_detector is None:
            self._own_detector = MediaPipeDetector()
        return self._own_detector


class _Run:
    """One clip on its way."""

    def __init__(self, networks: Networks, video: Path, audio: Path, output: Path, options: SyncOptions) -> None:
        check_output_path(output, video, audio, lossless=options.lossless)
        self._networks = networks
        self._video, self._audio, self._output = video, audio, output
        self._options = options
        self._info: VideoInfo = probe(video)
        self._mask = mouth_mask(networks.bundle.manifest.resolution_px)
        self._clock = StageClock()
        with self._clock.measure("hear", frames=0):
            self._speech = SpeechStream(lambda: read_audio_blocks(audio), networks.session("audio_encoder"))
        self._frames_with_face = 0
        self._windows = 0

    def execute(self, detector: FaceDetector, noise: Float32Array | None, on_progress: ProgressCallback) -> SyncReport:
        """Runs all stages; the last one, encoding, in this thread."""
        start = perf_counter()
        frames = in_background(self._read(), depth=_QUEUE_DEPTH, name="decode")
        jobs = in_background(self._find_faces(frames, detector), depth=_QUEUE_DEPTH, name="face")
        painted = in_background(self._paint(jobs, self._inpainter(noise)), depth=_QUEUE_DEPTH, name="paint")
        count, notices = 0, self._notices()
        total = self._expected_frames()
        with closing(painted), self._writer() as writer:
            for job in painted:
                with self._clock.measure("encode"):
                    writer.write(job.frame, self._patch(job))
                count += 1
                on_progress(Progress("lip-sync", count, total))
            if not self._frames_with_face:
                raise NoFaceError(
                    f"{self._video}: no face in any of its {count} frames; a face must look at the camera, "
                    "and be at least 50 px wide and 80 px high"
                )
            on_progress(Progress("finishing", count, total))
        return self._report(count, perf_counter() - start, (*notices, *writer.notices))

    def _read(self) -> Generator[Frame, None, None]:
        frames = read_frames(
            self._video,
            rgb_only=self._options.lossless,
            frame_count=None if self._options.length == "video" else self._speech.frame_count,
            extend=self._options.extend if self._options.length == "audio" else None,
        )
        return self._clock.measured("decode", frames)

    def _find_faces(self, frames: Generator[Frame, None, None], detector: FaceDetector) -> Generator[_Job, None, None]:
        tracker = FaceTracker(detector)
        resolution = self._networks.bundle.manifest.resolution_px
        state: AlignState | None = None
        track_id: int | None = None
        with closing(frames):
            for frame in frames:
                with self._clock.measure("face"):
                    tracked = tracker.update(frame.rgb)
                    job = _Job(frame)
                    if tracked is not None:
                        state = state if tracked.track_id == track_id else None
                        # Whole pixels, as in training, would make the mouth jitter by as much.
                        matrix, state = align(tracked.face.points, state, resolution, whole_pixels=False)
                        job.face, job.track_id = crop(frame.rgb, matrix, resolution), tracked.track_id
                        self._frames_with_face += 1
                    track_id = job.track_id
                yield job

    def _paint(self, jobs: Generator[_Job, None, None], inpainter: Inpainter) -> Generator[_Job, None, None]:
        """Jobs in their order, each when its window was painted; those without a face as soon as it is their turn."""
        planner: WindowPlanner[_Job] = WindowPlanner(self._networks.bundle.manifest.frames)
        queue: deque[_Job] = deque()
        with closing(jobs):
            for job in jobs:
                queue.append(job)
                job.done = job.track_id is None
                self._paint_windows(planner.push(job, job.track_id), inpainter)
                yield from _ready(queue)
            self._paint_windows(planner.finish(), inpainter)
            yield from _ready(queue)

    def _paint_windows(self, windows: Iterable[Window[_Job]], inpainter: Inpainter) -> None:
        for window in windows:
            with self._clock.measure("paint", frames=window.count_new):
                faces = np.stack([job.face.image for job in window.items if job.face is not None])
                heard = self._speech.windows([job.frame.index for job in window.items])
                painted = inpainter.paint(faces, heard)
            self._windows += 1
            for position in window.used:
                window.items[position].painted = painted[position]
                window.items[position].done = True

    def _patch(self, job: _Job) -> Patch | None:
        if job.face is None or job.painted is None:
            return None
        with self._clock.measure("compose"):
            return composite(job.frame.rgb, job.face, job.painted, self._mask)

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
            schedule=ddim_schedule(options.steps),
            plan=cache_plan(options.steps, options.cache_interval),
        )

    def _writer(self) -> VideoWriter:
        return VideoWriter(
            self._output, self._info, audio=self._audio, crf=self._options.crf, lossless=self._options.lossless
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
        notices = [f"{name} was passed over: {reason}" for name, reason in self._networks.selection.passed_over]
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
            notices=notices,
        )


def _ready(queue: deque[_Job]) -> Generator[_Job, None, None]:
    while queue and queue[0].done:
        yield queue.popleft()


def _ignore(_: Progress) -> None:
    """Nobody watches."""
