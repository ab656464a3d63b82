"""Wrong usage ends with exit code 2, failed work with 1, both with one line that says what to
do.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.find import CHECKPOINTS_VARIABLE
from latentsync_trt.cli import main
from latentsync_trt.errors import InputError
from latentsync_trt.paths import CACHE_VARIABLE, local_path
from tests.bundles import make_bundle
from tests.clips import numbered, write_sound, write_video
from tests.small import small_bundle

SYNC = "sync --video in.mp4 --audio in.wav --bundle SMALL"
LONG = "x" * 300

WRONG_USAGE = [
    ("sync --video EMPTY --audio in.wav", "--video '': is empty"),
    (
        "sync --video on.mp4 --audio in.wav --bundle SMALL",
        "on.mp4: no such file; did you mean in.mp4?",
    ),
    (
        "sync --video . --audio in.wav --bundle SMALL",
        ".: is a folder; name a video or audio file in it",
    ),
    (f"sync --video {LONG}.mp4 --audio in.wav --bundle SMALL", f"{LONG}.mp4: "),
    (f"{SYNC} --output out.avi", "cannot write .avi; use .mp4"),
    (
        f"{SYNC} --output out.mp4 --codec ffv1",
        "out.mp4: cannot hold ffv1; use a name that ends in .mkv",
    ),
    (f"{SYNC} --output {LONG}.mp4", f"{LONG}.mp4: cannot be written: "),
    (
        f"{SYNC} --output there.mp4",
        "there.mp4: exists already; choose another name, or replace it with --overwrite",
    ),
    ("sync in.mp4 in.wav --bundle SMALL --codec prores", "in-synced.mov: exists already"),
    (
        "sync in.wav in.mp4 --bundle SMALL",
        "in.wav: has no picture, but the audio in.mp4 has one; did you swap them?",
    ),
    (
        "sync https://host/in.mp4 in.wav",
        "download it first, or use `latentsync-trt batch`, which reads addresses",
    ),
    (
        f"{SYNC} --encoder nvenc",
        "NVENC needs an NVIDIA GPU that encodes h264, and its driver; use --encoder x264",
    ),
    (f"{SYNC} --resolution 192", "--resolution 192: bundle demo is made for"),
    ("export --unet none.pt", "none.pt: no such file or folder"),
    ("sync --video in.mp4 --audio in.wav --bundle none", "none: no bundle there nor in"),
    ("build --bundle http://host/bundle", "bundle http://host/bundle: is a URL"),
    (
        "build --bundle SMALL --device 0,1",
        "--device 0,1: one clip runs on one GPU; give its number, or use",
    ),
    (
        "bench --bundle SMALL --output options.toml",
        "options.toml: exists already; choose another name, or replace it with",
    ),
    ("calibrate --bundle SMALL --video in.mp4 --output damaged", "damaged: exists already"),
    (
        "calibrate --bundle SMALL --video in.mp4 --keep conv_inn",
        "conv_inn: fits no layer of demo; did you mean conv_in?",
    ),
    ("calibrate --bundle SMALL --clips folder.json", "no video in it"),
    ("compare in.mp4 SMALL", "is a folder; name a video or audio file in it"),
    ("compare in.mp4 in.mp4 --output in.html --overwrite", "in.mp4: is also an input"),
    ("selftest --engine-cache in.wav", "--engine-cache in.wav: is a file"),
    ("export", "latentsync-trt download 1.6"),
    ("export --syncnet in.wav --output syncnet", "syncnet.onnx: exists already"),
    ("snyc in.mp4 in.wav", "no such command 'snyc'; did you mean sync?"),
    ("sync in.mp4 in.wav in.wav", "in.wav: is one file too many"),
    ("demo --video demo/out.mp4", "out.mp4: is also an input; choose another name"),
    ("sync", "no video; give one and its speech"),
    ("cache prune", "missing option '--max-gb'"),
    ("live", "missing option '--video'"),
    ("batch jobs.csv", "jobs.csv: has the columns 'vidoe, audio'; its first line must name"),
    ("doctor --config none.toml", "none.toml: no such file"),
    (
        "doctor --config tables.toml",
        "tables.toml: snyc: is no table of a command, as [sync]; did you mean sync?",
    ),
    (
        "sync --config options.toml in.mp4 in.wav",
        "options.toml: [sync] prest: no such option; did you mean preset?",
    ),
]

FAILED = [
    ("sync --video empty.mp4 --audio in.wav --bundle SMALL", "empty.mp4: is empty (0 bytes)"),
    ("sync --video in.wav --audio in.wav --bundle SMALL", "in.wav: has no video stream"),
    ("sync --video in.mp4 --audio in.mp4 --bundle SMALL", "in.mp4: has no audio stream"),
    ("selftest --bundle damaged", "was changed"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder of all calls: a clip, files that are no clips, folders named as files; no
    bundle exported.
    """
    folder = tmp_path_factory.mktemp("usage")
    write_video(folder / "in.mp4", numbered(2))
    write_sound(folder / "in.wav", 0.08)
    (folder / "empty.mp4").touch()
    (folder / "jobs.csv").write_text("vidoe,audio\nin.mp4,in.wav\n")
    (folder / "syncnet").mkdir()
    (folder / "demo").mkdir()
    write_video(folder / "demo" / "out.mp4", numbered(2))
    for name in ("there.mp4", "in-synced.mov", "syncnet/syncnet.onnx"):
        (folder / name).touch()
    (folder / "tables.toml").write_text("[snyc]\n")
    (folder / "options.toml").write_text("[sync]\nprest = 'fast'\n")
    (folder / "folder.json").mkdir()
    graph = make_bundle(folder / "damaged").graph_path("vae_encoder")
    graph.write_text(graph.read_text()[::-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv(CHECKPOINTS_VARIABLE, str(folder / "checkpoints"))
        before = sorted(folder.rglob("*"))
        yield folder
        assert sorted(folder.rglob("*")) == before


def call(line: str, *more: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Runs a command line with SMALL and EMPTY replaced; an exception other than SystemExit fails
    the test.
    """
    words = [{"SMALL": str(small_bundle()), "EMPTY": ""}.get(word, word) for word in line.split()]
    result = CliRunner(env=env).invoke(main, [*words, *more], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("line", "words", "code"),
    [(*case, 2) for case in WRONG_USAGE] + [(*case, 1) for case in FAILED],
)
def test_exit_code_and_message(line: str, words: str, code: int) -> None:
    found, out, err = call(line)
    assert (found, out) == (code, "")
    assert words in " ".join(err.split())
    assert err.splitlines()[-1].startswith("error: ")
    assert "Usage:" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="needs a place where root makes no folder")
@pytest.mark.usefixtures("place")
def test_a_service_says_that_its_folder_cannot_be_made() -> None:
    code, out, err = call("serve --bundle SMALL --folder /proc/jobs")
    assert (code, out) == (2, "")
    assert err.startswith("error: /proc/jobs: cannot be written (")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("line", [WRONG_USAGE[0][0], FAILED[-1][0]])
def test_errors_are_json_where_asked(line: str) -> None:
    code, out, err = call(line, "--json")
    assert (code, err) == (1 if line in dict(FAILED) else 2, "")
    assert list(json.loads(out)) == ["error"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", ["a [bold]Žena[/bold]\nb", "\udcff"])
def test_names_are_repeated_as_they_were_typed(name: str) -> None:
    code, out, err = call("build", "--bundle", name)
    assert (code, out) == (2, "")
    shown = " ".join(name.split()).encode(errors="backslashreplace").decode()
    assert shown in err or name == "\udcff"
    assert len(err.splitlines()) == 1


def test_paths_that_look_like_urls() -> None:
    assert local_path("C:/clips/a.mp4") == Path("C:/clips/a.mp4")
    assert local_path("a:b.mp4") == Path("a:b.mp4")
    with pytest.raises(InputError, match=r"https://host/a\.mp4: is a URL"):
        local_path(Path("https://host/a.mp4"))  # pathlib makes one slash of two


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("value", [LONG, "in.wav"])
def test_folders_named_by_variables_may_be_wrong(value: str) -> None:
    for line in ("doctor", "setup --use none", "cache ls", "build"):
        code, out, err = call(
            line, env=dict.fromkeys((CHECKPOINTS_VARIABLE, CACHE_VARIABLE), value)
        )
        assert code in (0, 1, 2)
        assert out or err.startswith("error: ")


def test_a_pipe_that_cannot_encode_our_signs_gets_codes_for_them(tmp_path: Path) -> None:
    """As Windows pipes them: most signs are not in code page 1252."""
    script = "import sys; from latentsync_trt.cli import main; main(sys.argv[1:])"
    make_bundle(tmp_path / "引擎")
    environment = {
        **os.environ,
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "cp1252",
        CHECKPOINTS_VARIABLE: str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor"], env=environment, capture_output=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u5f15\u64ce: model 1.6" in done.stdout
