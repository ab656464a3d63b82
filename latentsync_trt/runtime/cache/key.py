"""What an engine was made from and for, and the name that follows from it. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

KEY_FORMAT = 1
"""Part of every digest: entries of another layout are never looked at, so they need no upgrade path."""

DIGEST_LENGTH = 24
"""Hex digits of a digest: 96 bits, and short enough for paths on Windows."""


@dataclass(frozen=True, slots=True)
class EngineKey:
    """Everything that decides whether an engine may be used again.

    Args:
        bundle: name of the bundle, for people. Not part of the digest: equal graphs share engines.
        graph: name of the graph, e.g. "denoise_step".
        graph_sha256: hash over the graph and its weights (`Bundle.graph_hash`).
        provider: "tensorrt", "rtx", "cuda" or "cpu".
        options: provider options that change the engine; no paths.
        precision: of the bundle, "fp32", "fp16", "int8" or "fp8".
        profile: smallest, usual and largest value of each variable dimension; empty for fixed shapes.
        versions: of the libraries that made it, by package name.
        gpu: name of the device, or of the CPU.
        compute_capability: e.g. "8.9"; empty on the CPU.
        form: of the graph, "portable" or "cuda".
    """

    bundle: str
    graph: str
    graph_sha256: str
    provider: str
    options: Mapping[str, str]
    precision: str
    profile: Mapping[str, tuple[int, int, int]]
    versions: Mapping[str, str]
    gpu: str
    compute_capability: str
    form: str = "portable"

    @property
    def digest(self) -> str:
        """Lower-case hex of `DIGEST_LENGTH` digits, equal for keys that differ in nothing but `bundle`."""
        content = {**self.to_json(), "format": KEY_FORMAT}
        del content["bundle"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]

    @property
    def label(self) -> str:
        """The engine in a few words, for messages."""
        return f"{self.graph} of {self.bundle} for {self.provider}{self.form_note}"

    @property
    def form_note(self) -> str:
        """The form in brackets, empty for the portable one."""
        return "" if self.form == "portable" else f" ({self.form} form)"

    def to_json(self) -> dict[str, Any]:
        """The key as JSON types."""
        content = {**asdict(self), "profile": {name: list(span) for name, span in self.profile.items()}}
        if self.form == "portable":  # as keys were before there was another
            del content["form"]
        return content

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """The key that `to_json` wrote; raises KeyError, TypeError or ValueError where it is none."""
        profile = {name: _span(values) for name, values in raw["profile"].items()}
        return cls(**{**raw, "profile": profile})


def _span(values: list[int]) -> tuple[int, int, int]:
    smallest, usual, largest = values
    return smallest, usual, largest
