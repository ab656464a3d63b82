"""Which resolution a run has, and what is said about it."""

from dataclasses import replace

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.bundle.manifest import DimensionRange, Manifest, read_manifest, resolution_of
from latentsync_trt.errors import InputError
from tests.small import small_bundle

FIXED = replace(read_manifest(small_bundle()), model="1.6", resolution_px=512)
RANGES = {
    **dict.fromkeys(("height", "width"), DimensionRange(256, 512, 512)),
    **dict.fromkeys(("latent_height", "latent_width"), DimensionRange(32, 64, 64)),
    "windows": DimensionRange(1, 1, 4),
}
SEVERAL = replace(FIXED, shapes="dynamic", ranges=RANGES)


@pytest.mark.parametrize(
    ("manifest", "asked", "found"),
    [
        (FIXED, None, 512),
        (FIXED, 512, 512),
        (SEVERAL, 448, 448),
        (FIXED, 256, 0),
        (SEVERAL, 192, 0),
    ],
)
def test_a_run_has_the_resolution_that_was_asked_for_or_says_how_to_get_it(
    manifest: Manifest, asked: int | None, found: int
) -> None:
    if found:
        assert resolution_of(manifest, SyncOptions(resolution=asked)) == found
        return
    supported = "512 px" if manifest is FIXED else "256 to 512 px"
    with pytest.raises(InputError, match=f"{supported}.*--resolution 512 --min-resolution {asked}"):
        resolution_of(manifest, SyncOptions(resolution=asked))


@pytest.mark.parametrize(
    ("model", "resolution_px", "trained_px"),
    [("1.6", 512, 0), ("1.6", 256, 512), ("1.5", 512, 256), ("my own", 256, 0)],
)
def test_a_resolution_that_the_model_was_not_trained_at_is_told(
    model: str, resolution_px: int, trained_px: int
) -> None:
    found = replace(SEVERAL, model=model).notices_at(resolution_px)
    assert len(found) == bool(trained_px)
    assert all(f"{trained_px} px" in text and f"{resolution_px} px" in text for text in found)
