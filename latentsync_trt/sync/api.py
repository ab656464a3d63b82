"""`LipSync`: a bundle that is open on a provider, and syncs clips."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from latentsync_trt.audio.encoder import encode_audio
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.sync.inpaint import graphs_for
from latentsync_trt.sync.run import Run
from latentsync_trt.types import AudioFeatures, FaceDetector, Float32Array, ProgressCallback, SyncReport


class LipSync:
    """A bundle on a provider, which syncs any number of clips, one after another; sessions stay open until `close`."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._own_detector: FaceDetector | None = None
        self._one_clip = threading.Lock()

    @classmethod
    def from_bundle(
        cls,
        path: str | Path,
        provider: str = "auto",
        options: RuntimeOptions | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
    ) -> Self:
        """Opens the bundle in folder `path`.

        Args:
            provider: "tensorrt", "rtx", "cuda" or "cpu" runs there or fails; "auto" takes the best that can run the
                bundle.
            options: how engines are made, kept and run.
            on_notice: called at once, from any thread, with the sentences that the report would hold: engines being
                built and the like.

        Raises:
            BundleError: damaged, edited, incomplete or too new. ProviderUnavailable: a named provider does not load.
            InputError: `options` ask for what bundle or provider do not have. OutputError: no folder for the profile.
        """
        options = options or RuntimeOptions()
        selection = select_provider(provider, options.device)
        bundle = Bundle.load(Path(path))
        return cls(Networks(bundle, selection, options, may_pass_over=provider == "auto", on_notice=on_notice))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> tuple[Path, ...]:
        """Frees all sessions and ends a build in the background; returns the files of the profile, if any.

        Raises:
            OutputError: the profile cannot be written.
        """
        return self._networks.close()

    def warm_up(self, options: SyncOptions | None = None) -> None:
        """Builds and opens what clips with `options` need, and runs each network once. Raises as `sync`."""
        graphs = graphs_for(options or SyncOptions())
        self._networks.prepare(graphs)
        self._networks.warm_up(graphs)

    @property
    def building(self) -> bool:
        """Whether engines are being built in the background."""
        return self._networks.building

    def wait_for_build(self) -> str:
        """Waits for engines that are built in the background; returns what went wrong, empty if nothing."""
        return self._networks.wait_for_build()

    def encode_audio(self, path: str | Path) -> AudioFeatures:
        """The encoded speech of a whole recording.

        Raises:
            MediaError: the file has no sound that can be read. InputError: its samples are not finite numbers.
        """
        return encode_audio(lambda: read_audio_blocks(Path(path)), self._networks.encode_mel)

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
            OutOfMemory: even one network alone is too large for the device.
            After any error, no output is left behind.
        """
        with self._one_clip:  # at any time, a network may have to leave the device for another
            run = Run(self._networks, Path(video), Path(audio), Path(output), options or SyncOptions())
            return run.execute(detector or self._detector(), noise, on_progress or (lambda _: None))

    def _detector(self) -> FaceDetector:
        if self._own_detector is None:
            self._own_detector = MediaPipeDetector()
        return self._own_detector
