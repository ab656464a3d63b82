"""A VAE whose values exceed float16's range is refused by verification, which runs on a CPU that does not show it."""

from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export import exporter
from latentsync_trt.export.exporter import plan_graphs
from latentsync_trt.export.graphs import GraphPlan
from tests import narrow
from tests.export.test_cuda_form import make_vae

pytestmark = pytest.mark.integration

LARGE = 2e5
"""By how much values grow in a part of the VAE; elsewhere in a narrow one they stay below 25."""


def overflowing(vae: Any) -> Any:
    """`vae`, whose values are `LARGE` times as large between the decoder's second and third block; its pictures are the
    same, as a norm or a smaller weight follows on every way."""
    grown = vae.decoder.up_blocks[1].upsamplers[0].conv
    grown.weight.mul_(LARGE)
    grown.bias.mul_(LARGE)
    vae.decoder.up_blocks[2].resnets[0].conv_shortcut.weight.div_(LARGE)
    return vae


def test_values_beyond_half_precision_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoder(*arguments: Any) -> list[GraphPlan]:
        return [plan for plan in plan_graphs(*arguments) if plan.name == "vae_decoder"]

    monkeypatch.setattr(exporter, "plan_graphs", decoder)
    sources = narrow.write_sources(tmp_path)
    overflowing(make_vae()).save_pretrained(sources.vae)
    with pytest.raises(ExportMismatch, match=r"output image: .* are not finite; export with --precision fp32"):
        exporter.export_bundle(narrow.narrow_options(sources, tmp_path / "bundle", precision="fp16"))
    assert not (tmp_path / "bundle").exists()
