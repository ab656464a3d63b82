"""The nodes. Widgets of options, with their limits and help, come from the option dataclasses."""

import os
from contextlib import AbstractContextManager
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
from latentsync_trt.bundle.find import (
    CHECKPOINTS_VARIABLE,
    default_bundle,
    exported_bundles,
    find_bundle,
)
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.files import temporary_folder
from latentsync_trt.media.encoder_choice import default_suffix
from latentsync_trt.media.reader import probe
from latentsync_trt.option_fields import choices_of
from latentsync_trt.runtime.providers.table import PROVIDER_CHOICES
from latentsync_trt.types import Progress

from .clips import FPS_LIMITS, available, options_of, read_images, write_images, write_sound
from .model import LatentSyncModel, model_of

os.environ.setdefault(CHECKPOINTS_VARIABLE, str(Path(folder_paths.models_dir) / "latentsync"))

BUNDLE = io.Custom("LATENTSYNC")
_PREVIEW_EVERY_S = 1.0
_MOST_SEED = 2**53 - 1  # a browser's largest exact integer


def widgets_of(cls: type[Any], *names: str) -> list[io.WidgetInput]:
    """Widgets of these options, and a text for all others."""
    by_name = {spec.name: spec for spec in fields(cls)}
    others = ", ".join(name for name in available(cls) if name not in names)
    tip = (
        "More options, a line `name = value` for each; "
        f"they override the widgets. There are: {others}."
    )
    text = io.String.Input(
        "options",
        default="",
        multiline=True,
        optional=True,
        placeholder="name = value",
        tooltip=tip,
    )
    return [*(_widget(by_name[name], get_type_hints(cls)[name]) for name in names), text]


def _widget(spec: Any, hint: Any) -> io.WidgetInput:
    limits = spec.metadata
    default = spec.default
    common = {"default": default, "tooltip": limits["help"]}
    if choices := choices_of(hint):
        return io.Combo.Input(spec.name, options=list(choices), **common)
    if hint is bool:
        return io.Boolean.Input(spec.name, **common)
    if hint is int:
        most = min(limits["maximum"], _MOST_SEED)
        return io.Int.Input(
            spec.name, min=limits["minimum"], max=most, control_after_generate=False, **common
        )
    if hint is float:
        return io.Float.Input(
            spec.name, min=limits["minimum"], max=limits["maximum"], step=0.1, **common
        )
    return io.String.Input(spec.name, **common | {"default": limits.get("show", str)(default)})


def sync_inputs() -> list[io.Input]:
    """What both lip-sync nodes have in common."""
    speech = io.Audio.Input(
        "audio", tooltip="The speech that the lips follow, and the sound of the result."
    )
    return [speech, *widgets_of(SyncOptions, "preset", "guidance", "seed", "face")]


def working_folder() -> AbstractContextManager[Path]:
    """A folder in ComfyUI's temporary one, removed at the end, also after an error or an
    interruption.
    """
    return temporary_folder(Path(folder_paths.get_temp_directory()))


class Bar:
    """Shows progress, with a preview about once a second; ends the run when the user interrupts
    it.
    """

    def __init__(self) -> None:
        self._bar = ProgressBar(1)
        self._shown_s = -inf

    def __call__(self, progress: Progress) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        preview = None
        if progress.picture is not None and perf_counter() - self._shown_s > _PREVIEW_EVERY_S:
            preview = "JPEG", Image.fromarray(progress.picture()), args.preview_size
            self._shown_s = perf_counter()
        if progress.total:
            self._bar.update_absolute(progress.done, progress.total, preview)


def video_file(video: Any, folder: Path) -> Path:
    """The file of a VIDEO: its own where it is one, else written to `folder` without loss. Raises
    `InputError` as `write_images`, and where there is no video.
    """
    if video is None:
        raise InputError("video: there is none; connect a node that loads or makes one")
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
    return write_images(folder / "source.mkv", parts.images, parts.frame_rate)


class LoadBundle(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        names = [*(path.name for path in exported_bundles()), DEMO_NAME]
        place = (
            f"Exported bundles in {os.environ[CHECKPOINTS_VARIABLE]}, and the small built-in one."
        )
        bundle = io.Combo.Input(
            "bundle", options=names, default=default_bundle()[0] or names[0], tooltip=place
        )
        what = "Execution provider; auto takes the fastest available."
        provider = io.Combo.Input("provider", options=list(PROVIDER_CHOICES), tooltip=what)
        return io.Schema(
            node_id="LatentSyncLoadBundle",
            display_name="Load LatentSync bundle",
            category="video/LatentSync",
            description="An exported LatentSync model. It stays "
            "loaded until ComfyUI unloads its models.",
            inputs=[bundle, provider, *widgets_of(RuntimeOptions, "device", "low_memory")],
            outputs=[BUNDLE.Output(display_name="latentsync")],
        )

    @classmethod
    def execute(
        cls, bundle: str, provider: str, options: str = "", **widgets: Any
    ) -> io.NodeOutput:
        folder, _ = find_bundle(bundle)
        return io.NodeOutput(
            model_of(folder, provider, options_of(RuntimeOptions, widgets, options))
        )


class LipSyncFrames(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        images = io.Image.Input("images", tooltip="The frames of a video.")
        least, most = FPS_LIMITS
        fps = io.Float.Input(
            "fps", default=MODEL_FPS, min=least, max=most, step=0.01, tooltip="Images per second."
        )
        return io.Schema(
            node_id="LatentSyncFrames",
            display_name="LatentSync lip-sync",
            category="video/LatentSync",
            description="Images with the lips following the speech; as many as the speech lasts.",
            inputs=[BUNDLE.Input("latentsync"), images, fps, *sync_inputs()],
            outputs=[io.Image.Output(), io.Audio.Output(), io.Float.Output(display_name="fps")],
        )

    @classmethod
    def execute(
        cls,
        latentsync: LatentSyncModel,
        images: Any,
        fps: float,
        audio: Any,
        options: str = "",
        **widgets: Any,
    ) -> io.NodeOutput:
        wanted = options_of(SyncOptions, {**widgets, "codec": "ffv1"}, options)
        with working_folder() as folder:
            result = folder / "result.mkv"
            source = write_images(folder / "source.mkv", images, fps)
            speech = write_sound(folder / "a.wav", audio)
            report = latentsync.lip_sync().sync(source, speech, result, wanted, on_progress=Bar())
            return io.NodeOutput(
                read_images(result, report.frames), audio, float(probe(result).frames_per_s or fps)
            )


class LipSyncVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LatentSyncVideo",
            display_name="LatentSync lip-sync video",
            category="video/LatentSync",
            description="A video with the lips following the speech. "
            "A file is read as it is and encoded once.",
            inputs=[BUNDLE.Input("latentsync"), io.Video.Input("video"), *sync_inputs()],
            outputs=[io.Video.Output()],
        )

    @classmethod
    def execute(
        cls, latentsync: LatentSyncModel, video: Any, audio: Any, options: str = "", **widgets: Any
    ) -> io.NodeOutput:
        wanted = options_of(SyncOptions, widgets, options)
        with working_folder() as folder:
            # ComfyUI empties its temporary folder when it starts and ends; until then other nodes
            # may read the result.
            result = folder.parent / f"latentsync-{uuid4().hex}{default_suffix(wanted)}"
            source = video_file(video, folder)
            speech = write_sound(folder / "a.wav", audio)
            latentsync.lip_sync().sync(source, speech, result, wanted, on_progress=Bar())
        return io.NodeOutput(InputImpl.VideoFromFile(str(result)))


class ChooseFace(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        what = "The person to lip-sync, as numbered in the picture; run this node once to see it."
        number = io.Int.Input(
            "number", default=0, min=0, max=999, control_after_generate=False, tooltip=what
        )
        return io.Schema(
            node_id="LatentSyncChooseFace",
            display_name="LatentSync choose person",
            category="video/LatentSync",
            description="Finds and numbers all people of a clip; "
            "its output goes into the input face.",
            inputs=[
                io.MultiType.Input("clip", [io.Video, io.Image], tooltip="A video or its frames."),
                number,
            ],
            outputs=[io.String.Output(display_name="face"), io.Image.Output(display_name="people")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, clip: Any, number: int) -> io.NodeOutput:
        from latentsync_trt.face.detector import MediaPipeDetector
        from latentsync_trt.face.people import summaries
        from latentsync_trt.measure.page import contact_sheet, write_png
        from latentsync_trt.sync.faces import analyze

        with working_folder() as folder:
            frames = isinstance(clip, torch.Tensor)
            if frames:
                path = write_images(folder / "clip.mkv", clip, MODEL_FPS)
            else:
                path = video_file(clip, folder)
            tracks, portraits = analyze(path, MediaPipeDetector(), Bar())
            write_png(folder / "people.png", contact_sheet(summaries(tracks), portraits))
            with Image.open(folder / "people.png") as sheet:
                people = torch.tensor(np.asarray(sheet.convert("RGB")))[None] / 255
        if number not in tracks.people:
            numbers = ", ".join(map(str, tracks.people))
            raise InputError(
                f"number {number}: nobody has this number in the clip; choose one of {numbers}"
            )
        return io.NodeOutput(f"index:{number}", people, ui=ui.PreviewImage(people, cls=cls))


class LatentSyncExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [LoadBundle, LipSyncFrames, LipSyncVideo, ChooseFace]


async def comfy_entrypoint() -> LatentSyncExtension:
    """What ComfyUI calls."""
    return LatentSyncExtension()
