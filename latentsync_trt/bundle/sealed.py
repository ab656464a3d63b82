"""JSON that holds its own SHA-256, to detect that it was cut or edited."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_SEAL = "sha256"


def sealed_text(content: Mapping[str, Any]) -> str:
    """`content` as JSON with its SHA-256."""
    return json.dumps({**content, _SEAL: _sha256(content)}, indent=2) + "\n"


def opened(content: dict[str, Any]) -> dict[str, Any] | None:
    """Parsed JSON without its SHA-256; None if that is missing or wrong."""
    rest = {key: value for key, value in content.items() if key != _SEAL}
    return rest if content.get(_SEAL) == _sha256(rest) else None


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
