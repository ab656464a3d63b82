"""`latentsync-trt setup` on the narrowest real networks, from a hub on this machine, on the CPU."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from latentsync_trt.bench import selftest
from latentsync_trt.bench.rows import bundle_facts
from latentsync_trt.bench.selftest import SelftestReport
from latentsync_trt.bench.trial import GraphRow
from latentsync_trt.bundle.find import default_bundle, demo_folder, remembered_choice
from latentsync_trt.bundle.manifest import (
    FULL_STEP,
    REQUIRED_GRAPHS,
    Bundle,
    manifest_sha256,
    read_manifest,
)
from latentsync_trt.cli import main
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export import exporter
from latentsync_trt.export.export_options import MODEL_RESOLUTION_PX, ExportOptions
from latentsync_trt.export.published import LATENTSYNC, UNET_FILE, VAE, WHISPER_FILE
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.devices import Gpu
from tests.bundles import make_bundle
from tests.hub import Hub, hub
from tests.narrow import RESOLUTION_PX, write_sources

MODEL = LATENTSYNC["1.6"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The narrow checkpoints under the published names."""
    sources = write_sources(tmp_path_factory.mktemp("published"))
    latentsync = {UNET_FILE: sources.unet.read_bytes(), WHISPER_FILE: sources.whisper.read_bytes()}
    return {
        MODEL.name: latentsync,
        VAE.name: {name: (sources.vae / name).read_bytes() for name in VAE.files},
    }


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODEL_RESOLUTION_PX, "1.6", RESOLUTION_PX)


@pytest.fixture
def server(checkpoints: Path, published: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    with hub(published) as running:
        yield running


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[ExportOptions]:
    """Exports write a few bytes; the options of each, of which the first one fails."""
    calls: list[ExportOptions] = []

    def write(wanted: ExportOptions, _: object) -> Path:
        calls.append(wanted)
        if len(calls) == 1:
            raise ExportMismatch("stopped here")
        return make_bundle(wanted.folder, wanted.precision).folder

    monkeypatch.setattr(exporter, "export_bundle", write)
    return calls


@dataclass
class SelfTest:
    """Stands for the self-test. `outcomes`: "passes", "fails" or "is slower", by provider; `calls`:
    provider, bundle and graphs of each.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def __call__(
        self,
        bundle: Bundle,
        provider: str,
        options: RuntimeOptions,
        say: object,
        graphs: tuple[str, ...],
    ) -> SelftestReport:
        self.calls.append((provider, bundle.folder.name, graphs))
        outcome = self.outcomes.get(provider, "passes")
        rows = (
            GraphRow(FULL_STEP, mean_ms=2.0 if outcome == "is slower" else 1.0, reference_ms=1.0),
        )
        stages = {"first start": ("it died",) if outcome == "fails" else ()}
        facts = bundle_facts(bundle.manifest)
        return SelftestReport(
            provider, provider, facts, (), "cuda", stages, rows, "", notices=(), environment={}
        )

    @property
    def providers(self) -> list[str]:
        return [provider for provider, *_ in self.calls]


@pytest.fixture
def self_test(monkeypatch: pytest.MonkeyPatch) -> SelfTest:
    made = SelfTest()
    monkeypatch.setattr(selftest, "self_test", made)
    return made


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["setup", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_interrupted_anywhere_the_same_command_goes_on(
    checkpoints: Path, server: Hub, exported: list[ExportOptions], self_test: SelfTest
) -> None:
    command = ("--provider", "cpu", "--yes")
    server.status = 503
    assert run(*command)[0] == 1
    server.status = 0
    assert run(*command)[0] == 1
    assert len(exported) == 1
    asked = len(server.requests)
    self_test.outcomes["cpu"] = "fails"
    assert run(*command)[0] == 1
    assert default_bundle()[1] == "the only exported one"
    self_test.outcomes.clear()
    code, out, err = run(*command)
    assert code == 0, err
    assert (len(server.requests), len(exported)) == (asked, 2)
    assert (exported[1].precision, exported[1].cuda_form) == ("fp32", False)
    assert default_bundle()[1] == "chosen with `setup --use`"
    bundle = checkpoints / f"1.6-{RESOLUTION_PX}-fp32"
    assert out.splitlines()[-1].startswith(f"{bundle}: ready; next: latentsync-trt sync ")
    assert (
        self_test.calls
        == [("cpu", demo_folder().name, tuple(read_manifest(demo_folder()).graphs))] * 2
    )
    code, out, err = run("--provider", "cpu")
    assert (code, err) == (0, "")
    assert out.startswith(f"{bundle}: is set up")


@pytest.mark.slow
@pytest.mark.usefixtures("server", "self_test")
def test_the_bundle_says_where_its_weights_come_from(checkpoints: Path) -> None:
    code, _, err = run("--provider", "cpu", "--yes")
    assert code == 0, err
    manifest = Bundle.load(checkpoints / f"1.6-{RESOLUTION_PX}-fp32").manifest
    origins = {role: found["origin"] for role, found in manifest.sources.items()}
    assert origins == {"unet": str(MODEL), "vae": str(VAE), "whisper": str(MODEL)}
    # this machine runs the portable form
    assert not any(entry.forms for entry in manifest.graphs.values())


def test_plan_space_and_consent_come_before_anything_is_done(
    checkpoints: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("--provider", "cpu")
    assert (code, out) == (2, "")
    for words in (
        f"download: {MODEL.name}@{MODEL.revision[:7]}: ",
        "license openrail++",
        "add --yes",
    ):
        assert words in err
    # enough for the bundle
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_600_000_000))
    assert "5.60 GB are free" in run("--provider", "cpu", "--yes")[2]
    assert not checkpoints.exists()
    assert {request[0] for request in server.requests} == {"HEAD"}  # whether it can be reached


NAME = f"1.6-{RESOLUTION_PX}-fp16"


def test_a_gpu_gets_half_precision_and_is_tested_once(
    checkpoints: Path, server: Hub, self_test: SelfTest, gpus: list[Gpu]
) -> None:
    err = run()[2]
    assert f"export: fp16, {RESOLUTION_PX} px, about " in err
    assert "build: the engines of " in err
    folder = make_bundle(checkpoints / NAME, "fp16").folder
    assert f"{folder}: ready; next: " in run()[1]  # nothing large is left to ask for
    assert self_test.calls == [("tensorrt", NAME, REQUIRED_GRAPHS)]
    assert remembered_choice() == NAME
    assert run()[1].startswith(f"{folder}: is set up")
    assert len(self_test.calls) == 1
    gpus[:] = [replace(gpus[0], name="RTX 5090")]
    assert f"{folder}: ready; next: " in run()[1]
    assert len(self_test.calls) == 2


@pytest.mark.parametrize(
    ("named", "outcomes", "tested", "expected"),
    [
        ("auto", {}, "tensorrt", (0, "tensorrt")),
        ("auto", {"tensorrt": "fails"}, "tensorrt cuda", (0, "cuda")),
        (
            "auto",
            dict.fromkeys(("tensorrt", "cuda", "cpu"), "fails"),
            "tensorrt cuda cpu",
            (1, "cpu"),
        ),
        ("tensorrt", {"tensorrt": "fails"}, "tensorrt", (1, "cuda")),
        ("tensorrt", {"tensorrt": "is slower"}, "tensorrt", (0, "cuda")),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_setup_goes_on_until_a_provider_passes_unless_one_is_named(
    checkpoints: Path,
    self_test: SelfTest,
    named: str,
    outcomes: dict[str, str],
    tested: str,
    expected: tuple[int, str],
) -> None:
    folder = make_bundle(checkpoints / NAME, "fp16").folder
    self_test.outcomes = outcomes
    code = run("--provider", named)[0]
    assert self_test.providers == tested.split()
    assert (code, select_provider("auto", bundle_sha256=manifest_sha256(folder)).name) == expected


def test_what_failed_or_was_slower_is_not_tested_again(
    checkpoints: Path, self_test: SelfTest, gpus: list[Gpu]
) -> None:
    folder = make_bundle(checkpoints / NAME, "fp16").folder
    self_test.outcomes = {"tensorrt": "is slower", "cuda": "fails", "cpu": "fails"}
    assert run()[0] == 1
    self_test.outcomes["cuda"] = "passes"
    assert run("--provider", "cuda")[0] == 0
    self_test.calls.clear()
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.startswith(f"{folder}: is set up")
    assert self_test.calls == []
    gpus[:] = [replace(gpus[0], name="RTX 5090")]
    assert run()[0] == 0
    assert self_test.providers == ["tensorrt", "cuda"]


def test_a_bundle_that_is_damaged_is_not_tested(checkpoints: Path, self_test: SelfTest) -> None:
    folder = make_bundle(checkpoints / f"1.6-{RESOLUTION_PX}-fp32", "fp32").folder
    (folder / "net.weights").write_bytes(bytes(256))
    code, _, err = run("--provider", "cpu")
    assert (code, self_test.calls) == (1, [])
    assert "net.weights" in err


def test_a_model_that_the_cpu_cannot_run_is_refused(server: Hub) -> None:
    MODEL_RESOLUTION_PX["1.6"] = 2048
    code, _, err = run("--provider", "cpu", "--yes")
    assert code == 2
    assert "at 2048 px " in err and " takes 8796.09 GB " in err and "--model 1.5" in err
    assert server.requests == []
