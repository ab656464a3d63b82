"""What `setup` has to do on this machine, as a list of steps, before it does any of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from latentsync_trt.bundle.find import exported_bundles, remembered_choice
from latentsync_trt.bundle.machine import cpu_step_bytes, machine_bytes
from latentsync_trt.bundle.manifest import manifest_sha256
from latentsync_trt.errors import InputError
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.export.published import PublishedModel, Repository, find_downloads, gigabytes
from latentsync_trt.runtime.providers.choice import next_provider, select_provider, why_not_taken
from latentsync_trt.runtime.providers.remembered_tests import tested
from latentsync_trt.runtime.providers.selection import Selection

# As measured.
BUNDLE_BYTES = {"fp16": 3_200_000_000, "fp32": 6_400_000_000}
"""Size of a bundle, by precision."""
EXPORT_MEMORY_BYTES = {"fp16": 8_500_000_000, "fp32": 9_300_000_000}
"""Memory that an export takes, by precision."""

ExportPrecision = Literal["fp16", "fp32"]


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One thing to do; it has the name under which the plan is shown."""

    name: Literal["download", "export", "build", "self-test"]
    description: str
    repository: Repository | None = None
    """What to download."""

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


@dataclass(frozen=True, slots=True)
class SetupState:
    """What there is when `setup` begins."""

    options: ExportOptions
    """The options of the bundle that is wanted."""
    selection: Selection
    """The provider that shall run it."""
    is_exported: bool
    test_result: str | None = None
    """The result of the newest self-test of the bundle with the provider."""
    default_bundle: str | None = None
    """Name of the bundle that commands run without `--bundle`, if one was chosen."""
    notices: Sequence[str] = field(default=())
    """Why faster providers are not taken."""

    @property
    def is_on_cpu(self) -> bool:
        return self.selection.gpu is None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        is_tested = (
            self.is_on_cpu
            or self.test_result == "passed"
            or (self.test_result == "slower" and self.selection.is_named)
        )
        is_default = self.default_bundle == self.options.folder.name
        return self.is_exported and is_tested and is_default


def find_setup_state(
    model: PublishedModel, provider: str, precision: ExportPrecision | None
) -> SetupState:
    """Returns what is there already. Raises `ProviderUnavailable`."""
    selection = select_provider(provider)  # by what loads alone: the self-test comes later
    on_cpu = selection.gpu is None
    if precision is None:
        precision = "fp32" if on_cpu else "fp16"
    options = ExportOptions(model=model, precision=precision, cuda_form=not on_cpu)
    folder = options.folder
    is_exported = folder in exported_bundles()
    sha256 = manifest_sha256(folder) if is_exported else ""  # of none that was tested
    result = tested(selection, sha256)
    notices = selection.notices()
    if result in ("failed", "slower") and not selection.is_named:
        notices.append(f"{selection.name} is not tested again: {why_not_taken(selection, sha256)}")
        selection = next_provider(selection, sha256)
        notices += selection.notices()
        result = tested(selection, sha256)
    return SetupState(options, selection, is_exported, result, remembered_choice(), notices)


def missing_downloads(state: SetupState) -> list[Repository]:
    """Returns what an export needs and is not there; raises as `find_downloads`."""
    if state.is_exported:
        return []
    return find_downloads(state.options.model)


def setup_plan(state: SetupState, downloads: Sequence[Repository]) -> Iterator[SetupStep]:
    """Yields the steps that are left to do, in their order; at least the self-test."""
    for repository in downloads:
        yield SetupStep("download", repository.summary, repository)
    options = state.options
    if not state.is_exported:
        size = gigabytes(BUNDLE_BYTES[options.precision])
        memory = gigabytes(EXPORT_MEMORY_BYTES[options.precision])
        bundle = f"{options.precision}, {options.resolution_px} px, about {size}"
        yield SetupStep(
            "export", f"{bundle} to {options.folder}; takes minutes and about {memory} of memory"
        )
    if state.selection.provider.builds:
        yield SetupStep("build", "the engines of a default run for this GPU, which takes minutes")
    tested_with = "values and pictures beside provider cuda"
    if state.is_on_cpu:
        tested_with = "with the small built-in model"
    yield SetupStep(
        "self-test", f"{tested_with}; then the new bundle is what commands run without --bundle"
    )


def check_cpu_memory(options: ExportOptions) -> None:
    """Raises `InputError` if the machine has too little memory to run the model on the CPU."""
    needed_bytes = cpu_step_bytes(options.resolution_px, options.frames)
    memory_bytes = machine_bytes()
    if needed_bytes > memory_bytes:
        raise InputError(
            f"--model {options.model}: at {options.resolution_px} px a step on the CPU takes "
            f"{gigabytes(needed_bytes)} of memory, this machine has {gigabytes(memory_bytes)}; "
            "take `--model 1.5`, which is made for 256 px, or a GPU"
        )
