"""Bundles by URL: downloaded once per machine."""

import shutil
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from latentsync_trt.bundle.manifest import MANIFEST_NAME, Bundle, manifest_sha256, read_manifest
from latentsync_trt.errors import BundleError
from latentsync_trt.files import published_folder, temporary_folder
from latentsync_trt.paths import check_folder_to_write
from latentsync_trt.remote_files import fetch, name_of, shown

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
        manifest = fetch(f"{url}/{MANIFEST_NAME}", folder)
        target = cache / f"{name_of(url)}-{manifest_sha256(folder)[:_DIGITS]}"
        if _is_bundle(target):
            return target
        with FileLock(cache / ".download.lock", poll_interval=_LOCK_POLL_S):
            if not _is_bundle(target):
                try:
                    with published_folder(target) as staged:
                        shutil.copy(manifest, staged)
                        for file in read_manifest(staged).files:
                            fetch(f"{url}/{file}", staged)
                        Bundle.load(staged)
                except BundleError as error:
                    raise BundleError(f"{shown(url)}: {error}; upload the bundle again", usage=error.usage) from error
        return target


def _is_bundle(folder: Path) -> bool:
    with suppress(BundleError):
        Bundle.load(folder)
        return True
    return False
