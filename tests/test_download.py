"""`latentsync-trt download` from a hub on this machine."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from latentsync_trt.bundle.manifest import sha256_file
from latentsync_trt.cli import main
from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.export_options import ExportOptions, check_model, find_sources
from latentsync_trt.export.published import LATENTSYNC, UNET_FILE, VAE, WHISPER_FILE, origin
from tests.hub import Hub, hub, no_hub

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
def server(checkpoints: Path) -> Iterator[Hub]:
    with hub(FILES) as running:
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
def test_needed_files_come_to_where_export_looks(
    checkpoints: Path, server: Hub, model: str
) -> None:
    code, out, err = run(model)
    assert code == 0, err
    sources = find_sources(ExportOptions(model=model))
    assert sources.unet.read_bytes() == FILES[f"ByteDance/LatentSync-{model}"][UNET_FILE]
    assert sources.whisper == checkpoints / f"latentsync-{model}" / WHISPER_FILE
    assert (sources.vae / "config.json").is_file()
    assert f"LatentSync-{model}@{LATENTSYNC[model].revision[:7]}: 5.15 GB to " in err
    assert f"latentsync-{model}: {LATENTSYNC[model]}" in out


def test_what_is_there_needs_no_network(server: Hub) -> None:
    run("1.6")
    with no_hub():
        assert run("1.6")[0] == 0
        assert "cannot be reached" in failure("1.5")


def test_files_from_elsewhere_are_checked_and_kept(checkpoints: Path, server: Hub) -> None:
    unet = checkpoints / "latentsync-1.6" / UNET_FILE
    unet.parent.mkdir(parents=True)
    unet.write_bytes(b"own")
    assert f"{unet}: is not the published file" in failure("1.6")
    assert unet.read_bytes() == b"own"
    unet.write_bytes(UNET)
    assert run("1.6")[0] == 0
    assert server.gets(UNET_FILE) == []


def test_a_cut_connection_is_resumed(checkpoints: Path, server: Hub) -> None:
    server.cut_at = [220_000]
    assert run("1.6")[0] == 0
    assert server.gets(UNET_FILE) == ["", "bytes=200000-"]
    assert (checkpoints / "latentsync-1.6" / UNET_FILE).read_bytes() == UNET


def test_a_wrong_checksum_removes_the_file(checkpoints: Path, server: Hub) -> None:
    published = server.files["ByteDance/LatentSync-1.6"]
    server.files = {**FILES, "ByteDance/LatentSync-1.6": {**published, UNET_FILE: bytes(len(UNET))}}
    assert f"{UNET_FILE}: was downloaded with a wrong checksum" in failure("1.6")
    assert not (checkpoints / "latentsync-1.6" / UNET_FILE).exists()
    server.files = FILES
    assert run("1.6")[0] == 0


def test_a_refusal_and_an_unreachable_hub_are_explained(checkpoints: Path, server: Hub) -> None:
    server.status = 403
    message = failure("1.6")
    assert (
        f"{server.url}/ByteDance/LatentSync-1.6, revision {LATENTSYNC['1.6'].revision}: " in message
    )
    assert "terms" in message and "`hf auth login`" in message
    with no_hub():
        message = failure("1.6")
    assert "cannot be reached" in message and "terms" not in message
    assert (
        f"{UNET_FILE}, {WHISPER_FILE} of {LATENTSYNC['1.6']} to {checkpoints / 'latentsync-1.6'}"
        in message
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "ftp://127.0.0.1:9"),
        ("https_proxy", "gopher://127.0.0.1:9"),
        ("SSL_CERT_FILE", "gone.pem"),
    ],
)
def test_a_wrong_variable_is_named(
    server: Hub, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    assert failure("1.6").startswith(f"error: ${name}: ")
    assert server.requests == []


@pytest.mark.parametrize(
    ("model", "unet", "resolution", "refused"),
    [
        ("1.6", "1.5", None, True),
        ("1.5", "1.5", 512, False),  # who says all three means it
    ],
)
def test_weights_of_the_other_model_are_refused(
    checkpoints: Path,
    server: Hub,
    model: Any,
    unet: str | None,
    resolution: int | None,
    refused: bool,
) -> None:
    for each in LATENTSYNC:
        run(each)
    path = None if unet is None else checkpoints / f"latentsync-{unet}" / UNET_FILE
    options = ExportOptions(model=model, unet=path, resolution=resolution)
    found = find_sources(options).unet
    own = unet or model
    cure = rf"weights of LatentSync {own} \(ByteDance/LatentSync-{own}@.*; give `--model {own}`"
    with pytest.raises(CheckpointError, match=cure) if refused else nullcontext():
        check_model(options, found, origin(sha256_file(found), model))
