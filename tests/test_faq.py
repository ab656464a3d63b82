"""`docs/faq.md` names options and files that exist."""

import re
from dataclasses import fields

from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import flag_name
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "faq.md").read_text(encoding="utf-8")


def test_every_option_exists() -> None:
    options = (*fields(SyncOptions), *fields(RuntimeOptions))
    known = {flag_name(option.name) for option in options} | {option.metadata.get("off") for option in options}
    named = set(re.findall(r"--[a-z][a-z0-9-]*", PAGE))
    assert named <= known | {"--audio"}
    assert len(named) > 15
