"""Engines that machines share, at a URL: one of each kind of GPU builds an engine, and the others fetch it.

    <url>/<digest>/<SHA-256>      a file of the engine
    <url>/<digest>/engine.json    the record of the entry, written last

Files are named by their content, so machines that upload the same engine at once, or again, never mix their files.
Whoever can write there decides what runs on the GPUs: hashes detect damage, not malice.
"""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.bundle.sealed import opened
from latentsync_trt.errors import InputError, MissingDependency
from latentsync_trt.runtime.cache.entry import RECORD_NAME, Entry, examine
from latentsync_trt.runtime.cache.key import EngineKey

_SECRETS = re.compile(r"(://)[^/\s'\"]*@|[?#][^\s'\"]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_log = logging.getLogger(__name__)


class EngineStore:
    """Fetches and uploads entries of the engine cache at `url`, for fsspec, or in a folder. Thread-safe.

    It never fails a run: `on_notice` receives a sentence about a store that does not answer, which is then left alone,
    and about a damaged engine in it.

    Raises:
        InputError: nothing knows such URLs. MissingDependency: the extra `cluster` is not installed.
    """

    def __init__(self, url: str, on_notice: Callable[[str], None] = _log.warning) -> None:
        self._shown = _SECRETS.sub(r"\1", url).rstrip("/")
        self._login = urlsplit(url).netloc.rpartition("@")[0]
        self._notice = on_notice
        self._unusable = False
        self._seen: dict[str, bytes | None] = {}
        try:
            from fsspec.core import url_to_fs

            self._system, self._root = url_to_fs(url.rstrip("/"))
        except ImportError as error:
            cure = 'pip install "latentsync-trt[cluster]"'
            raise MissingDependency(
                f"--engine-store {self._shown}: needs the extra cluster; {cure} ({error})"
            ) from error
        except ValueError as error:
            raise InputError(f"--engine-store {self._shown}: no known kind of URL ({error})") from error

    def fetch(self, key: EngineKey, folder: Path) -> bool:
        """Downloads the engine of `key` into the empty `folder`; False if there is none that can be used."""
        try:
            record = self._seen[key.digest] = self._record(key.digest)
            problem = "" if record is None else self._download(record, key.digest, folder)
        except Exception as error:  # noqa: BLE001 -- each kind of store has exceptions of its own
            self._give_up("cannot be read", error)
            return False
        if problem:
            self._notice(f"engine store {self._shown}: {key.label}: {problem}; not used, building it again")
        elif record is not None:
            self._notice(f"{key.label}: fetched from the engine store {self._shown}")
        return record is not None and not problem

    def put(self, entry: Entry) -> None:
        """Uploads an engine, unless another machine has done so since `fetch` did not find a usable one."""
        digest = entry.folder.name
        try:
            if self._unusable or (digest in self._seen and self._record(digest) != self._seen[digest]):
                return
            record = (entry.folder / RECORD_NAME).read_bytes()
            self._system.makedirs(f"{self._root}/{digest}", exist_ok=True)
            for name, file in json.loads(record)["files"].items():
                self._system.put_file(str(entry.folder / name), f"{self._root}/{digest}/{file['sha256']}")
            self._system.pipe_file(f"{self._root}/{digest}/{RECORD_NAME}", record)
            self._seen[digest] = record
        except Exception as error:  # noqa: BLE001 -- as in `fetch`
            self._give_up(f"{entry.label} cannot be uploaded", error)

    def _record(self, digest: str) -> bytes | None:
        """The `engine.json` of an entry; None if there is none, or the store is not used."""
        if self._unusable:
            return None
        self._system.invalidate_cache()
        try:
            return bytes(self._system.cat_file(f"{self._root}/{digest}/{RECORD_NAME}"))
        except FileNotFoundError:
            return None

    def _download(self, record: bytes, digest: str, folder: Path) -> str:
        """Downloads what `record` names; returns what is wrong with it, empty if nothing is."""
        (folder / RECORD_NAME).write_bytes(record)
        for name, file in _files(record).items():
            if not _is_inside(name) or not _SHA256.fullmatch(str(file.get("sha256"))):
                return f"{RECORD_NAME} names {name!r}, which is no file of an engine"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                self._system.get_file(f"{self._root}/{digest}/{file['sha256']}", str(folder / name))
            except FileNotFoundError:
                return f"{name} is missing"
        return examine(folder, hashes=True, digest=digest).problem

    def _give_up(self, problem: str, error: Exception) -> None:
        """Leaves the store alone from here on: each attempt can take a minute."""
        if not self._unusable:
            said = " ".join(_SECRETS.sub(r"\1", str(error)).split())
            reason = (said.replace(self._login, "…") if self._login else said) or type(error).__name__
            self._notice(f"engine store {self._shown}: {problem} ({reason}); continuing without it")
        self._unusable = True


def _files(record: bytes) -> dict[str, dict[str, Any]]:
    """Files and hashes by name; empty if the record is damaged, which `examine` reports."""
    try:
        content = opened(json.loads(record))
        return {str(name): dict(file) for name, file in content["files"].items()} if content else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _is_inside(name: str) -> bool:
    """Whether a name is a path below a folder, on any system."""
    path = PureWindowsPath(name)
    return bool(path.parts) and not path.anchor and "\\" not in name and ".." not in PurePosixPath(name).parts
