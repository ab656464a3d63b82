"""Engines that machines share, at a URL: one of each kind of GPU builds an engine, and the others fetch it.

    <url>/<digest>.json     the record of an engine, written last
    <url>/<sha256>          a file of an engine

Whoever can write there decides what runs on the GPUs: hashes detect damage, not malice.
"""

from collections.abc import Callable
from pathlib import Path

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.remote_files import check_target, deliver, exists, fetch, local_of, shown
from latentsync_trt.runtime.cache.entry import RECORD_NAME, EngineKey, Entry, read_entry, read_record


class EngineStore:
    """Fetches and uploads entries of the engine cache at `url`, for fsspec, or in a folder. Thread-safe.

    It never fails a run: `on_notice` receives a sentence about a store that does not answer, which is then left alone,
    and about a damaged engine in it.

    Raises:
        InputError: such URLs are unknown, or can only be read. MissingDependency: the extra `cluster` is missing.
    """

    def __init__(self, url: str, on_notice: Callable[[str], None]) -> None:
        self._url, self._notice, self._usable = url.rstrip("/"), on_notice, True
        check_target(f"{self._url}/{RECORD_NAME}")

    def fetch(self, key: EngineKey, folder: Path) -> bool:
        """Downloads the engine of `key` into the empty `folder`; False if there is none that can be used."""
        url, problem = f"{self._url}/{key.digest}.json", ""
        try:
            if not self._usable or not exists(url):
                return False
            fetch(url, folder).rename(folder / RECORD_NAME)
            for name, file in read_record(folder).files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                fetch(f"{self._url}/{file.sha256}", folder).rename(folder / name)
            problem = read_entry(folder, hashes=True, digest=key.digest).problem
        except (LatentSyncError, OSError) as error:
            self._give_up(error)
            return False
        except ValueError as error:
            problem = f"{error}"
        said = f"{problem}; not used, building it again" if problem else "fetched"
        self._notice(f"engine store: {key.label}: {shown(url)}: {said}")
        return not problem

    def put(self, entry: Entry) -> None:
        """Uploads an engine."""
        try:
            if self._usable:
                if (place := local_of(self._url)) is not None:
                    place.mkdir(parents=True, exist_ok=True)
                for name, file in read_record(entry.folder).files.items():
                    deliver(entry.folder / name, f"{self._url}/{file.sha256}")
                deliver(entry.folder / RECORD_NAME, f"{self._url}/{entry.folder.name}.json")
        except (LatentSyncError, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Leaves the store alone from here on: each attempt can take a minute."""
        self._usable = False
        self._notice(f"engine store: {error}; continuing without it")
