"""Content credentials: what is written verifies and says what was done; what cannot sign is refused
before a run.
"""

import json
from pathlib import Path
from typing import Any

import c2pa
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.c2pa import Credentials, read_credentials, sign
from latentsync_trt.media.tags import append_xmp
from latentsync_trt.version import __version__
from tests.certificates import Files, p256, write_pair
from tests.clips import decoded, numbered, write_clip, write_video
from tests.test_mark import SOURCE_TYPE, xmp_of


def credentials_of(files: Files, output: str = "out.mp4") -> Credentials:
    found = read_credentials(files.pem, Path(output))
    assert found is not None
    return found


def stored(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest store, as the package's reader reports it, and its active manifest."""
    with c2pa.Reader(str(path)) as reader:
        found: dict[str, Any] = json.loads(reader.json())
    return found, found["manifests"][found["active_manifest"]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_video(tmp_path / "source.mp4", numbered(5))


@pytest.mark.parametrize(
    ("suffix", "algorithm", "key"),
    [(".mp4", "es256", p256()), (".mov", "ps256", rsa.generate_private_key(65537, 2048))],
    ids=["EC", "RSA"],
)
def test_the_record_names_edit_tool_and_source(
    suffix: str, algorithm: str, key: CertificateIssuerPrivateKeyTypes, source: Path, tmp_path: Path
) -> None:
    path = write_video(tmp_path / f"out{suffix}", numbered(5))
    append_xmp(path)
    frames = decoded(path)
    credentials = credentials_of(write_pair(tmp_path, key))
    assert credentials.algorithm == algorithm
    sign(path, source, credentials)
    found, manifest = stored(path)
    (actions,) = [
        entry["data"]
        for entry in manifest["assertions"]
        if entry["label"].startswith("c2pa.actions")
    ]
    opened, edited = actions["actions"]
    assert found["validation_state"] == "Valid"
    assert [status["code"] for status in found["validation_status"]] == [
        "signingCredential.untrusted"
    ]
    assert opened["action"] == "c2pa.opened"
    assert (edited["action"], edited["digitalSourceType"]) == ("c2pa.edited", SOURCE_TYPE)
    assert edited["softwareAgent"] == {"name": "latentsync-trt", "version": __version__}
    assert [(one["title"], one["relationship"]) for one in manifest["ingredients"]] == [
        ("source.mp4", "parentOf")
    ]
    assert all((a == b).all() for a, b in zip(decoded(path), frames, strict=True))
    if suffix == ".mp4":
        assert xmp_of(path)["type"] == SOURCE_TYPE


def test_credentials_of_the_source_are_kept(source: Path, tmp_path: Path) -> None:
    credentials = credentials_of(write_pair(tmp_path, p256()))
    sign(source, write_video(tmp_path / "first.mp4", numbered(2)), credentials)
    path = write_video(tmp_path / "out.mp4", numbered(2))
    sign(path, source, credentials)
    assert len(stored(path)[0]["manifests"]) == 2


def test_a_source_that_only_players_can_read_costs_no_run(source: Path, tmp_path: Path) -> None:
    """FFmpeg ignores what follows the last box; the package does not."""
    source.write_bytes(source.read_bytes() + b"more than a box")
    path = write_video(tmp_path / "out.mp4", numbered(2))
    (notice,) = sign(path, source, credentials_of(write_pair(tmp_path, p256())))
    assert f"{source}: earlier content credentials" in notice
    assert stored(path)[0]["validation_state"] == "Valid"


# What is refused before a run


def refused(files: Files, output: str = "out.mp4") -> str:
    with pytest.raises(InputError) as caught:
        read_credentials(files.pem, Path(output))
    return str(caught.value)


def test_files_that_are_missing_or_incomplete(tmp_path: Path) -> None:
    files = write_pair(tmp_path, p256())
    for path in (tmp_path / "missing.pem", files.key, files.cert):
        with pytest.raises(InputError, match=f"{path}: cannot be"):
            read_credentials(path, Path("out.mp4"))


def test_a_key_with_a_password_or_of_another_certificate(tmp_path: Path) -> None:
    key = p256()
    files = write_pair(tmp_path, key)
    files.key.write_bytes(p256().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert "the signature does not match" in refused(files)
    files.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    assert "without a password" in refused(files)
    assert "out.mkv: cannot hold C2PA" in refused(files, "out.mkv")


def test_a_certificate_that_cannot_sign(tmp_path: Path) -> None:
    assert "not valid at time" in refused(write_pair(tmp_path, p256(), days=(2, 9)))


@pytest.mark.integration
def test_a_run_signs_its_output(tmp_path: Path, lip_sync: LipSync) -> None:
    path = tmp_path / "out.mp4"
    pem = write_pair(tmp_path, p256()).pem
    lip_sync.sync(*write_clip(tmp_path, 5), path, SyncOptions(steps=1, guidance=1.0, c2pa=pem))
    found, manifest = stored(path)
    assert found["validation_state"] == "Valid"
    assert (manifest["title"], manifest["ingredients"][0]["title"]) == ("out.mp4", "face.mp4")
    assert xmp_of(path)["type"] == SOURCE_TYPE
