"""The form of the page: the values with which a job is made."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.web import parts
from latentsync_trt.web.inputs import ClipInputs, Updates
from latentsync_trt.web.parts import html
from latentsync_trt.web.people_voices import VOICES, voices_of
from latentsync_trt.web.uploads import Upload, copy_of, source_of

_UPLOAD_FIELDS = {"video", "audio", *parts.FILE_FIELDS}
"""The fields whose values are paths of uploads."""


class PageForm:
    """Controls by the names of what they are for, and the message about their values."""

    def __init__(
        self, inputs: ClipInputs, bundle: Any, options: Mapping[str, Any], message: Any
    ) -> None:
        self.controls: dict[str, Any] = {
            "video": inputs.video,
            "audio": inputs.speech,
            "bundle": bundle,
            VOICES: inputs.voices.kept,
            **options,
        }
        self._inputs = inputs
        self._message = message

    @property
    def components(self) -> list[Any]:
        return list(self.controls.values())

    @property
    def filled(self) -> list[Any]:
        """What `fill` and `restore` change."""
        return [self._inputs.upload, self._message, *self.components]

    def values(self, form: Sequence[Any]) -> dict[str, Any]:
        """Returns the values of the components by name; raises `ValueError` if they are others."""
        return dict(zip(self.controls, form, strict=True))

    def restore(self, kept: str) -> Updates:
        """Puts what was kept by the browser into the form, after a reload; changes nothing if that
        is nothing, or of another version.
        """
        try:
            values = self.values(json.loads(kept))
        except (ValueError, TypeError):
            return gr.skip()
        for name in _UPLOAD_FIELDS & values.keys():
            if isinstance(values[name], dict):
                values[name] = values[name].get("path")
        if isinstance(values["video"], str):
            values["video"] = str(source_of(Path(values["video"])))
        return self.fill(values)

    def fill(self, values: Mapping[str, Any]) -> Updates:
        """Puts values into the form; says which files are not there any longer, and leaves out what
        does not fit.
        """
        updates: Updates = {}
        gone = []
        for name, control in self.controls.items():
            value = values.get(name)
            if name == VOICES:
                voices = voices_of(value)
                fits = all(self._inputs.has(path) for path in voices.values())
                value = value or ""
            elif name in _UPLOAD_FIELDS:
                fits = value is None or self._inputs.has(str(value))
            else:
                fits = parts.fits_control(control, value)
            if fits:
                updates[control] = value
            elif name == "bundle" or name in _UPLOAD_FIELDS:
                gone.append(control.label)
        if updates.get(self._inputs.video):
            upload = Upload(Path(values["video"]))
            copy = copy_of(upload.video)
            if copy.is_file():  # what browsers cannot play, Gradio would convert itself
                upload.playable = copy
                updates[self._inputs.video] = str(copy)
            updates[self._inputs.upload] = upload
        text = f"{', '.join(gone)}: not kept any longer; choose again" if gone else ""
        updates[self._message] = html.message(text)
        return updates
