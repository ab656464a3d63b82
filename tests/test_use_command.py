"""Which bundle runs without `--bundle`, and `latentsync-trt use`."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE, CHOICE_NAME, find_bundle
from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.cli import main
from latentsync_trt.cli.model import note_on_default
from latentsync_trt.errors import BundleError
from tests.bundles import make_bundle
from tests.clips import numbered, write_sound, write_video


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of bundles, in a path with spaces and letters that are not ASCII."""
    folder = tmp_path / "Žena's checkpoints [1]"
    folder.mkdir()
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, str(folder))
    return folder


@pytest.fixture
def two(checkpoints: Path) -> Path:
    """A folder with two bundles."""
    make_bundle(checkpoints / "1.6-512-fp16", "fp16")
    make_bundle(checkpoints / "1.6-512-int8", "int8")
    return checkpoints


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for a video and speech: they are checked before the bundle."""
    folder = tmp_path_factory.mktemp("clip")
    video, speech = write_video(folder / "in.mp4", numbered(2)), write_sound(folder / "in.wav", 0.08)
    return "--video", str(video), "--audio", str(speech)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", ("sync", "build", "bench", "calibrate"))
def test_without_a_single_bundle_the_cures_are_named(checkpoints: Path, clip: tuple[str, ...], command: str) -> None:
    arguments = clip if command in ("sync", "calibrate") else ()
    code, out, err = run(command, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "`latentsync-trt setup`" in err
    assert "--bundle demo" in err
    for name in ("one", "two"):
        make_bundle(checkpoints / name)
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    for words in ("2 exported bundles: one (model 1.6, 64 px, fp32), two (", "`--bundle NAME`", "`latentsync-trt use"):
        assert words in err


def test_the_only_bundle_runs_and_is_named(checkpoints: Path) -> None:
    folder = make_bundle(checkpoints / "1.6-512-fp16").folder
    assert find_bundle(None) == (folder, "the only exported one")
    (checkpoints / ".latentsync-0123").mkdir()
    shutil.copy(folder / MANIFEST_NAME, checkpoints / ".latentsync-0123")
    assert find_bundle(None)[0] == folder
    assert "bundle 1.6-512-fp16 (the only exported one)" in run("build", "--provider", "cpu")[2]


def test_the_choice_is_remembered(two: Path) -> None:
    code, out, err = run("use", "1.6-512-fp16")
    assert (code, err) == (0, "")
    assert out == f"{two / '1.6-512-fp16'}: runs where no --bundle is given (model 1.6, 64 px, fp16)\n"
    assert find_bundle(None) == (two / "1.6-512-fp16", "chosen with `use`")
    assert "bundle 1.6-512-fp16 (chosen with `use`)" in run("build", "--provider", "cpu")[2]
    assert find_bundle("1.6-512-int8")[0] == two / "1.6-512-int8"
    make_bundle(two / "newer")
    assert find_bundle(None)[0] == two / "1.6-512-fp16"
    assert run("use", str(two / "1.6-512-int8"))[0] == 0  # a path, as the shell completes it
    assert find_bundle(None)[0] == two / "1.6-512-int8"
    assert sorted(path.name for path in two.iterdir()) == ["1.6-512-fp16", "1.6-512-int8", CHOICE_NAME, "newer"]


def test_use_without_a_name_shows_choice_and_candidates(two: Path) -> None:
    code, out, _ = run("use")
    assert code == 0
    assert out.splitlines()[:2] == [
        "  1.6-512-fp16 (model 1.6, 64 px, fp16)",
        "  1.6-512-int8 (model 1.6, 64 px, int8)",
    ]
    assert "`latentsync-trt use NAME`" in out
    run("use", "1.6-512-int8")
    assert run("use")[1].splitlines()[1] == "* 1.6-512-int8 (model 1.6, 64 px, int8)"
    assert f"{two}: 1.6-512-int8 runs where no --bundle is given; it is chosen with `use`" in run("use")[1]


def test_a_choice_that_is_gone_is_an_error(two: Path) -> None:
    run("use", "1.6-512-int8")
    (two / "1.6-512-int8").rename(two / "renamed")
    with pytest.raises(BundleError, match=r"names '1.6-512-int8', but there is no such bundle; .*renamed") as caught:
        find_bundle(None)
    assert caught.value.usage
    shutil.rmtree(two / "renamed")
    with pytest.raises(BundleError, match="`latentsync-trt use NAME`"):
        find_bundle(None)  # although only one is left
    assert run("use")[0] == 0
    assert run("use", "1.6-512-fp16")[0] == 0
    assert find_bundle(None)[0] == two / "1.6-512-fp16"


@pytest.mark.parametrize("content", [b"", b"\n", b"../elsewhere", b"\xff\xfe", b"a\x00b", b".."])
def test_a_damaged_choice_is_an_error(two: Path, content: bytes) -> None:
    (two / CHOICE_NAME).write_bytes(content)
    with pytest.raises(BundleError, match="use NAME"):
        find_bundle(None)


@pytest.mark.skipif(os.name == "nt", reason="names that Windows has not")
@pytest.mark.parametrize(
    ("name", "can_be_chosen"),
    [("👨‍👩‍👧 a\u00a0b\tc", True), ("link", True), (".hidden", False), ("not Unicode \udcff", False)],
)
def test_what_can_be_chosen_is_found_again(two: Path, name: str, can_be_chosen: bool) -> None:
    if name == "link":
        (two / name).symlink_to(two / "1.6-512-int8", target_is_directory=True)
    else:
        make_bundle(two / name)
    code, _, err = run("use", name)
    assert (code == 0) is can_be_chosen
    if can_be_chosen:
        assert find_bundle(None) == (two / name, "chosen with `use`")
    else:
        assert err.startswith("error: ")
        assert not (two / CHOICE_NAME).exists()


@pytest.mark.parametrize("name", ["missing", "demo", "", "http://host/x", "x" * 5000])
def test_only_a_bundle_of_the_folder_can_be_chosen(two: Path, name: str) -> None:
    code, out, err = run("use", name)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert not (two / CHOICE_NAME).exists()


def test_bundles_elsewhere_and_damaged_ones_cannot_be_chosen(two: Path, tmp_path: Path) -> None:
    elsewhere = make_bundle(tmp_path / "elsewhere").folder
    same_name = make_bundle(tmp_path / "1.6-512-fp16").folder
    for folder in (elsewhere, same_name):
        code, _, err = run("use", str(folder))
        assert (code, "`--bundle`" in err) == (2, True)
    (two / "1.6-512-int8" / MANIFEST_NAME).write_text("{}")
    assert run("use", "1.6-512-int8")[0] == 1
    assert "1.6-512-int8 (damaged)" in run("use")[1]
    assert not (two / CHOICE_NAME).exists()


def test_a_choice_that_cannot_be_written_is_an_error(two: Path) -> None:
    (two / CHOICE_NAME).mkdir()
    code, _, err = run("use", "1.6-512-fp16")
    assert code == 1
    assert f"{two / CHOICE_NAME}: cannot be written" in err
    assert sorted(path.name for path in two.iterdir()) == ["1.6-512-fp16", "1.6-512-int8", CHOICE_NAME]


def test_new_bundles_come_with_a_note_on_what_runs(checkpoints: Path, tmp_path: Path) -> None:
    first = make_bundle(checkpoints / "first").folder
    assert note_on_default(first) == ""
    second = make_bundle(checkpoints / "second").folder
    assert note_on_default(second).startswith("without --bundle, none runs; ")
    run("use", "first")
    assert note_on_default(second).startswith("without --bundle, first runs; ")
    assert "`latentsync-trt use second`" in note_on_default(second)
    assert note_on_default(first) == ""
    elsewhere = make_bundle(tmp_path / "elsewhere").folder
    assert note_on_default(elsewhere).startswith(f"`--bundle {elsewhere}` runs it")


def test_bundles_are_shown_by_the_name_that_finds_them(checkpoints: Path) -> None:
    elsewhere = make_bundle(checkpoints.parent / "elsewhere", "fp16").folder
    for name, shown in {"demo": "demo (built in)", str(elsewhere): f"{elsewhere} (named)"}.items():
        assert f"bundle {shown}" in run("build", "--provider", "cpu", "--bundle", name)[2]
