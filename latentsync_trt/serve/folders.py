"""Where the service keeps jobs: a folder for each, named by its id, and space on the disk."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from latentsync_trt.files import link_or_copy, whole_file
from latentsync_trt.serve.admission import PAGE, PREVIEW, UPLOADS

JOB_ID = re.compile(r"[0-9a-f]{32}")
FULL = "service: its disk is full; free some space on it, or try again later"

_RESERVE_BYTES = 4_000_000
"""Size of a file that is deleted when the disk is full, so that the ledger can still be written."""


class JobFolders:
    """The folders of all jobs. They lie in `jobs`, beside the reserve of space."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the service. Raises OSError if it cannot be written."""
        self.jobs = folder.absolute() / "jobs"
        self._reserve = folder.absolute() / "reserve"
        self.jobs.mkdir(0o700, parents=True, exist_ok=True)
        self.give_reserve()

    def give_reserve(self) -> bool:
        """Frees the space of the reserve; returns whether there was one."""
        if not self._reserve.exists():
            return False
        self._reserve.unlink(missing_ok=True)
        return True

    def secure_space(self) -> bool:
        """Makes the reserve, if it was used; returns whether there is space for jobs, and where
        uploads arrive.
        """
        try:
            if not self._reserve.exists():
                with whole_file(self._reserve) as part:
                    part.write_bytes(bytes(_RESERVE_BYTES))
            free_bytes = [shutil.disk_usage(each).free for each in (self.jobs, gettempdir())]
        except OSError:
            return False
        return min(free_bytes) >= _RESERVE_BYTES

    def ids(self) -> set[str]:
        """Returns the jobs that have a folder."""
        return {path.name for path in self.jobs.iterdir() if JOB_ID.fullmatch(path.name)}

    def make(self, job_id: str) -> Path:
        """Makes the folder of a new job; returns that of its uploads."""
        uploads = self.jobs / job_id / UPLOADS
        uploads.mkdir(0o700, parents=True)
        return uploads

    def remove(self, job_id: str) -> None:
        shutil.rmtree(self.jobs / job_id, ignore_errors=True)

    def copy(self, job_id: str, copy_id: str) -> None:
        """Makes a folder for a new job with the files of another one; without its preview and its
        page. Files are links where the disk has such.
        """
        shutil.copytree(
            self.jobs / job_id,
            self.jobs / copy_id,
            copy_function=link_or_copy,
            ignore=shutil.ignore_patterns(PREVIEW, PAGE),
            dirs_exist_ok=True,
        )

    def remove_unneeded(self, job_id: str, *, is_done: bool) -> None:
        """Removes what a job that has ended needs no more: the work folder, and the inputs unless
        `is_done`, as then a part may be done again.
        """
        for path in (self.jobs / job_id).glob("*"):
            if path.is_dir() and not (is_done and path.name == UPLOADS):
                shutil.rmtree(path, ignore_errors=True)

    def in_client_words(self, value: Any, names: Mapping[str, str]) -> Any:
        """Returns text, or a report, without the folders of jobs, and with the client's names of
        files; `names`: these by the names under which they lie.
        """
        # On Windows, JSON doubles its backslashes.
        jobs = re.escape(json.dumps(str(self.jobs))[1:-1])
        folder = rf"{jobs}[\\/]+{JOB_ID.pattern}[\\/]+(?:{UPLOADS}[\\/]+)?"
        stored = "|".join(map(re.escape, names)) or "(?!)"

        def client_name(match: re.Match[str]) -> str:
            place = match[1]
            name = match[2]
            if not name:
                return ""
            # Without a folder before it and a suffix, it is a word such as "video".
            if place or "." in name:
                return json.dumps(names[name])[1:-1]
            return name

        pattern = rf"({folder})?(?<![\w.-])({stored})(?![\w-]|\.\w)|{folder}"
        return json.loads(re.sub(pattern, client_name, json.dumps(value)))
