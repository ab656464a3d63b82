"""Receives a job's form: files go to disk as they arrive, under names of our own."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from latentsync_trt.errors import InputError
from latentsync_trt.serve.limits import Limits, check_size

FILE_FIELDS = ("video", "audio", "mix", "turns", "faces", "c2pa_cert", "c2pa_key")
TEXT_FIELDS = ("options", "video_url", "audio_url")
SPEAKER = re.compile(r"speaker_(0|[1-9][0-9]{0,2})")
"""A file field with the recording of a face, by its number."""

_SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")
_MOST_PARTS = 64
_STALL_S = 60.0
_MOST_TEXT_BYTES = 64 * 1024


@dataclass(slots=True)
class Form:
    """What a client sent: files by field, and texts by field."""

    files: dict[str, Path] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


async def receive(
    chunks: AsyncIterator[bytes],
    content_type: str | None,
    folder: Path,
    limits: Limits,
    in_thread: Callable[[Callable[[bytes], object], bytes], Awaitable[object]],
) -> Form:
    """Reads a multipart form whose files go to `folder`; `in_thread` calls a function that writes to disk.

    Raises:
        TooLarge: as soon as more bytes than allowed have arrived. InputError: it is no such form, or has other fields.
    """
    kind, parameters = parse_options_header(content_type)
    if kind != b"multipart/form-data" or b"boundary" not in parameters:
        raise InputError("request: is not a form; send multipart/form-data with the files video and audio")
    parts, received = _Parts(folder), 0
    try:
        parser = MultipartParser(parameters[b"boundary"], parts.callbacks())  # type: ignore[arg-type]
        async with asyncio.timeout(_STALL_S) as patience:
            async for chunk in chunks:
                patience.reschedule(asyncio.get_running_loop().time() + _STALL_S)
                received += len(chunk)
                check_size(received, limits)
                await in_thread(parser.write, chunk)
    except TimeoutError as error:
        raise InputError(f"request: nothing arrived for {_STALL_S:g} seconds; send it again") from error
    except FormParserError as error:
        raise InputError(f"request: is not a valid form: {error}; use a library or curl -F to write it") from error
    finally:
        parts.close()
    if not parts.complete:
        raise InputError("request: the form ends too early; send it again")
    return parts.form


class _Parts:
    """Takes a form in pieces from the parser."""

    def __init__(self, folder: Path) -> None:
        self.form, self.complete = Form(), False
        self._folder, self._count = folder, 0
        self._file: BinaryIO | None = None
        self._name, self._text, self._skip = "", bytearray(), False
        self._header, self._value, self._disposition = b"", b"", b""

    def callbacks(self) -> dict[str, Callable[..., None]]:
        """By the parser's names."""
        return {
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, parameters = parse_options_header(self._disposition)
        self._disposition, self._text, self._skip = b"", bytearray(), False
        self._name = parameters.get(b"name", b"").decode("utf-8", "replace")
        self._count += 1
        if self._count > _MOST_PARTS:
            raise InputError(f"request: has more than {_MOST_PARTS} fields; send the options as one JSON object")
        if self._name in self.form.files or self._name in self.form.texts:
            raise InputError(f"{self._name}: is given twice; send it once")
        filename = parameters.get(b"filename")
        if filename is None:
            if self._name not in TEXT_FIELDS:
                cure = "send it as a file" if _is_file(self._name) else f"the text fields are {', '.join(TEXT_FIELDS)}"
                raise InputError(f"{self._name[:40]}: is no text field; {cure}")
        elif not _is_file(self._name):
            names = ", ".join((*FILE_FIELDS, "speaker_0, speaker_1, …"))
            raise InputError(f"{self._name[:40]}: is no file field; they are {names}")
        elif filename:
            self._open(filename)
        else:
            self._skip = True  # a browser's form in which no file was chosen

    def _open(self, filename: bytes) -> None:
        """Nothing but the suffix of the client's name is used."""
        suffix = _SUFFIX.fullmatch("." + filename.decode("utf-8", "replace").rpartition(".")[2].lower())
        path = self._folder / (self._name + (suffix[0] if suffix and b"." in filename else ""))
        self.form.files[self._name] = path
        self._file = path.open("xb")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
        elif not self._skip:
            self._text += data[start:end]
            if len(self._text) > _MOST_TEXT_BYTES:
                raise InputError(f"{self._name}: has more than {_MOST_TEXT_BYTES // 1024} KB of text; shorten it")

    def _on_part_end(self) -> None:
        if self._file is None and not self._skip:
            self.form.texts[self._name] = self._text.decode("utf-8", "replace")
        self.close()

    def _on_end(self) -> None:
        self.complete = True


def _is_file(name: str) -> bool:
    return name in FILE_FIELDS or SPEAKER.fullmatch(name) is not None
