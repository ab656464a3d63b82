"""docs/kuberay.yaml: its command is one of this package, and its objects fit the operator's own schema."""

import os
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from latentsync_trt.cli.batch import command

MANIFEST = Path(__file__).resolve().parents[1] / "docs" / "kuberay.yaml"
CRDS = "KUBERAY_CRDS"


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


def strict(schema: Any) -> Any:
    """A schema of Kubernetes that refuses fields it does not name, as `kubectl` does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(item) for name, item in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and "type" in schema:
        made["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    return made


def schema_of(kind: str, version: str) -> Any:
    folder = os.environ.get(CRDS)
    if not folder:
        pytest.skip(f"needs KubeRay's ray-operator/config/crd/bases, named by ${CRDS}: 1.4 MB for a kind")
    (path,) = Path(folder).glob(f"ray.io_{kind.lower()}s.yaml")
    versions = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
    schema = next(each["schema"]["openAPIV3Schema"] for each in versions["versions"] if each["name"] == version)
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    return strict(schema)


@pytest.mark.slow
def test_it_fits_the_operators_schema(job: dict[str, Any]) -> None:
    schema = schema_of(job["kind"], job["apiVersion"].rpartition("/")[2])
    jsonschema.Draft7Validator(schema).validate(job)
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["noSuchField"] = 1
    with pytest.raises(jsonschema.ValidationError, match="noSuchField"):
        jsonschema.Draft7Validator(schema).validate(job)
