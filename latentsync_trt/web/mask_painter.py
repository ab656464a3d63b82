"""What stays as it is in a video, painted with a brush over its first picture."""

import secrets
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.checks import Pool
from latentsync_trt.web.painted_masks import first_picture, write_mask
from latentsync_trt.web.parts import html
from latentsync_trt.web.uploads import Upload

_BRUSH = ("#2dd4bf", 0.7)
"""Color and opacity of what is painted: the picture shows through."""
_BRUSH_PX = 24
_EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of events that wait for a child process."""


class MaskPainter:
    """An editor with the first picture of the video, within the page that is being made."""

    def __init__(self, files: Pool, uploads: Path) -> None:
        """
        Args:
            files: looks at the video.
            uploads: the folder from which Gradio serves files.
        """
        self._files = files
        self._uploads = uploads
        with gr.Accordion("Keep a part as it is", open=False, elem_id="keep") as self.box:
            self._note = gr.HTML(elem_id="keep-note")
            self.editor = gr.ImageEditor(
                label="First picture",
                show_label=False,
                sources=(),
                transforms=(),
                layers=False,
                buttons=[],
                format="png",
                brush=gr.Brush(default_size=_BRUSH_PX, colors=[_BRUSH], color_mode="fixed"),
                elem_id="keep-editor",
            )
            self._use = gr.Button("Keep what is painted", size="sm", elem_id="keep-painted")

    def connect(self, upload: Any, keep_mask: Any) -> None:
        """Adds the events; `keep_mask`: the control of the option."""
        self.box.expand(self._show, upload, [self.editor, self._note], **_EVENT)
        inputs = [upload, self.editor]
        used = self._use.click(self._keep, inputs, [keep_mask, self._note], **_EVENT)
        used.then(js="() => page.idle()")

    def _show(self, upload: Upload | None) -> tuple[Any, str]:
        """Shows the first picture of the video, with nothing painted."""
        try:
            picture = self._files.call(first_picture, _video_of(upload))
        except LatentSyncError as error:
            return None, html.message(str(error))
        note = "Paint over what shall stay as it is, in the whole video: a microphone, a logo."
        return picture, html.note(note)

    def _keep(self, upload: Upload | None, painted: Any) -> tuple[Any, str]:
        """Makes the mask of what is painted; takes it away where nothing is."""
        layers = painted["layers"] if painted else []
        target = self._uploads / secrets.token_hex(16) / "painted mask.png"
        try:
            video = _video_of(upload)
            if not any(layer[..., 3].any() for layer in layers):
                return None, html.note("Nothing is painted, so nothing is kept.")
            target.parent.mkdir()
            self._files.call(write_mask, video, layers, target)
        except LatentSyncError as error:
            return None, html.message(str(error))
        return str(target), html.note("It is kept in the next job; “Keep mask” has the file.")


def _video_of(upload: Upload | None) -> Path:
    if upload is None:
        raise InputError("video: is missing; choose one, and open this again")
    return upload.video
