"""Speech of single people of a video, who are chosen by their faces."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import Pool
from latentsync_trt.web.parts import html
from latentsync_trt.web.uploads import Upload, check_speech

VOICES = "voices"
"""The field of the form with the recordings of single people, as `voices_of` reads it."""


class PeopleVoices:
    """The recording of the person whose face is chosen, within the page that is being made."""

    def __init__(self, files: Pool, limits: Limits) -> None:
        """`files`: looks at recordings."""
        self._files = files
        self._limits = limits
        self._speech = gr.Audio(
            label="Speech of this person alone",
            sources=["upload", "microphone"],
            type="filepath",
            buttons=[],
            visible=False,
            elem_id="person-speech",
        )
        self._note = gr.HTML(elem_id="voices-note")
        # In the page, but not shown: without a place there, it would tell of no changes.
        self.kept = gr.Textbox("", visible="hidden", elem_id=VOICES)

    def connect(self, upload: Any, face: Any) -> None:
        """Adds the events; `face`: the control that says who is chosen."""
        quick: dict[str, Any] = {
            "show_progress": "hidden", "api_visibility": "private", "queue": False,
        }  # fmt: skip
        face.change(self._show, [upload, face, self.kept], self._speech, **quick)
        changed = [self._speech, self.kept, self._note]
        inputs = [self._speech, face, self.kept]
        self._speech.change(self._take, inputs, changed, **quick)
        self.kept.change(self._list, self.kept, self._note, **quick)

    def _show(self, upload: Upload | None, face: str, kept: str) -> Any:
        """Shows the recording of the person who is chosen, where there are several."""
        number = number_of(face)
        if number is None or upload is None or upload.analysis is None:
            return gr.Audio(visible=False)
        if len(upload.analysis.people) < 2:
            return gr.Audio(visible=False)
        speech = voices_of(kept).get(number)
        label = f"Speech of person {number} alone"
        return gr.Audio(speech, label=label, visible=True)

    async def _take(self, speech: str | None, face: str, kept: str) -> tuple[Any, ...]:
        """Keeps the recording of the person who is chosen, or forgets it; takes away what cannot be
        read, and says why.
        """
        number = number_of(face)
        voices = voices_of(kept)
        if number is None or voices.get(number) == speech:
            return gr.skip(), gr.skip(), gr.skip()
        if speech is None:
            voices.pop(number, None)
        else:
            try:
                await asyncio.to_thread(self._files.call, check_speech, Path(speech), self._limits)
            except LatentSyncError as error:
                text = str(error).replace(speech, Path(speech).name)
                return None, gr.skip(), html.message(text)
            voices[number] = speech
        stored = json.dumps(voices) if voices else ""
        return gr.skip(), stored, self._list(stored)

    def _list(self, kept: str) -> str:
        """Returns whose recordings are given, as HTML."""
        names = {}
        for number, path in sorted(voices_of(kept).items()):
            names[number] = Path(path).name
        return str(html.voices(names))


def number_of(face: str | None) -> int | None:
    """Returns the number of the person whose face was chosen; None where none was."""
    choice, _, number = (face or "").partition(":")
    if choice == "index" and number.isdecimal():
        return int(number)
    return None


def voices_of(kept: str | None) -> dict[int, str]:
    """Returns the recordings of single people by their numbers; none where the text is not one of
    `PeopleVoices`.
    """
    voices = dict[int, str]()
    try:
        stored = json.loads(kept or "{}")
        for number, path in stored.items():
            voices[int(number)] = str(path)
    except (ValueError, TypeError, AttributeError):
        return {}
    return voices


def speech_files(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the recordings of a form by the fields of a job; raises `InputError` if there are
    none, or both one for all and some for single people.
    """
    voices = voices_of(values[VOICES])
    if not voices and values["audio"] is None:
        raise InputError("speech: is missing; choose or record one")
    if not voices:
        return {"audio": values["audio"]}
    if values["audio"] is not None:
        raise InputError(
            "speech: is given for all and for single people; take the one or the others away"
        )
    files = {}
    for number, path in voices.items():
        files[f"speaker_{number}"] = path
    return files
