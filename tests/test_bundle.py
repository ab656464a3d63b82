"""Bundles are found, read back as written, replaced as a whole, and refused if damaged."""

import hashlib
import importlib.metadata
import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import __version__
from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, demo_folder, find_bundle
from latentsync_trt.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    REQUIRED_GRAPHS,
    Bundle,
    check_target,
    files_of,
    read_manifest,
    tool_versions,
)
from latentsync_trt.cli import main
from latentsync_trt.errors import BundleError, InputError, MissingDependency, OutputError
from latentsync_trt.files import published_folder
from tests.bundles import make_bundle
from tests.small import small_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bündle with spaces")


def reseal(folder: Path, place: tuple[Any, ...], value: Any) -> None:
    """Edits a manifest and its hash, as who knows of it would."""
    content = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    node = content
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    del content["sha256"]
    sha256 = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST_NAME).write_text(json.dumps(content | {"sha256": sha256}), encoding="utf-8")


def test_written_bundle_is_read_back(bundle: Bundle) -> None:
    again = Bundle.load(bundle.folder)
    assert again.manifest == bundle.manifest
    assert again.manifest.graphs["denoise_step"].inputs[0].shape == ("windows", 4)
    assert again.manifest.latent_px == 8
    assert again.graph_path("vae_encoder").read_text().endswith("vae_encoder")
    assert len({bundle.graph_hash(name) for name in REQUIRED_GRAPHS}) == len(REQUIRED_GRAPHS)


@pytest.mark.parametrize(("name", "always"), [("net.weights", False), ("denoise_step.onnx", True)])
def test_graphs_are_compared_with_their_hashes_always_and_weights_when_asked(
    bundle: Bundle, name: str, always: bool
) -> None:
    path = bundle.folder / name
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    for verify in (True, False):
        with pytest.raises(BundleError, match=f"{name} was changed") if verify or always else nullcontext():
            Bundle.load(bundle.folder, verify=verify)


def test_a_lost_or_cut_file_is_noticed_without_hashing(bundle: Bundle) -> None:
    weights = bundle.folder / "net.weights"
    for change, message in ((lambda: weights.write_bytes(b"short"), "instead of 256"), (weights.unlink, "is missing")):
        change()
        with pytest.raises(BundleError, match=message):
            Bundle.load(bundle.folder, verify=False)


@given(data=st.data())
def test_edits_of_a_manifest(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "edited"
    content = (small_bundle() / MANIFEST_NAME).read_bytes()
    folder.mkdir(exist_ok=True)
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from([b"", b"0", b"}", b"\xff", b'"a"', b"[" * 10_000]))
    (folder / MANIFEST_NAME).write_bytes(content[:at] + change + content[at + data.draw(st.integers(0, 200)) :])
    try:
        assert read_manifest(folder) == read_manifest(small_bundle())  # blanks
    except BundleError as error:
        assert str(folder) in str(error)


OUTSIDE = "which is no file of this folder"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("format_version",), FORMAT_VERSION + 1, f"reads {FORMAT_VERSION}; export the model again"),
        (("frames",), 10**9, "frames"),
        (("resolution_px",), 2**40, "resolution_px"),
        (("precision",), "fp64", "precision"),
        (("graphs", "vae_encoder", "inputs", 0, "shape", 1), 2.5, "graphs"),
        (("files", "../bundle/net.weights"), {"sha256": "0" * 64, "bytes": 256}, OUTSIDE),
        (("graphs", "vae_encoder", "weights"), "../net.weights", OUTSIDE),
        (("graphs", "vae_encoder", "forms"), {"cuda": "gone.onnx"}, OUTSIDE),
    ],
)
def test_a_wrong_field_is_named(bundle: Bundle, place: tuple[Any, ...], value: Any, message: str) -> None:
    reseal(bundle.folder, place, value)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.load(bundle.folder)
    assert not caught.value.usage


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message; contents of up to 127 bytes."""
    tag = number << 3 | 2
    return bytes([tag] if tag < 128 else [tag & 127 | 128, tag >> 7]) + bytes([len(content)]) + content


KEY, VALUE = field(1, b"location"), field(2, b"../other")
TENSOR = field(13, KEY + VALUE)


@pytest.mark.parametrize(
    "added",
    [
        *(
            field(7, field(5, field(13, entry)))  # an initializer of a graph, which is merged with the first one
            for entry in (
                KEY + VALUE,
                VALUE + KEY,
                KEY + field(3, b"of a later version") + VALUE,
                KEY + bytes([3 << 3, 5]) + VALUE,
                KEY + field(2, b"vae.weights") + VALUE,
                field(1, b"offset") + KEY + VALUE,
                b"\x8a\x00" + KEY[1:] + VALUE,  # a longer form of the same tag
            )
        ),
        field(7, field(1, field(5, field(5, TENSOR)))),  # a constant
        field(7, field(1, field(5, field(10, TENSOR)))),
        field(7, field(1, field(5, field(6, field(5, TENSOR))))),  # a branch
        field(7, field(1, field(5, field(22, field(1, TENSOR))))),
        field(7, field(15, field(2, TENSOR))),
        field(20, field(1, field(5, TENSOR))),
        field(25, field(7, field(5, field(5, TENSOR)))),
        field(25, field(11, field(5, TENSOR))),
        field(7, field(1, field(4, b"EPContext") + field(5, field(1, b"ep_cache_context") + field(4, b"../other")))),
    ],
)
def test_weights_and_engines_that_the_manifest_does_not_name_are_refused(tmp_path: Path, added: bytes) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle(), folder)
    Bundle.load(folder)
    graph = folder / "vae_encoder.onnx"
    graph.write_bytes(graph.read_bytes() + added)
    assert "../other" in str(onnx.load(graph, load_external_data=False))
    reseal(folder, ("files", graph.name), asdict(files_of(folder)[graph.name]))
    with pytest.raises(BundleError, match=r"vae_encoder\.onnx: reads a file that the manifest does not name"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    "added", [b"\x3a", b"\x3a\x05abc", b"\x3b\x3c", b"\xff" * 20, b"\xba\x80\x80\x80\x10" + field(7, TENSOR)[1:]]
)
def test_what_is_no_graph_is_refused_whatever_its_name(tmp_path: Path, added: bytes) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle(), folder)
    graph = (folder / "vae_encoder.onnx").rename(folder / "vae_encoder.bin")
    graph.write_bytes(graph.read_bytes() + added)
    files = {name: asdict(entry) for name, entry in files_of(folder).items() if name != MANIFEST_NAME}
    reseal(folder, ("graphs", "vae_encoder", "file"), graph.name)
    reseal(folder, ("files",), files)
    with pytest.raises(BundleError, match=r"vae_encoder\.bin: is no graph"):
        Bundle.load(folder)


def test_what_is_no_manifest(bundle: Bundle) -> None:
    (bundle.folder / MANIFEST_NAME).write_text("[" * 2_000_000)
    with pytest.raises(BundleError, match=r"manifest\.json: has more than 1000000 bytes"):
        Bundle.load(bundle.folder)
    with pytest.raises(BundleError, match="not a bundle") as caught:
        Bundle.load(bundle.folder / "net.weights")
    assert caught.value.usage
    (bundle.folder / MANIFEST_NAME).unlink()
    (bundle.folder / MANIFEST_NAME).mkdir()
    with pytest.raises(BundleError, match="cannot be read"):
        Bundle.load(bundle.folder)


@pytest.mark.skipif(os.name == "nt", reason="links need a right that users of Windows lack")
def test_links_and_folders_without_write_permission_are_read(bundle: Bundle, tmp_path: Path) -> None:
    bundle.folder.chmod(0o500)
    (tmp_path / "link").symlink_to(bundle.folder, target_is_directory=True)
    linked_files = tmp_path / "linked files"
    linked_files.mkdir()
    for path in bundle.folder.iterdir():
        (linked_files / path.name).symlink_to(path)
    for folder in (tmp_path / "link", linked_files):
        assert Bundle.load(folder).manifest == bundle.manifest
    bundle.folder.chmod(0o700)


def found(checkpoints: Path | str, name: str) -> Result:
    """A command that opens a bundle, where `checkpoints` is the folder of bundles."""
    command = ["build", "--provider", "cpu", "--bundle", name]
    return CliRunner(env={CHECKPOINTS_VARIABLE: str(checkpoints)}).invoke(main, command)


def test_finding_by_path_and_name(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "first").folder
    make_bundle(tmp_path / "second")
    assert found(tmp_path, "first").exit_code == 0
    assert find_bundle(str(folder))[0] == folder
    assert find_bundle("demo") == (demo_folder(), "built in")
    for name in ("nothing", "x" * 5000, "first/manifest.json", "..", "bündle [bold]:C"):
        missing = found(tmp_path, name)
        assert (missing.exit_code, "found: demo, first, second" in missing.stderr) == (2, True), missing.stderr
    for name, words in (("", "is empty"), ("https://host/bundle", "https://host/bundle: is a URL"), ("a\0b", "NUL")):
        with pytest.raises(InputError, match=words):
            find_bundle(name)


def test_the_folder_of_bundles_may_be_below_the_home_folder() -> None:
    assert str(Path.home() / "models") in found("~/models", "nothing").stderr
    assert f"choose another place with {CHECKPOINTS_VARIABLE}" in found("~no-such-user/models", "nothing").stderr


def test_a_published_folder_replaces_an_earlier_one_unless_it_fails(bundle: Bundle) -> None:
    with pytest.raises(OutputError), published_folder(bundle.folder):
        raise OSError(28, "disk full")
    assert Bundle.load(bundle.folder).manifest == bundle.manifest
    with published_folder(bundle.folder) as staged:
        (staged / "new").touch()
        assert Bundle.load(bundle.folder).manifest == bundle.manifest
    assert [path.name for path in bundle.folder.iterdir()] == ["new"]
    assert [path.name for path in bundle.folder.parent.iterdir()] == [bundle.folder.name]


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(InputError, match="contains files but no bundle"):
        check_target(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        check_target(tmp_path / "holiday.jpg")
    with pytest.raises(InputError, match=r"--output .*: cannot be used"):
        check_target(tmp_path / ("x" * 5000))


def test_versions_of_the_tools() -> None:
    versions = {"latentsync-trt": __version__, "numpy": importlib.metadata.version("numpy")}
    assert tool_versions(["numpy"], extra="export") == versions
    with pytest.raises(MissingDependency, match=r"^no-such-package: .*pip install 'latentsync-trt\[export\]'"):
        tool_versions(["numpy", "no-such-package"], extra="export")
