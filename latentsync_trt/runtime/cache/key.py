"""What an engine was built from and for, and the digest that names it in the cache. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

KEY_FORMAT = 1
"""Part of every digest: increase it when the meaning of a field changes, to ignore older engines."""

DIGEST_LENGTH = 24
"""Hex digits of a digest: 96 bits, and short enough for paths on Windows."""


@dataclass(frozen=True, slots=True)
class EngineKey:
    """Everything that decides whether an engine can be reused.

    Args:
        bundle: name of the bundle, for display only: equal graphs of two bundles share an engine.
        graph_sha256: hash over the graph and its weights (`Bundle.graph_hash`).
        options: provider options that change the engine; no paths.
        profile: minimum, optimum and maximum of each variable dimension; empty for fixed shapes.
        versions: of the libraries that built it, by package name.
        gpu: name of the device. compute_capability: e.g. "8.9".
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

    @property
    def digest(self) -> str:
        """Lower-case hex of `DIGEST_LENGTH` digits, equal for keys that differ only in `bundle`."""
        content = {**asdict(self), "format": KEY_FORMAT}
        del content["bundle"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]

    @property
    def label(self) -> str:
        """Short description for messages."""
        return f"{self.graph} of {self.bundle} for {self.provider}"

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """The key from its JSON form; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        profile = {name: (low, usual, high) for name, (low, usual, high) in raw["profile"].items()}
        return cls(**{**raw, "profile": profile})
