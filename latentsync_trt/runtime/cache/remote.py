"""Engines that machines share, at a URL: one of each kind of GPU builds an engine, and the others fetch it.

Each is a file `<digest>.zip`, with what its folder in the cache has. Whoever can write there decides what runs on the
GPUs: hashes detect damage, not malice.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.remote_files import check_target, deliver, exists, fetch, local_of, shown
from latentsync_trt.runtime.cache.entry import Entry, examine
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.temporary import temporary_folder

_log = logging.getLogger(__name__)


class EngineStore:
    """Fetches and uploads entries of the engine cache at `url`, for fsspec, or in a folder. Thread-safe.

    It never fails a run: `on_notice` receives a sentence about a store that does not answer, which is then left alone,
    and about a damaged engine in it.

    Raises:
        InputError: such URLs are unknown, or can only be read. MissingDependency: the extra `cluster` is missing.
    """

    def __init__(self, url: str, on_notice: Callable[[str], None] = _log.warning) -> None:
        self._url, self._notice = url.rstrip("/"), on_notice
        self._unusable = False
        self._missing: set[str] = set()
        check_target(f"{self._url}/engine.zip")

    def fetch(self, key: EngineKey, folder: Path) -> bool:
        """Downloads the engine of `key` into the empty `folder`; False if there is none that can be used."""
        url = self._url_of(key.digest)
        if self._unusable:
            return False
        try:
            if not exists(url):
                self._missing.add(key.digest)
                return False
            problem = _unpack(fetch(url, folder), key.digest)
        except LatentSyncError as error:
            self._give_up(error)
            return False
        said = f"{problem}; not used, building it again" if problem else "fetched"
        self._notice(f"engine store: {key.label}: {shown(url)}: {said}")
        return not problem

    def put(self, entry: Entry) -> None:
        """Uploads an engine, unless another machine has done so since `fetch` found none."""
        digest = entry.folder.name
        url = self._url_of(digest)
        try:
            if self._unusable or (digest in self._missing and exists(url)):
                return
            with temporary_folder(entry.folder.parent) as folder:
                packed = folder / "engine.zip"
                with ZipFile(packed, "w") as archive:
                    for path in entry.folder.rglob("*"):
                        archive.write(path, path.relative_to(entry.folder))
                if (place := local_of(self._url)) is not None:
                    place.mkdir(parents=True, exist_ok=True)
                deliver(packed, url)
        except (LatentSyncError, OSError) as error:
            self._give_up(error)

    def _url_of(self, digest: str) -> str:
        return f"{self._url}/{digest}.zip"

    def _give_up(self, error: Exception) -> None:
        """Leaves the store alone from here on: each attempt can take a minute."""
        self._unusable = True
        self._notice(f"engine store: {error}; continuing without it")


def _unpack(path: Path, digest: str) -> str:
    """Replaces a fetched file by what it has; returns what is wrong with that, empty if nothing is."""
    try:
        with ZipFile(path) as archive:
            archive.extractall(path.parent)  # nothing outside of it, whatever the names
    except (BadZipFile, EOFError, NotImplementedError) as error:
        return f"is damaged ({error})"
    path.unlink()
    return examine(path.parent, hashes=True, digest=digest).problem
