"""`LipSync`: an open bundle that syncs clips.

Imports of what runs networks are inside the methods, so that importing `LipSync` loads no
onnxruntime.
"""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Self

from latentsync_trt.audio.encoder import AudioFeatures
from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import AUDIO_ENCODER, Bundle, manifest_sha256, resolution_of
from latentsync_trt.config import AudioSegments, RuntimeOptions, SyncOptions
from latentsync_trt.paths import path_argument
from latentsync_trt.sync.inputs import Helpers, Inputs, check_inputs
from latentsync_trt.sync.speech import encode_recording
from latentsync_trt.types import Float32Array, ProgressCallback, SyncReport

if TYPE_CHECKING:
    from latentsync_trt.live.options import LiveOptions
    from latentsync_trt.live.session import LiveSession
    from latentsync_trt.live.sessions import IdleClip, LiveSessions
    from latentsync_trt.runtime.providers.selection import Selection


class LipSync:
    """Syncs any number of clips with one bundle and provider; the networks stay open until `close`.

    Thread-safe. Calls of `sync` run beside one another and share the device, first come, first
    served; one that needs networks which are not open waits until no other runs. `close` waits for
    all calls. From `on_progress`, and after `close`, all raise `InputError`. To stop a running
    `sync`, raise in `on_progress`.
    """

    def __init__(
        self,
        bundle: Bundle,
        selection: "Selection",
        options: RuntimeOptions | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        """Raises `InputError` if bundle or provider do not support `options`; others as
        `from_bundle`.

        Args:
            selection: the provider to try first.
        """
        from latentsync_trt.sync.model_slot import ModelSlot

        self._slot = ModelSlot(bundle, selection, options or RuntimeOptions(), on_notice)
        self._live: LiveSessions | None = None

    @classmethod
    def from_bundle(
        cls,
        path: str | Path | None = None,
        provider: str = "auto",
        options: RuntimeOptions | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
    ) -> Self:
        """Opens a bundle.

        Args:
            path: its folder, its name below `checkpoints/`, or "demo" for the built-in one; None
                for the one that commands run without `--bundle`.
            provider: "auto" takes the fastest that can run the bundle, TensorRT where `setup` or
                `selftest` passed it; naming "tensorrt", "cuda" or "cpu" disables fallback.
            options: how engines are built, cached and run.
            on_notice: called from any thread with each of the report's notices as it occurs.

        Raises:
            BundleError: missing, damaged, edited, incomplete or too new, or several and none
                chosen.
            ProviderUnavailable: a named provider does not load. InputError: `options` do not fit
                bundle or provider.
        """
        from latentsync_trt.runtime.providers.choice import select_provider

        options = options or RuntimeOptions()
        folder, _ = find_bundle(None if path is None else str(path_argument(path, "bundle")))
        # before the seconds that a trial of providers takes
        bundle = Bundle.load(folder, verify=options.verify)
        selection = select_provider(provider, options.one_device, manifest_sha256(folder))
        return cls(bundle, selection, options, on_notice=on_notice)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for calls in other threads, frees all networks and ends a background build; does
        nothing again.
        """
        from latentsync_trt.sync.model_slot import CLOSE

        with self._slot.entered(CLOSE):
            if self._live is not None:
                self._live.close()
            self._slot.close()

    def warm_up(self, options: SyncOptions | None = None) -> None:
        """Builds and opens what `options` need, and on a GPU runs each network once. Raises as
        `sync`.
        """
        from latentsync_trt.sync.model_slot import graphs_for

        options = options or SyncOptions()
        resolution_of(self._slot.bundle.manifest, options, self._slot.options)
        with self._slot.entered("warm_up"), self._slot.use_model(graphs_for(options)):
            pass

    @property
    def provider(self) -> str:
        """The execution provider that runs the networks, e.g. "cuda"; may change where it cannot
        run the bundle.
        """
        model = self._slot.model
        return (self._slot if model is None else model).selection.name

    @property
    def build(self) -> Future[str] | None:
        """A build of engines for the next run, which `close` ends; None without one. Its result is
        the error of the build, empty if there is none.
        """
        return self._slot.build

    def encode_audio(self, path: str | Path, segments: AudioSegments = "joined") -> AudioFeatures:
        """Returns the encoded speech of a whole recording, also of its silence, as with `--silence
        model`. Raises as `sync`.
        """
        recording = path_argument(path, "audio")

        # not opened before the recording has been read
        def encode_mel(mel: Float32Array) -> Float32Array:
            with self._slot.use_model((AUDIO_ENCODER,)) as model:
                return model.audio_encoder(mel)

        with self._slot.entered("encode_audio"):
            return encode_recording(recording, segments, encode_mel, self._slot.bundle)

    def sync(
        self,
        video: str | Path,
        audio: str | Path | None,
        output: str | Path,
        options: SyncOptions | None = None,
        *,
        helpers: Helpers | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> SyncReport:
        """Writes `video` to `output` with the lips following `audio`.

        Args:
            audio: None where `options.speaker` names the recordings.
            helpers: what takes the place of the built-in detector, enhancer or noise.
            on_progress: called in this thread when a stage begins, after every written frame, and
                once more a few times a second while none is written.

        Raises:
            InputError: a file or option cannot be used; before networks are opened. NoFaceError: no
                face in the whole video. OutputError: the result cannot be written. InferenceError,
                EngineBuildError: the provider failed.
            OutOfMemory: even one network alone is too large for the device.
            After any error, no output is left behind.
        """
        return self.run(
            check_inputs(video, audio, output, options or SyncOptions(), helpers), on_progress
        )

    def run(self, inputs: Inputs, on_progress: ProgressCallback | None = None) -> SyncReport:
        """Syncs a clip whose files and options `check_inputs` has checked, perhaps before the
        bundle was opened. Raises as `sync`.
        """
        from latentsync_trt.sync.model_slot import graphs_for

        resolution_px = resolution_of(
            self._slot.bundle.manifest, inputs.options, self._slot.options
        )
        with (
            self._slot.entered("sync"),
            self._slot.open_in_background(graphs_for(inputs.options)) as opened,
        ):
            # while the model opens
            from latentsync_trt.sync.clip import sync_clip
            from latentsync_trt.sync.run_context import begin_run

            return sync_clip(begin_run(self._slot, opened, inputs, resolution_px, on_progress))

    def stream(
        self,
        video: "IdleClip",
        options: "LiveOptions | None" = None,
        *,
        executors: tuple[Executor, Executor] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> "LiveSession":
        """Opens a live session, to be closed: speech goes in while it is being made, pictures and
        sound come out.

        Args:
            video: the idle clip, up to a minute of one face in one shot; or the `loop` of an open
                session.
            executors, now: as for `LiveSession`.

        Raises:
            Busy: no further session fits, or painting is slower than real time.
            InputError: the clip or an option cannot be used. NoFaceError: a frame of the clip shows
                no face.
            Others as `sync`.
        """
        from latentsync_trt.live.options import LiveOptions
        from latentsync_trt.live.sessions import LiveSessions

        with self._slot.entered("stream"):
            self._live = self._live or LiveSessions(self._slot)
            return self._live.open(video, options or LiveOptions(), executors, now)
