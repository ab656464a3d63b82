"""Makes tests/data/small_bundle, for tests that need any bundle.

    python scripts/make_test_bundle.py        # needs the export extra

Real networks of small widths with seeded random weights, which its manifest notes: its mouths do
not follow speech. The model that `latentsync-trt demo` runs is made by scripts/train_demo.
"""

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.bundle.manifest import MANIFEST_NAME, read_manifest, write_manifest  # noqa: E402
from latentsync_trt.export.exporter import export_bundle  # noqa: E402
from latentsync_trt.types import Progress  # noqa: E402
from tests import narrow  # noqa: E402
from tests.small import RESOLUTION_PX, small_bundle  # noqa: E402

TARGET = small_bundle()
FRAMES = 16
UNTRAINED = "untrained: random weights, so the mouth shows noise, not speech"


def print_progress(progress: Progress) -> None:
    print(f"{progress.done:3} % {progress.stage}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources = narrow.write_sources(
            Path(folder) / "sources", narrow.ONE_LEVEL, vae_widths=(8, 8, 8, 8)
        )
        options = narrow.narrow_options(
            sources, Path(folder) / "demo", resolution=RESOLUTION_PX, frames=FRAMES
        )
        bundle = export_bundle(options, print_progress)
        manifest = read_manifest(bundle)
        (bundle / MANIFEST_NAME).unlink()
        write_manifest(bundle, replace(manifest, name="demo", model="demo", notes=(UNTRAINED,)))
        if TARGET.exists():
            shutil.rmtree(TARGET)
        shutil.copytree(bundle, TARGET)
    print(f"{TARGET}: {sum(path.stat().st_size for path in TARGET.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
