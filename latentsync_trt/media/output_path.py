"""Whether an output can be written, before any work is done."""

import os
from pathlib import Path

from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.files import KEPT_NAME, work_folder_of
from latentsync_trt.paths import check_file_to_write, check_free, is_same_file

SUFFIXES = (".mp4", ".mov", ".mkv")


def check_output_path(output: Path, *inputs: Path, overwrite: bool) -> None:
    """Checks that `output` can be written, before any work is done: `InputError` if it is none of
    `SUFFIXES`, one of the `inputs`, or not to be replaced; `OutputError` if the system does not let
    it be written.
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{output}: cannot write {suffix or 'a file without extension'}; "
            f"use {', '.join(SUFFIXES)}"
        )
    try:
        check_file_to_write(output)
        writable = output.is_file() and os.access(output, os.W_OK)
        protected = output.exists() and not writable
    except InputError as error:
        raise OutputError(str(error), usage=True) from error
    except OSError as error:  # the system refuses the name, for example as too long
        raise OutputError(f"{output}: cannot be written: {error.strerror}", usage=True) from error
    if protected:
        raise OutputError(
            f"{output}: is write-protected, a device or a pipe; choose another name", usage=True
        )
    if any(is_same_file(output, source) for source in inputs):
        raise InputError(f"{output}: is also an input; choose another name for the output")
    check_free(output, overwrite=overwrite)


def is_begun(output: Path) -> bool:
    """Returns whether an interrupted run was to write `output`: a file that is there, it has not
    replaced yet.
    """
    return (work_folder_of(output) / KEPT_NAME).exists()
