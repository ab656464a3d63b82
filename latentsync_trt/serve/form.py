"""Receives a job's form: files go to disk as they arrive, under names of our own."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from latentsync_trt.errors import InputError
from latentsync_trt.serve.admission import FILE_FIELDS, TEXT_FIELDS, Form, is_file_field
from latentsync_trt.serve.limits import Limits, check_size

_SUFFIX = re.compile(r".*(\.[a-z0-9]{1,5})", re.DOTALL)
_STALL_S = 60.0
_MOST_TEXT_BYTES = 64 * 1024
_CALLBACKS = ("header_field", "header_value", "header_end", "headers_finished", "part_data", "part_end", "end")
"""Of `MultipartParser`, without "on_"."""


async def receive(chunks: AsyncIterator[bytes], content_type: str | None, folder: Path, limits: Limits) -> Form:
    """Reads a multipart form, whose files go to `folder`.

    Starlette's own parser would write them to the system's temporary folder, and refuse unknown fields at the end only.

    Raises:
        TooLarge: as soon as more bytes than allowed have arrived. InputError: it is no such form, or has other fields.
    """
    kind, parameters = parse_options_header(content_type)
    if kind != b"multipart/form-data" or b"boundary" not in parameters:
        raise InputError("request: is not a form; send multipart/form-data with the files video and audio")
    parts, received_bytes = _Parts(folder), 0
    try:
        parser = MultipartParser(parameters[b"boundary"], parts.callbacks())  # type: ignore[arg-type]
        async with asyncio.timeout(_STALL_S) as patience:
            async for chunk in chunks:
                patience.reschedule(asyncio.get_running_loop().time() + _STALL_S)
                received_bytes += len(chunk)
                check_size(received_bytes, limits)
                await run_in_threadpool(parser.write, chunk)
    except TimeoutError as error:
        raise InputError(f"request: nothing arrived for {_STALL_S:g} seconds; send it again") from error
    except FormParserError as error:
        raise InputError(f"request: is not a valid form: {error}; use a library or curl -F to write it") from error
    finally:
        parts.close()
    if not parts.complete:
        raise InputError("request: the form ends too early; send it again")
    return parts.form


def stored_name(field: str, sent: str) -> str:
    """Our own name for the file of a field, with the suffix of the name under which it was sent."""
    suffix = _SUFFIX.fullmatch(sent.lower())
    return f"{field}{suffix[1] if suffix else ''}"


class _Parts:
    """Takes a form in pieces from the parser."""

    def __init__(self, folder: Path) -> None:
        self.form, self.complete = Form({}, {}), False
        self._folder = folder
        self._file: BinaryIO | None = None
        self._header, self._value, self._disposition = b"", b"", b""
        self._name, self._text = "", bytearray()

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {f"on_{name}": getattr(self, f"_on_{name}") for name in _CALLBACKS}

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
        self._disposition, self._text = b"", bytearray()
        name = self._name = parameters.get(b"name", b"").decode("utf-8", "replace")
        filename = parameters.get(b"filename")
        if name in self.form.files or name in self.form.texts:
            raise InputError(f"{name}: is given twice; send it once")
        if filename is None and name not in TEXT_FIELDS:
            cure = "send it as a file" if is_file_field(name) else f"the text fields are {', '.join(TEXT_FIELDS)}"
            raise InputError(f"{name[:40]}: is no text field; {cure}")
        if filename is not None and not is_file_field(name):
            names = ", ".join((*FILE_FIELDS, "speaker_0, speaker_1, …"))
            raise InputError(f"{name[:40]}: is no file field; they are {names}")
        if filename:  # else a text, or a browser's field in which no file was chosen
            self.form.files[name] = self._folder / stored_name(name, filename.decode("utf-8", "replace"))
            self._file = self.form.files[name].open("xb")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MOST_TEXT_BYTES:
            raise InputError(f"{self._name}: has more than {_MOST_TEXT_BYTES // 1024} KB of text; shorten it")

    def _on_part_end(self) -> None:
        if self._file is None:
            self.form.texts[self._name] = self._text.decode("utf-8", "replace")
        self.close()

    def _on_end(self) -> None:
        self.complete = True
