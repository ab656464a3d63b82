"""Bundles that were edited, cut, or copied by half end in a `BundleError`, or load; nothing else escapes."""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.bundle import manifest as manifest_module
from latentsync_trt.bundle.manifest import FORMAT_VERSION, MANIFEST_NAME, Bundle, read_manifest
from latentsync_trt.errors import BundleError
from latentsync_trt.files import sealed_text
from latentsync_trt.runtime.compiler.profiles import input_shapes
from tests.bundles import make_bundle
from tests.small import small_bundle

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.sampled_from(["", "..", "/etc/passwd", "a\0b", "\ud800", "x" * 400, "fp64", "net.weights", "vae_encoder.onnx"])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
PLACES = [
    *("name", "model", "resolution_px", "frames", "precision", "shapes", "audio_layers", "audio_width", "opset"),
    *("unet", "graphs", "files", "ranges", "sources", "tools", "verification", "notes", "attention", "quantization"),
    *("format_version", "sha256"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundles") / "bundle").folder


@pytest.fixture(scope="module")
def intact(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    return content


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in parsed JSON, with each of its keys."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from places(node[key])


def sealed(content: dict[str, Any]) -> str:
    """With the hash that fits, as an editor who knows of it would write it."""
    return sealed_text({key: value for key, value in content.items() if key != "sha256"})


def load_or_refuse(folder: Path) -> Bundle | None:
    try:
        bundle = Bundle.load(folder)
    except BundleError as error:
        assert str(folder) in str(error)
        return None
    # What every command does first with a bundle that loads.
    for name, entry in bundle.manifest.graphs.items():
        assert bundle.graph_path(name).is_file()
        assert bundle.graph_hash(name)
        input_shapes(entry, bundle.manifest.ranges)
    assert bundle.manifest.latent_px >= 0
    return bundle


@given(data=st.data())
def test_edits_of_a_manifest(folder: Path, intact: dict[str, Any], data: st.DataObject) -> None:
    content = copy.deepcopy(intact)
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(content))
        node, key = data.draw(st.sampled_from(range(len(found))).map(found.__getitem__))
        edit = data.draw(st.sampled_from(["replace", "delete", "add"]))
        if edit == "delete":
            del node[key]
        elif edit == "replace" or isinstance(node, list):
            node[key] = data.draw(JSON)
        else:
            node[data.draw(st.text(max_size=8) | st.sampled_from(PLACES))] = data.draw(JSON)
        if not content:
            break
    (folder / MANIFEST_NAME).write_text(sealed(content), encoding="utf-8")
    load_or_refuse(folder)


@given(value=JSON)
def test_any_json_in_place_of_a_manifest(folder: Path, value: Any) -> None:
    text = sealed(value | {"format_version": FORMAT_VERSION}) if isinstance(value, dict) else json.dumps(value)
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    assert load_or_refuse(folder) is None


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"format_version": 1e400}', "\ufeff{}"]
)
def test_json_that_python_does_not_parse(folder: Path, text: str) -> None:
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    assert load_or_refuse(folder) is None


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("resolution_px",), "512", "resolution_px: '512' is not int"),
        (("resolution_px",), 0, "resolution_px: 0 is not positive"),
        (("precision",), "fp64", "precision: 'fp64' is not 'fp32' or 'fp16'"),
        (("graphs", "vae_encoder", "weights"), "gone.weights", "graphs.vae_encoder: 'gone.weights' is not among"),
        (("graphs", "vae_encoder", "forms"), {"cuda": "gone.onnx"}, "graphs.vae_encoder: 'gone.onnx' is not among"),
        (("ranges", "windows", "minimum"), 9, "does not ascend"),
        (("ranges",), {}, "x has a dimension 'windows' without a range"),
        (("files", "net.weights", "bytes"), True, "files.net.weights.bytes: True is not int"),
        (("verification",), {"vae_encoder": "small"}, "verification.vae_encoder: 'small' is not float"),
        (("quantization",), {"kept": []}, "quantization.parent: is missing"),
        (("graphs", "vae_encoder", "kind"), 1, "graphs.vae_encoder.kind: is no known field"),
        (("graphs", "vae_encoder", "inputs"), {}, "graphs.vae_encoder.inputs: {} is not tuple"),
        (("graphs", "vae_encoder", "inputs", 0, "shape", 1), 2.5, "inputs.0.shape.1: 2.5 is not int"),
    ],
)
def test_a_wrong_field_is_named(
    folder: Path, intact: dict[str, Any], place: tuple[Any, ...], value: Any, words: str
) -> None:
    content = copy.deepcopy(intact)
    node: Any = content
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    (folder / MANIFEST_NAME).write_text(sealed(content), encoding="utf-8")
    with pytest.raises(BundleError) as caught:
        read_manifest(folder)
    assert words in str(caught.value)
    assert not caught.value.usage


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle").folder
    content = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    content["files"]["../bundle/net.weights"] = content["files"]["net.weights"]
    (folder / MANIFEST_NAME).write_text(sealed(content), encoding="utf-8")
    with pytest.raises(BundleError, match="not a plain file name"):
        Bundle.load(folder)


def test_files_that_are_not_as_written(tmp_path: Path) -> None:
    def copied(name: str) -> Path:
        return Path(shutil.copytree(small_bundle(), tmp_path / name))

    renamed = copied("renamed")
    (renamed / "vae.weights").unlink()
    (renamed / "vae.weights").mkdir()
    with pytest.raises(BundleError, match=r"vae\.weights: missing"):
        Bundle.load(renamed)
    folder = copied("manifest is a folder")
    (folder / MANIFEST_NAME).unlink()
    (folder / MANIFEST_NAME).mkdir()
    with pytest.raises(BundleError, match="cannot be read"):
        Bundle.load(folder)
    with pytest.raises(BundleError, match="not a bundle") as caught:
        Bundle.load(renamed / "unet.weights")
    assert caught.value.usage


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_bundle(tmp_path / "bundle").folder

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(manifest_module, "sha256_file", refuse)
    with pytest.raises(BundleError, match=r"\.onnx: cannot be read \(Permission denied\)"):
        Bundle.load(folder)


@pytest.mark.skipif(os.name == "nt", reason="links need a right that users of Windows lack")
def test_links_and_folders_without_write_permission_are_read(tmp_path: Path) -> None:
    original = make_bundle(tmp_path / "original").folder
    for path in original.iterdir():
        path.chmod(0o400)
    original.chmod(0o500)
    (tmp_path / "link").symlink_to(original, target_is_directory=True)
    assert Bundle.load(tmp_path / "link").manifest == read_manifest(original)
    linked_files = tmp_path / "linked files"
    linked_files.mkdir()
    for path in original.iterdir():
        (linked_files / path.name).symlink_to(path)
    assert Bundle.load(linked_files).manifest == read_manifest(original)
    original.chmod(0o700)
