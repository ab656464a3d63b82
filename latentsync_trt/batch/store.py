"""Bundles by URL: downloaded once per machine."""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from latentsync_trt.bundle.manifest import MANIFEST_NAME, Bundle, manifest_sha256, read_manifest
from latentsync_trt.errors import BundleError
from latentsync_trt.paths import check_folder_to_write
from latentsync_trt.remote_files import fetch, name_of, shown
from latentsync_trt.temporary import temporary_folder

_LOCK_POLL_S = 0.2
_DIGITS = 12


def fetch_folder(url: str, cache: Path) -> Path:
    """The local folder of a bundle at `url`: downloaded into `cache` once per machine, while other processes wait.

    It is known by the SHA-256 of its manifest, which names those of all files.

    Raises:
        BundleError: a file differs from the manifest. Others as `fetch`.
    """
    check_folder_to_write(cache)
    cache.mkdir(parents=True, exist_ok=True)
    url = url.rstrip("/")
    with temporary_folder(cache) as folder:
        staged = folder / "bundle"
        staged.mkdir()
        fetch(f"{url}/{MANIFEST_NAME}", staged)
        target = cache / f"{name_of(url)}-{manifest_sha256(staged)[:_DIGITS]}"
        if _is_bundle(target):
            return target
        with FileLock(cache / ".download.lock", poll_interval=_LOCK_POLL_S):
            if not _is_bundle(target):
                try:
                    for file in read_manifest(staged).files:
                        fetch(f"{url}/{file}", staged)
                    Bundle.load(staged)
                except BundleError as error:
                    raise BundleError(f"{shown(url)}: {error}; upload the bundle again", usage=error.usage) from error
                if target.exists():  # damaged
                    target.rename(folder / "damaged")
                staged.rename(target)
        return target


def _is_bundle(folder: Path) -> bool:
    with suppress(BundleError):
        Bundle.load(folder)
        return True
    return False
