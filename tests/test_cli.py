"""The command line: what it lists, how it fails, what demo says."""

from pathlib import Path

import cv2
import pytest
from click.testing import CliRunner

from latentsync_trt.cli import COMMANDS, main
from latentsync_trt.cli.sync import default_output
from latentsync_trt.errors import BundleError, ProviderUnavailable
from latentsync_trt.runtime.providers.select import select_provider, why_unavailable
from latentsync_trt.runtime.sessions.session import Session
from tests.clips import decoded, write_clip, write_sound
from tests.small import small_bundle


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert out.startswith(f"Usage: main {command}")
    assert command in run("--help")[1]


@pytest.mark.parametrize(
    "arguments",
    [["unknown"], ["export", "--resolution", "500"], ["export", "--model", "2"], ["sync", "--video", "x.mp4"]],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2


def test_missing_checkpoints_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(tmp_path))
    code, _, err = run("export", "--model", "1.6", "-q")
    assert code == 1
    assert "hf download ByteDance/LatentSync-1.6" in err
    assert len(err.strip().splitlines()) == 1


def test_outputs_are_named_after_the_video() -> None:
    assert default_output(Path("a") / "clip.mov", lossless=False) == Path("a") / "clip-synced.mp4"
    assert default_output(Path("clip.mov"), lossless=True) == Path("clip-synced.mkv")


def test_a_named_provider_is_a_demand() -> None:
    if why_unavailable("cuda") is None:
        pytest.skip("CUDA runs here")
    with pytest.raises(ProviderUnavailable, match="cuda: "):
        select_provider("cuda")
    code, _, err = run(
        "sync", "--video", "a.mp4", "--audio", "b.wav", "--bundle", str(small_bundle()), "--provider", "cuda", "-q"
    )
    assert code == 1
    assert "install" in err


def test_demo_writes_source_and_result(tmp_path: Path) -> None:
    speech = write_sound(tmp_path / "short.wav", 0.4)
    code, out, err = run("demo", "--out", str(tmp_path / "demo"), "--audio", str(speech), "--preset", "fast")
    assert code == 0, err
    assert "face in 10" in out
    assert "the built-in model is" in err
    assert "lips: opening follows loudness at r = " in out
    assert len(decoded(tmp_path / "demo" / "source.mp4")) == 10
    assert len(decoded(tmp_path / "demo" / "out.mp4")) == 10
    for name, width_px in (("side_by_side.png", 5 * 264), ("sync.png", 1600)):
        assert cv2.imread(str(tmp_path / "demo" / name)).shape[1] >= width_px


def test_demo_takes_a_face_of_yours(tmp_path: Path) -> None:
    speech, face = write_clip(tmp_path, 6)[::-1]
    folder = tmp_path / "demo"
    arguments = ("--audio", str(speech), "--video", str(face), "--bundle", str(small_bundle()), "-q")
    code, out, err = run("demo", "--out", str(folder), *arguments)
    assert (code, out) == (0, ""), err
    assert sorted(path.name for path in folder.iterdir()) == ["out.mp4", "side_by_side.png", "sync.png"]


def test_demo_says_when_its_folder_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("demo", "--out", str(tmp_path / "file" / "demo"))
    assert code == 1
    assert "cannot be created" in err


def test_a_graph_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(Exception, match=r"broken\.onnx"):
        Session(path)


def test_an_edited_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    code, _, err = run("sync", "--video", "a.mp4", "--audio", "b.wav", "--bundle", str(tmp_path), "-q")
    assert code == 1
    assert "not a manifest" in err
    assert issubclass(BundleError, ValueError)
