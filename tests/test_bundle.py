"""Bundles are found, read back as written, replaced as a whole, and refused if damaged."""

import hashlib
import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, demo_folder, find_bundle
from latentsync_trt.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    REQUIRED_GRAPHS,
    Bundle,
    check_target,
    files_of,
)
from latentsync_trt.cli import main
from latentsync_trt.errors import BundleError, InputError, OutputError
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
    assert len({bundle.graph_hash(name) for name in REQUIRED_GRAPHS}) == len(REQUIRED_GRAPHS)


@pytest.mark.parametrize(("name", "always"), [("net.weights", False), ("denoise_step.onnx", True)])
def test_graphs_are_compared_with_their_hashes_always_and_weights_when_asked(
    bundle: Bundle, name: str, always: bool
) -> None:
    path = bundle.folder / name
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    for verify in (True, False):
        with (
            pytest.raises(BundleError, match=f"{name} was changed")
            if verify or always
            else nullcontext()
        ):
            Bundle.load(bundle.folder, verify=verify)


def test_a_lost_or_cut_file_is_noticed_without_hashing(bundle: Bundle) -> None:
    weights = bundle.folder / "net.weights"
    for change, message in (
        (lambda: weights.write_bytes(b"short"), "instead of 256"),
        (weights.unlink, "is missing"),
    ):
        change()
        with pytest.raises(BundleError, match=message):
            Bundle.load(bundle.folder, verify=False)


OUTSIDE = "which is no file of this folder"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            ("format_version",),
            FORMAT_VERSION + 1,
            f"reads {FORMAT_VERSION}; export the model again",
        ),
        (("frames",), 10**9, "frames"),
        (("graphs", "vae_encoder", "inputs", 0, "shape", 1), 2.5, "graphs"),
        (("files", "../bundle/net.weights"), {"sha256": "0" * 64, "bytes": 256}, OUTSIDE),
        (("graphs", "vae_encoder", "weights"), "../net.weights", OUTSIDE),
        (("graphs", "vae_encoder", "forms"), {"cuda": "gone.onnx"}, OUTSIDE),
    ],
)
def test_a_wrong_field_is_named(
    bundle: Bundle, place: tuple[Any, ...], value: Any, message: str
) -> None:
    reseal(bundle.folder, place, value)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.load(bundle.folder)
    assert not caught.value.usage


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message; contents of up to 127 bytes."""
    tag = number << 3 | 2
    return (
        bytes([tag] if tag < 128 else [tag & 127 | 128, tag >> 7]) + bytes([len(content)]) + content
    )


def changed_graph(folder: Path, added: bytes) -> Path:
    """Makes a bundle in `folder` with a graph of another name, at whose end something was added."""
    shutil.copytree(small_bundle(), folder, dirs_exist_ok=True)
    graph = (folder / "vae_encoder.onnx").rename(folder / "vae_encoder.bin")
    reseal(folder, ("graphs", "vae_encoder", "file"), graph.name)
    files = {
        name: asdict(entry) for name, entry in files_of(folder).items() if name != MANIFEST_NAME
    }
    reseal(folder, ("files",), files)
    Bundle.load(folder)
    graph.write_bytes(graph.read_bytes() + added)
    reseal(folder, ("files", graph.name), asdict(files_of(folder)[graph.name]))
    return graph


KEY = field(1, b"location")
VALUE = field(2, b"../other")
TENSOR = field(13, KEY + VALUE)


@pytest.mark.parametrize(
    "added",
    [
        *(
            # an initializer of a graph, which is merged with the first one
            field(7, field(5, field(13, entry)))
            for entry in (
                VALUE + KEY,
                KEY + field(3, b"of a later version") + VALUE,
                KEY + field(2, b"vae.weights") + VALUE,
                field(1, b"offset") + KEY + VALUE,
                b"\x8a\x00" + KEY[1:] + VALUE,  # a longer form of the same tag
            )
        ),
        field(7, field(1, field(5, field(5, TENSOR)))),  # a constant
        field(7, field(1, field(5, field(6, field(5, TENSOR))))),  # a branch
        field(7, field(15, field(2, TENSOR))),  # a sparse initializer
        field(25, field(7, field(5, field(5, TENSOR)))),  # a function
        field(
            7,
            field(
                1,
                field(4, b"EPContext")
                + field(5, field(1, b"ep_cache_context") + field(4, b"../other")),
            ),
        ),
    ],
)
def test_weights_and_engines_that_the_manifest_does_not_name_are_refused(
    tmp_path: Path, added: bytes
) -> None:
    graph = changed_graph(tmp_path, added)
    assert "../other" in str(onnx.load(graph, load_external_data=False))
    with pytest.raises(BundleError, match=r"vae_encoder\.bin: reads a file "):
        Bundle.load(tmp_path)


@pytest.mark.parametrize(
    "added", [b"\x3a\x05abc", b"\xff" * 20, b"\xba\x80\x80\x80\x10" + field(7, TENSOR)[1:]]
)
def test_what_is_no_graph_is_refused_whatever_its_name(tmp_path: Path, added: bytes) -> None:
    changed_graph(tmp_path, added)
    with pytest.raises(BundleError, match=r"vae_encoder\.bin: is no graph"):
        Bundle.load(tmp_path)


def test_what_is_no_manifest(bundle: Bundle) -> None:
    for content in (b"", b"{", b"\xff", b"[" * 100_000, b"[" * 2_000_000):
        (bundle.folder / MANIFEST_NAME).write_bytes(content)
        with pytest.raises(BundleError, match=r"manifest\.json: "):
            Bundle.load(bundle.folder)
    with pytest.raises(BundleError, match="not a bundle") as caught:
        Bundle.load(bundle.folder / "net.weights")
    assert caught.value.usage


@pytest.mark.skipif(os.name == "nt", reason="links need a right that users of Windows lack")
def test_links_and_folders_without_write_permission_are_read(
    bundle: Bundle, tmp_path: Path
) -> None:
    bundle.folder.chmod(0o500)
    (tmp_path / "link").symlink_to(bundle.folder, target_is_directory=True)
    linked_files = tmp_path / "linked files"
    linked_files.mkdir()
    for path in bundle.folder.iterdir():
        (linked_files / path.name).symlink_to(path)
    for folder in (tmp_path / "link", linked_files):
        assert Bundle.load(folder).manifest == bundle.manifest
    bundle.folder.chmod(0o700)


def test_finding_by_path_and_name(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "first").folder
    make_bundle(tmp_path / "second")
    runner = CliRunner(env={CHECKPOINTS_VARIABLE: str(tmp_path)})
    command = ["build", "--provider", "cpu", "--bundle"]
    assert runner.invoke(main, [*command, "first"]).exit_code == 0
    assert find_bundle(str(folder))[0] == folder
    assert find_bundle("demo") == (demo_folder(), "built in")
    for name in ("nothing", "x" * 5000, "..", "bündle [bold]:C"):
        missing = runner.invoke(main, [*command, name])
        assert (missing.exit_code, "demo, first, second" in missing.stderr) == (2, True), (
            missing.stderr
        )
    with pytest.raises(InputError, match="bundle: is a URL"):
        find_bundle("https://host/bundle")


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
