"""The nodes. Widgets of options, with their limits and help, come from the option dataclasses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, get_type_hints
from uuid import uuid4

import comfy.model_management
import folder_paths
import numpy as np
import torch
from comfy.cli_args import args
from comfy.utils import ProgressBar
from comfy_api.latest import ComfyExtension, InputImpl, io, ui
from PIL import Image

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, default_bundle, exported_bundles, find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.config import MODEL_FPS, PROVIDER_CHOICES
from latentsync_trt.errors import InputError
from latentsync_trt.media.codecs import default_suffix
from latentsync_trt.media.reader import probe
from latentsync_trt.option_fields import choices_of
from latentsync_trt.temporary import temporary_folder
from latentsync_trt.types import Progress

from .clips import options_of, read_images, write_images, write_sound
from .model import LatentSyncModel, model_of

os.environ.setdefault(CHECKPOINTS_VARIABLE, str(Path(folder_paths.models_dir) / "latentsync"))

CATEGORY = "video/LatentSync"
BundleType = io.Custom("LATENTSYNC")
SYNC_WIDGETS = ("preset", "guidance", "seed", "face")
_PREVIEW_EVERY_S = 1.0
_MOST_SEED = 2**53 - 1  # a browser's largest exact integer


def widget(cls: type[Any], name: str) -> io.WidgetInput:
    """The widget of an option: its kind, limits, default and help."""
    spec = next(spec for spec in fields(cls) if spec.name == name)
    hint, limits = get_type_hints(cls)[name], spec.metadata
    common = {"default": spec.default, "tooltip": limits["help"]}
    span = {"min": limits.get("minimum"), "max": limits.get("maximum")}
    if choices := choices_of(hint):
        return io.Combo.Input(name, options=list(choices), **common)
    if hint is bool:
        return io.Boolean.Input(name, **common)
    if hint is int:
        span["max"] = min(span["max"], _MOST_SEED)
        return io.Int.Input(name, **span, control_after_generate=False, **common)
    if hint is float:
        return io.Float.Input(name, **span, step=0.1, **common)
    return io.String.Input(name, **{**common, "default": limits.get("show", str)(spec.default)})


def options_widget(cls: type[Any], known: tuple[str, ...]) -> io.WidgetInput:
    """The text for all other options of `cls`."""
    others = ", ".join(spec.name for spec in fields(cls) if spec.name not in known)
    example = "JSON, or one a line, as in: codec = hevc" if cls is SyncOptions else "JSON, or one a line"
    tip = f"More options, which override the widgets. {example}. There are: {others}."
    return io.String.Input("options", default="", multiline=True, optional=True, placeholder=example, tooltip=tip)


def sync_inputs() -> list[io.Input]:
    """What both lip-sync nodes have in common."""
    speech = io.Audio.Input("audio", tooltip="The speech that the lips follow, and the sound of the result.")
    return [
        speech,
        *(widget(SyncOptions, name) for name in SYNC_WIDGETS),
        options_widget(SyncOptions, SYNC_WIDGETS),
    ]


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder in ComfyUI's temporary one, removed at the end, also after an error or an interruption."""
    parent = Path(folder_paths.get_temp_directory())
    parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(parent) as folder:
        yield folder


class Bar:
    """Shows progress, with a preview about once a second; ends the run when the user interrupts it."""

    def __init__(self) -> None:
        self._bar, self._shown_s = ProgressBar(1), -inf

    def __call__(self, progress: Progress) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        if progress.total:
            self._bar.update_absolute(progress.done, progress.total, self._preview(progress))

    def _preview(self, progress: Progress) -> tuple[str, Image.Image, int] | None:
        if progress.picture is None or perf_counter() - self._shown_s < _PREVIEW_EVERY_S:
            return None
        self._shown_s = perf_counter()
        return "JPEG", Image.fromarray(progress.picture()), args.preview_size


def video_file(video: Any, folder: Path) -> Path:
    """The file of a VIDEO: its own where it is one, else written to `folder` without loss."""
    if isinstance(video, InputImpl.VideoFromFile):
        source = video.get_stream_source()
        # Newer versions cut a video without writing it: then the file is longer.
        if InputImpl.VideoFromFile(source).get_duration() == video.get_duration():
            if isinstance(source, str):
                return Path(source)
            path = folder / "source"
            path.write_bytes(source.getbuffer())
            return path
    parts = video.get_components()
    return write_images(folder / "source.mkv", parts.images, float(parts.frame_rate))


class LoadBundle(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        names = [*(path.name for path in exported_bundles()), DEMO_NAME]
        place = os.environ[CHECKPOINTS_VARIABLE]
        known = ("device", "low_memory")
        return io.Schema(
            node_id="LatentSyncLoadBundle",
            display_name="Load LatentSync bundle",
            category=CATEGORY,
            description="An exported LatentSync model. It stays loaded until ComfyUI frees its models.",
            inputs=[
                io.Combo.Input(
                    "bundle",
                    options=names,
                    default=default_bundle().name or names[0],
                    tooltip=f"Exported bundles in {place}, and the small built-in demo.",
                ),
                io.Combo.Input(
                    "provider",
                    options=list(PROVIDER_CHOICES),
                    default=PROVIDER_CHOICES[0],
                    tooltip="Execution provider; auto takes the fastest available.",
                ),
                *(widget(RuntimeOptions, name) for name in known),
                options_widget(RuntimeOptions, known),
            ],
            outputs=[BundleType.Output(display_name="latentsync")],
        )

    @classmethod
    def execute(cls, bundle: str, provider: str, options: str = "", **widgets: Any) -> io.NodeOutput:
        folder, _ = find_bundle(bundle)
        return io.NodeOutput(model_of(folder, provider, options_of(RuntimeOptions, widgets, options)))


class LipSyncFrames(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LatentSyncFrames",
            display_name="LatentSync lip-sync",
            category=CATEGORY,
            description="Images with the lips following the speech; as many as the speech lasts.",
            inputs=[
                BundleType.Input("latentsync"),
                io.Image.Input("images", tooltip="The frames of a video."),
                io.Float.Input("fps", default=MODEL_FPS, min=1, max=240, step=0.01, tooltip="Images per second."),
                *sync_inputs(),
            ],
            outputs=[
                io.Image.Output(display_name="images"),
                io.Audio.Output(display_name="audio"),
                io.Float.Output(display_name="fps"),
            ],
        )

    @classmethod
    def execute(
        cls, latentsync: LatentSyncModel, images: Any, fps: float, audio: Any, options: str = "", **widgets: Any
    ) -> io.NodeOutput:
        wanted = options_of(SyncOptions, {**widgets, "lossless": True}, options)
        with working_folder() as folder:
            source, result = write_images(folder / "source.mkv", images, fps), folder / "result.mkv"
            speech = write_sound(folder / "speech.wav", audio)
            report = latentsync.lip_sync().sync(source, speech, result, wanted, on_progress=Bar())
            return io.NodeOutput(read_images(result, report.frames), audio, float(probe(result).frames_per_s or fps))


class LipSyncVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LatentSyncVideo",
            display_name="LatentSync lip-sync video",
            category=CATEGORY,
            description="A video with the lips following the speech. A file is read as it is and encoded once.",
            inputs=[BundleType.Input("latentsync"), io.Video.Input("video"), *sync_inputs()],
            outputs=[io.Video.Output(display_name="video")],
        )

    @classmethod
    def execute(
        cls, latentsync: LatentSyncModel, video: Any, audio: Any, options: str = "", **widgets: Any
    ) -> io.NodeOutput:
        wanted = options_of(SyncOptions, widgets, options)
        with working_folder() as folder:
            # ComfyUI empties its temporary folder when it starts and ends; until then other nodes may read the result.
            result = folder.parent / f"latentsync-{uuid4().hex}{default_suffix(wanted)}"
            source, speech = video_file(video, folder), write_sound(folder / "speech.wav", audio)
            latentsync.lip_sync().sync(source, speech, result, wanted, on_progress=Bar())
        return io.NodeOutput(InputImpl.VideoFromFile(str(result)))


class ChooseFace(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        number = "The person to lip-sync, as numbered in the picture; run this node once to see it."
        return io.Schema(
            node_id="LatentSyncChooseFace",
            display_name="LatentSync choose face",
            category=CATEGORY,
            description="Finds and numbers all people of a clip; its output goes into the input face.",
            inputs=[
                io.MultiType.Input("clip", types=[io.Video, io.Image], tooltip="A video or its frames."),
                io.Int.Input("number", default=0, min=0, max=999, control_after_generate=False, tooltip=number),
            ],
            outputs=[io.String.Output(display_name="face"), io.Image.Output(display_name="people")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, clip: Any, number: int) -> io.NodeOutput:
        from latentsync_trt.face.detector import MediaPipeDetector
        from latentsync_trt.sync.analysis import analyse
        from latentsync_trt.sync.contact_sheet import write_contact_sheet

        with working_folder() as folder, MediaPipeDetector() as detector:
            frames = isinstance(clip, torch.Tensor)
            path = write_images(folder / "clip.mkv", clip, MODEL_FPS) if frames else video_file(clip, folder)
            tracks, portraits = analyse(path, detector, Bar())
            write_contact_sheet(folder / "people.png", tracks, portraits)
            with Image.open(folder / "people.png") as sheet:
                people = torch.tensor(np.asarray(sheet))[None] / 255
        if number not in tracks.people:
            numbers = ", ".join(map(str, tracks.people))
            raise InputError(f"number {number}: nobody has this number in the clip; choose one of {numbers}")
        return io.NodeOutput(f"index:{number}", people, ui=ui.PreviewImage(people, cls=cls))


class LatentSyncExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [LoadBundle, LipSyncFrames, LipSyncVideo, ChooseFace]


async def comfy_entrypoint() -> LatentSyncExtension:
    """What ComfyUI calls."""
    return LatentSyncExtension()
