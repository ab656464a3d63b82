"""Which bundle runs without `--bundle`, and `latentsync-trt setup --use`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, CHOICE_NAME, find_bundle
from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.cli import main
from latentsync_trt.cli.export import note_on_default
from latentsync_trt.errors import BundleError
from tests.bundles import make_bundle
from tests.clips import write_clip


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of bundles, in a path with spaces and letters that are not ASCII."""
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, str(folder := tmp_path / "Žena's checkpoints [1]"))
    folder.mkdir()
    return folder


@pytest.fixture
def two(checkpoints: Path) -> Path:
    """A folder with two bundles."""
    make_bundle(checkpoints / "1.6-512-fp16", "fp16")
    make_bundle(checkpoints / "1.6-512-int8", "int8")
    return checkpoints


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_without_a_single_bundle_the_cures_are_named(checkpoints: Path, tmp_path: Path) -> None:
    video, audio = map(str, write_clip(tmp_path, 2))
    commands = ("sync", video, audio), ("build",), ("bench",)
    for words in commands:
        code, out, err = run(*words)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "`latentsync-trt setup" in err
    for name in ("one", "two"):
        make_bundle(checkpoints / name)
    for words in commands:
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        for part in (
            "one (model 1.6, 64 px, fp32), two (",
            "`--bundle NAME`",
            "`latentsync-trt setup --use",
        ):
            assert part in err


def test_the_only_bundle_runs_and_is_named(checkpoints: Path) -> None:
    folder = make_bundle(checkpoints / "1.6-512-fp16").folder
    assert find_bundle(None) == (folder, "the only exported one")
    assert "1.6-512-fp16 (the only exported one)" in run("build", "--provider", "cpu")[2]


def test_the_choice_is_remembered(two: Path) -> None:
    code, out, err = run("setup", "--use", "1.6-512-fp16")
    assert (code, err) == (0, "")
    assert out.startswith(f"{two / '1.6-512-fp16'}: ")
    assert "(model 1.6, 64 px, fp16)" in out
    assert find_bundle(None) == (two / "1.6-512-fp16", "chosen with `setup --use`")
    assert "1.6-512-fp16 (chosen with `setup --use`)" in run("build", "--provider", "cpu")[2]
    assert find_bundle("1.6-512-int8")[0] == two / "1.6-512-int8"
    # a path, as the shell completes it
    assert run("setup", "--use", str(two / "1.6-512-int8"))[0] == 0
    assert find_bundle(None)[0] == two / "1.6-512-int8"
    assert sorted(path.name for path in two.iterdir()) == [
        "1.6-512-fp16",
        "1.6-512-int8",
        CHOICE_NAME,
    ]
    verdict = json.loads(run("doctor", "--json")[1])["verdict"]
    assert "1.6-512-int8" in verdict["text"]


def test_a_new_bundle_says_how_to_run_it(two: Path, tmp_path: Path) -> None:
    elsewhere = make_bundle(tmp_path / "1.6-512-fp16").folder
    new = two / "1.6-512-int8"
    assert run("setup", "--use", "1.6-512-fp16")[0] == 0
    assert f"--bundle {elsewhere}" in note_on_default(elsewhere)
    assert "setup --use 1.6-512-int8" in note_on_default(new)
    assert run("setup", "--use", "1.6-512-int8")[0] == 0
    assert note_on_default(new) == ""


def test_a_choice_that_is_gone_is_an_error(two: Path) -> None:
    run("setup", "--use", "1.6-512-int8")
    (two / "1.6-512-int8").rename(two / "renamed")
    with pytest.raises(BundleError, match=r"'1.6-512-int8', .*renamed") as caught:
        find_bundle(None)
    assert caught.value.usage
    assert run("setup", "--use", "1.6-512-fp16")[0] == 0
    assert find_bundle(None)[0] == two / "1.6-512-fp16"


def test_a_damaged_choice_is_an_error(two: Path) -> None:
    for content in (b"", b"../elsewhere", b"\xff\xfe"):
        (two / CHOICE_NAME).write_bytes(content)
        with pytest.raises(BundleError, match="setup --use NAME"):
            find_bundle(None)


def test_only_a_sound_bundle_of_the_folder_can_be_chosen(two: Path, tmp_path: Path) -> None:
    same_name = make_bundle(tmp_path / "1.6-512-fp16").folder
    for name in ("missing", "demo", "", "http://host/x", "x" * 5000, str(same_name)):
        code, out, err = run("setup", "--use", name)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
    (two / "1.6-512-int8" / MANIFEST_NAME).write_text("{}")
    assert run("setup", "--use", "1.6-512-int8")[0] == 1
    assert not (two / CHOICE_NAME).exists()
