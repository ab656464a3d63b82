"""docs/kuberay.yaml: its command is one of this package, and its objects fit the operator's own schema."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from latentsync_trt.cli.batch import command

MANIFEST = Path(__file__).resolve().parents[1] / "docs" / "kuberay.yaml"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (found,) = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    return dict(found)


@pytest.fixture
def options(job: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """What the command makes of its entry point."""
    program, name, *words = shlex.split(job["spec"]["entrypoint"])
    assert (program, name) == ("latentsync-trt", "batch")
    (tmp_path / "jobs.csv").touch()
    words = [word.replace("/data/jobs.csv", str(tmp_path / "jobs.csv")) for word in words]
    with command.make_context("batch", words) as context:
        return dict(context.params)


def test_the_command_is_one_of_this_package(options: dict[str, Any]) -> None:
    assert options["resume"]
    assert options["ray"] == "auto"
    assert options["bundle"].startswith("s3://")
    assert options["engine_store"].startswith("s3://")


def test_workers_that_it_asks_for_fit_into_its_pods(job: dict[str, Any], options: dict[str, Any]) -> None:
    """An actor that no pod can hold would wait forever."""
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert float(container["resources"]["limits"]["nvidia.com/gpu"]) >= options["gpus_per_worker"]
    assert group["maxReplicas"] * float(container["resources"]["limits"]["nvidia.com/gpu"]) >= options["workers"]
