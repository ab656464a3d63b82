"""`latentsync-trt download` from a hub on this machine."""

import errno
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from latentsync_trt.cli import main
from latentsync_trt.export import download
from latentsync_trt.export.options import ExportOptions, find_sources
from latentsync_trt.export.published import LATENTSYNC, RECORD_NAME, UNET_FILE, VAE, WHISPER_FILE
from tests.hub import BRANCH, COMMIT, Hub, hub, use_endpoint

FILES = {
    repository.name: {
        name: f"{repository.name}/{name}".encode() * (1 if name == "config.json" else 20_000)
        for name in repository.files
    }
    for repository in (*LATENTSYNC.values(), VAE)
}
"""What the hub has; all but the VAE's configuration are large."""

UNET = FILES["ByteDance/LatentSync-1.6"][UNET_FILE]


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "check points"
    monkeypatch.setenv("LATENTSYNC_TRT_CHECKPOINTS", str(folder))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return folder


@pytest.fixture
def server(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub(FILES, monkeypatch) as running:
        yield running


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["download", *arguments])
    return result.exit_code, result.stdout, result.stderr


def failure(*arguments: str) -> str:
    """The only line of an error."""
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert lines == err.splitlines()[-1:]
    return lines[0]


@pytest.mark.parametrize("model", LATENTSYNC)
def test_needed_files_come_to_where_export_looks(checkpoints: Path, server: Hub, model: str) -> None:
    code, out, err = run(model)
    assert code == 0, err
    sources = find_sources(ExportOptions(model=model))
    assert sources.unet.read_bytes() == FILES[f"ByteDance/LatentSync-{model}"][UNET_FILE]
    assert sources.whisper == checkpoints / f"latentsync-{model}" / WHISPER_FILE
    assert (sources.vae / "diffusion_pytorch_model.safetensors").is_file()
    found = {path.relative_to(checkpoints).as_posix() for path in checkpoints.rglob("*") if path.is_file()}
    folders = (f"latentsync-{model}/", LATENTSYNC[model]), ("sd-vae-ft-mse/", VAE)
    assert found == {folder + name for folder, each in folders for name in (*each.files, RECORD_NAME)}
    record = json.loads((sources.unet.parent / RECORD_NAME).read_text())
    assert record["revision"] == LATENTSYNC[model].revision
    assert record["files"][WHISPER_FILE]["sha256"] == LATENTSYNC[model].files[WHISPER_FILE]
    assert err.count("license openrail++, says http://127.0.0.1:") == 2
    assert f"latentsync-{model}: ByteDance/LatentSync-{model}@{LATENTSYNC[model].revision}" in out


def test_nothing_is_sent_but_the_requests_for_these_files(server: Hub) -> None:
    run("1.6")
    for path, headers in server.requests:
        assert path.startswith(("/api/models/ByteDance/", "/api/models/stabilityai/", "/ByteDance/", "/stabilityai/"))
        assert "torch" not in headers["user-agent"]
        assert "authorization" not in headers


def test_what_is_there_needs_no_network(checkpoints: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    run("1.6")
    before = len(server.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run("1.6")[0] == run("1.6", "--revision", LATENTSYNC["1.6"].revision)[0] == 0
    assert len(server.requests) == before
    assert "$HF_HUB_OFFLINE forbids to download; unset it" in failure("1.5")


def test_files_from_elsewhere_are_checked_and_kept(checkpoints: Path, server: Hub) -> None:
    (checkpoints / "latentsync-1.6").mkdir(parents=True)
    (checkpoints / "latentsync-1.6" / UNET_FILE).write_bytes(UNET)
    assert run("1.6")[0] == 0
    assert server.gets(UNET_FILE) == []
    (checkpoints / "latentsync-1.6" / RECORD_NAME).unlink()
    (checkpoints / "latentsync-1.6" / UNET_FILE).write_bytes(b"x" * len(UNET))
    assert run("1.6")[0] == 0
    assert (checkpoints / "latentsync-1.6" / UNET_FILE).read_bytes() == UNET


@pytest.mark.parametrize("resets", [False, True])
def test_a_cut_connection_is_resumed(
    checkpoints: Path, server: Hub, monkeypatch: pytest.MonkeyPatch, resets: bool
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)  # what the library writes at once
    server.cut_at, server.resets = [220_000, 420_000], resets
    assert run("1.6")[0] == 0
    assert server.gets(UNET_FILE) == ["", "bytes=200000-", "bytes=400000-"]
    assert (checkpoints / "latentsync-1.6" / UNET_FILE).read_bytes() == UNET


def test_a_later_call_goes_on(checkpoints: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = download.http_get

    def half(url: str, file: object, **fields: object) -> None:
        file.write(UNET[:250_000])
        full()

    monkeypatch.setattr(download, "http_get", half)
    assert "the disk is full; free some space and run the same command again" in failure("1.6")
    assert not (checkpoints / "latentsync-1.6" / UNET_FILE).exists()
    monkeypatch.setattr(download, "http_get", real)
    code, _, err = run("1.6")
    assert code == 0, err
    assert server.gets(UNET_FILE) == ["bytes=250000-"]
    assert (checkpoints / "latentsync-1.6" / UNET_FILE).read_bytes() == UNET


def test_a_wrong_checksum_removes_the_file(checkpoints: Path, server: Hub) -> None:
    server.served[UNET_FILE] = UNET[:-1] + b"?"
    assert f"{UNET_FILE}: was downloaded with a wrong checksum and removed; run it again" in failure("1.6")
    assert [path for path in (checkpoints / "latentsync-1.6").rglob("*") if path.is_file()] == []
    server.served.clear()
    assert run("1.6")[0] == 0


def test_pinned_checksums_do_not_depend_on_the_mirror(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LATENTSYNC["1.6"].files, UNET_FILE, "0" * 64)
    assert "wrong checksum" in failure("1.6")
    server.commits[LATENTSYNC["1.6"].revision] = COMMIT
    assert "wrong checksum" in failure("1.6")
    assert run("1.6", "--revision", BRANCH)[0] == 0  # those of the hub


def test_another_revision_is_recorded_and_kept(checkpoints: Path, server: Hub) -> None:
    assert run("1.6", "--revision", BRANCH)[0] == 0
    assert json.loads((checkpoints / "latentsync-1.6" / RECORD_NAME).read_text())["revision"] == COMMIT
    before = len(server.requests)
    assert COMMIT in run("1.6")[1]
    assert len(server.requests) == before


def test_space_is_checked_before(checkpoints: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    message = failure("1.6")
    assert "are needed, 0.0 MB are free; free some space" in message
    assert str(checkpoints) in message
    assert not checkpoints.exists()


@pytest.mark.parametrize(
    ("status", "code", "cure"),
    [
        (403, "GatedRepo", "accept its terms on that page if it has any, log in with `hf auth login`"),
        (401, "", "no access, or no such repository (status 401)"),
        (404, "RepoNotFound", "check $HF_ENDPOINT"),
        (503, "", "answered with status 503; wait or set $HF_ENDPOINT to a mirror"),
    ],
)
def test_refusals_are_explained(server: Hub, status: int, code: str, cure: str) -> None:
    server.status, server.code = status, code
    message = failure("1.6")
    assert f"{server.url}/ByteDance/LatentSync-1.6, revision {LATENTSYNC['1.6'].revision}: " in message
    assert cure in message


def test_an_unknown_revision_is_explained(server: Hub) -> None:
    assert "revision v9: there is no such revision; give another --revision" in failure("1.6", "--revision", "v9")


def test_other_failures_are_explained(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server, "model", lambda *_: {"portal": "please log in"})
        assert "its answer is not that of a Hugging Face hub" in failure("1.6")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        use_endpoint(f"http://127.0.0.1:{closed.getsockname()[1]}", monkeypatch)
    assert "cannot be reached (" in (message := failure("1.6"))
    assert "check the network, or set $HF_ENDPOINT to a mirror" in message


def test_a_damaged_record_is_explained(checkpoints: Path, server: Hub) -> None:
    (checkpoints / "latentsync-1.6").mkdir(parents=True)
    (checkpoints / "latentsync-1.6" / RECORD_NAME).write_text("{}")
    assert "delete it and download again" in failure("1.6")


@pytest.mark.parametrize(
    ("arguments", "made_for"),
    [
        (("--model", "1.6", "--unet", "latentsync-1.5"), "1.5"),
        (("--model", "1.5", "--resolution", "512"), "1.5"),
        (("--model", "1.6", "--resolution", "256"), "1.6"),
        (("--model", "1.5", "--unet", "latentsync-1.6"), "1.6"),
    ],
)
def test_weights_of_the_other_model_are_refused(
    checkpoints: Path, server: Hub, arguments: tuple[str, ...], made_for: str
) -> None:
    run("1.5")
    run("1.6")
    placed = [str(checkpoints / each / UNET_FILE) if each.startswith("latent") else each for each in arguments]
    result = CliRunner().invoke(main, ["export", *placed])
    assert result.exit_code == 2
    assert f"weights of LatentSync {made_for} (ByteDance/LatentSync-{made_for}@" in result.stderr
    assert f"the mouth gets blurred; give `--model {made_for}`" in result.stderr
