"""The provider that was chosen for a run."""

from dataclasses import dataclass
from typing import Literal

from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.diagnosis import shows_no_gpu
from latentsync_trt.runtime.providers.table import PROVIDERS, Provider


@dataclass(frozen=True, slots=True)
class SkippedProvider:
    """A faster provider that was not chosen, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The provider that was chosen, with the reasons against faster ones."""

    name: str
    skipped_providers: tuple[SkippedProvider, ...] = ()
    gpu: Gpu | None = None
    """None on the CPU."""
    is_named: bool = False
    """Whether the user named the provider, so that no other may take its place."""

    def notices(self) -> list[str]:
        """Returns one line for each reason, with the providers that were skipped for it; none on a
        machine without a GPU.
        """
        if self.gpu is None and shows_no_gpu():
            return []
        names: dict[str, list[str]] = {}
        for skipped in self.skipped_providers:
            names.setdefault(skipped.reason, []).append(skipped.name)
        return [f"skipped {', '.join(group)}: {reason}" for reason, group in names.items()]

    @property
    def provider(self) -> Provider:
        return PROVIDERS[self.name]

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return self.provider.buffers

    @property
    def device_id(self) -> int:
        """Index of the GPU; 0 on the CPU."""
        if self.gpu:
            return self.gpu.index
        return 0
