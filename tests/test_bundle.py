"""Bundles are read back as written, and refused if damaged."""

import json
import os
from pathlib import Path

import pytest

from latentsync_trt import remembered
from latentsync_trt.bundle import manifest
from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, checkpoints_folder, demo_folder, find_bundle
from latentsync_trt.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    REQUIRED_GRAPHS,
    Bundle,
    Manifest,
    check_target,
    read_manifest,
    sha256_file,
)
from latentsync_trt.errors import BundleError, InputError, OutputError
from latentsync_trt.files import published_folder
from tests.bundles import make_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bündle with spaces")


def test_written_bundle_is_read_back(bundle: Bundle) -> None:
    again = Bundle.load(bundle.folder)
    assert again.manifest == bundle.manifest
    assert again.manifest.graphs["denoise_step"].inputs[0].shape == ("windows", 4)
    assert again.manifest.latent_px == 8
    assert again.graph_path("vae_encoder").read_text() == "vae_encoder"


def test_a_changed_byte_is_noticed(bundle: Bundle) -> None:
    weights = bundle.folder / "net.weights"
    weights.write_bytes(b"\xff" + weights.read_bytes()[1:])
    with pytest.raises(BundleError, match=r"net\.weights: damaged or edited"):
        Bundle.load(bundle.folder)


def test_hashes_are_checked_once_and_again_when_a_file_changed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def hash_file(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    def hashed_by_load() -> set[str]:
        hashed.clear()
        Bundle.load(bundle.folder)
        return {path.name for path in hashed}

    monkeypatch.setattr(manifest, "sha256_file", hash_file)
    everything = set(bundle.manifest.files)
    assert [hashed_by_load(), hashed_by_load()] == [everything, everything]  # its files were written just now
    monkeypatch.setattr(remembered, "_SETTLED_S", -1.0)
    assert [hashed_by_load(), hashed_by_load()] == [everything, set()]
    weights = bundle.folder / "net.weights"
    content, state = weights.read_bytes(), weights.stat()
    weights.write_bytes(b"\xff" + content[1:])
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000 * (os.name == "nt")))
    with pytest.raises(BundleError, match=r"net\.weights: damaged or edited"):
        Bundle.load(bundle.folder)
    weights.write_bytes(content)
    os.utime(weights)
    assert [hashed_by_load(), hashed_by_load()] == [everything, set()]


@pytest.mark.parametrize(("damage", "message"), [("unlink", "missing"), ("truncate", "the manifest says 256")])
def test_a_lost_or_cut_file_is_noticed_without_hashing(bundle: Bundle, damage: str, message: str) -> None:
    weights = bundle.folder / "net.weights"
    weights.unlink() if damage == "unlink" else weights.write_bytes(b"short")
    with pytest.raises(BundleError, match=message):
        Bundle.load(bundle.folder, verify=False)


def test_an_edited_manifest_is_noticed(bundle: Bundle) -> None:
    path = bundle.folder / MANIFEST_NAME
    path.write_text(path.read_text().replace('"resolution_px": 64', '"resolution_px": 128'))
    with pytest.raises(BundleError, match="edited or damaged"):
        read_manifest(bundle.folder)


def test_a_newer_format_is_refused(bundle: Bundle) -> None:
    path = bundle.folder / MANIFEST_NAME
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(BundleError, match=f"format {FORMAT_VERSION + 1}, this version reads up to {FORMAT_VERSION}"):
        read_manifest(bundle.folder)


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        Bundle.load(tmp_path)


def test_graph_hash_covers_graph_and_weights(bundle: Bundle) -> None:
    hashes = {bundle.graph_hash(name) for name in REQUIRED_GRAPHS}
    assert len(hashes) == len(REQUIRED_GRAPHS)


def test_finding_by_path_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, str(tmp_path))
    folder = make_bundle(tmp_path / "first").folder
    make_bundle(tmp_path / "second")
    assert find_bundle("first")[0] == folder
    assert find_bundle(str(folder))[0] == folder
    assert find_bundle("demo") == (demo_folder(), "built in")
    for name in ("nothing", "x" * 5000, "first/manifest.json", "..", "bündle [bold]:C"):
        with pytest.raises(BundleError, match="found: demo, first, second") as caught:
            find_bundle(name)
        assert caught.value.usage
    for name, words in (("", "is empty"), ("https://host/bundle", "https://host/bundle: is a URL"), ("a\0b", "NUL")):
        with pytest.raises(InputError, match=words):
            find_bundle(name)


def test_the_folder_of_bundles_may_be_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, str(Path("~", "models")))
    assert checkpoints_folder() == tmp_path / "models"
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, "~no-such-user/models")
    with pytest.raises(InputError, match=rf"~no-such-user/models: .*{CHECKPOINTS_VARIABLE}"):
        checkpoints_folder()


def test_published_folder_replaces_an_earlier_one(bundle: Bundle) -> None:
    with published_folder(bundle.folder) as staged:
        (staged / "new").touch()
        assert Bundle.load(bundle.folder).manifest == bundle.manifest
    assert [path.name for path in bundle.folder.iterdir()] == ["new"]
    assert [path.name for path in bundle.folder.parent.iterdir()] == [bundle.folder.name]


@pytest.mark.parametrize(("error", "raised"), [(ValueError(), ValueError), (OSError(28, "disk full"), OutputError)])
def test_failed_staging_keeps_the_earlier_bundle(bundle: Bundle, error: Exception, raised: type[Exception]) -> None:
    def fail() -> None:
        with published_folder(bundle.folder) as staged:
            (staged / "new").touch()
            raise error

    with pytest.raises(raised):
        fail()
    assert Bundle.load(bundle.folder).manifest == bundle.manifest
    assert [path.name for path in bundle.folder.parent.iterdir()] == [bundle.folder.name]


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(InputError, match="contains files but no bundle"):
        check_target(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        check_target(tmp_path / "holiday.jpg")
    with pytest.raises(InputError, match=r"--out .*: cannot be used"):
        check_target(tmp_path / ("x" * 5000))


def test_manifests_of_earlier_formats_are_read(bundle: Bundle) -> None:
    """Format 3 spelled the key `quantisation`; formats 1 and 2 lack it and `attention`."""
    content = json.loads((bundle.folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    del content["sha256"], content["quantization"], content["attention"]
    assert Manifest.from_json({**content, "format_version": 1}).quantization is None
    made = {"parent": "a", "parent_sha256": "b", "parent_precision": "fp16", "clips": {}, "settings": {}, "share": 0.9}
    read = Manifest.from_json({**content, "format_version": 3, "quantisation": {**made, "kept": ["conv_in.weight"]}})
    assert read.quantization is not None
    assert (read.quantization.kept, read.arithmetic) == (("conv_in.weight",), "fp16")
