"""Numbers and tables that several pages name, from the committed rows and from the code.

    python scripts/site/facts.py      # writes them into README.md and docs/

A number stands before the comment with its name, as `21.6<!-- sync_512_s --> s`; a table between
`<!-- table: clip -->` and `<!-- /table -->`. The site is built with the rows' values, and a test
compares those in the files.
"""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import PRESETS, PresetName, SyncOptions
from latentsync_trt.export.published import LATENTSYNC, VAE
from latentsync_trt.export.setup_plan import BUNDLE_BYTES, EXPORT_MEMORY_BYTES
from latentsync_trt.runtime.memory_estimate import MemoryEstimate
from latentsync_trt.runtime.providers.table import CUDA

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
CLIP = "sync-cuda-h200-start"
PRESET_CLIPS = "sync-cuda-h100-presets"
START = "sync-cuda-h100-start"
"""Rows of whole clips: today's speed, that by preset, and memory."""
TWO_GPUS = "batch-cuda-h200-x2-512"
"""Rows of many clips on two cards."""
LIVE = "live-cuda-h100"
_BALANCED = "fp16: every 3rd full (`balanced`)"
_RECORDED = {512: False, 256: True}
"""Whether steps are recorded as CUDA graphs by default."""
_START_CASES = {512: "later run, --no-cuda-graph", 256: "256 px, later run"}

CLIP_PRESETS: tuple[PresetName, ...] = ("fast", "draft")
"""Presets that whole clips were measured with."""

FPS = 25
WINDOW_MS = 640
"""Video of a window: 16 frames at 25 a second."""

WEIGHT_BYTES = {
    "unet.weights": 2 * 1_270_000_000 + 460_000_000,
    "vae.weights": 2 * 83_700_000,
    "audio_encoder.weights": 2 * 8_200_000,
}
"""Of the published networks in float16, with the kernels and parts that the CUDA variant stores
besides.
"""

_NUMBER = re.compile(r"[\d.,]*(<!-- ([a-z]\w+) -->)")
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


class Rows:
    """Reads numbers from the committed rows, and remembers the files."""

    def __init__(self) -> None:
        self.used: dict[str, Any] = {}

    def value(self, name: str, *keys: str | int | dict[str, Any]) -> Any:
        """What the keys lead to; a dict is the first entry of a list that has its items."""
        found = self.used.setdefault(
            name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        )
        for key in keys:
            if isinstance(key, dict):
                found = next(row for row in found if key.items() <= row.items())
            else:
                found = found[key]
        return found

    def number(self, name: str, *keys: str | int | dict[str, Any]) -> float:
        """The number that the keys lead to."""
        return float(self.value(name, *keys))

    def get(self, name: str, *keys: str | int | dict[str, Any]) -> float | None:
        """The same, or None where there is no such number."""
        try:
            return self.number(name, *keys)
        except (KeyError, StopIteration):
            return None

    def median_ms(self, name: str, case: str, preset: str | None = None) -> float:
        """Median time in a row of `latentsync-trt bench`."""
        return self.number(name, "rows", {"case": case, "preset": preset}, "time", "median_ms")

    def window_gb(self, name: str) -> float:
        """Peak of GPU memory while a window is painted."""
        row = {"case": "one window", "preset": "balanced"}
        return self.number(name, "rows", row, "memory", "device_bytes") / 1e9

    def batch_pace(self, workers: str) -> float:
        """Seconds of video per second in a batch of one or two workers, a GPU each, after
        start-up.
        """
        return self.number(TWO_GPUS, f"sixteen_clips_{workers}", "summary", "frames_per_s") / FPS

    def clip(self, key: str, size_px: int) -> float:
        """A number of the row of whole clips at that resolution."""
        return self.number(CLIP, "rows", {"resolution_px": size_px}, key)

    def seconds(self, preset: PresetName, size_px: int, card: str) -> float | None:
        """GPU seconds for a second of video, of whole clips or one window; None where no row has
        them.
        """
        if preset in CLIP_PRESETS:
            name = {"h100": PRESET_CLIPS, "h200": CLIP}[card]
            pace = self.get(
                name, "rows", {"resolution_px": size_px, "preset": preset}, "frames_per_s"
            )
            if pace is None:
                return None
            return FPS / pace
        if card != "h100":
            return None
        row = {"case": "one window", "preset": preset}
        window_ms = self.get(f"bench-cuda-h100-{size_px}", "rows", row, "time", "median_ms")
        if window_ms is None:
            return None
        return window_ms / WINDOW_MS

    def peak_gb(self, size_px: int) -> float:
        """Peak of GPU memory in a run at full speed."""
        return self.number(START, "rows", {"case": _START_CASES[size_px]}, "peak_gb")

    def caption(self) -> str:
        """Hardware, versions and links to the rows, as HTML."""
        about = [rows.get("environment", rows) for rows in self.used.values()]
        cards = {each.get("gpu") or each.get("gpus", [each.get("cpu", "")])[0] for each in about}
        versions = {
            f"ONNX Runtime {each['onnxruntime']}" for each in about if "onnxruntime" in each
        }
        versions |= {
            f"TensorRT for RTX {each['tensorrt_rtx']}" for each in about if "tensorrt_rtx" in each
        }
        versions |= {
            f"PyTorch {each['torch']}" for each in about if "pytorch" in each.get("command", "")
        }
        links = (f'<a href="benchmarks/{name}.json">{name}</a>' for name in self.used)
        return (
            f"{', '.join(sorted(filter(None, cards)))}; "
            f"{', '.join(sorted(versions))}. Rows: {', '.join(links)}."
        )


def card() -> str:
    """The GPU of today's clips."""
    return str(Rows().value(CLIP, "environment", "gpu")).removeprefix("NVIDIA ").split()[0]


@cache
def facts() -> dict[str, str]:
    """Every number by its name, as the pages have it."""
    rows = Rows()
    eager_ms = rows.number(CLIP, "pytorch_eager", {"resolution_px": 512}, "denoise_step_ms")
    found = {
        "clip_s": (rows.number(CLIP, "clip", "duration_s"), 2),
        "eager_times": (eager_ms / rows.clip("denoise_step_ms", 512), 1),
        "gpus_times": (rows.batch_pace("two_workers") / rows.batch_pace("one_worker"), 1),
        "weights_gb": ((LATENTSYNC["1.6"].size_bytes + VAE.size_bytes) / 1e9, 1),
        "bundle_gb": (BUNDLE_BYTES["fp16"] / 1e9, 1),
        "export_gb": (EXPORT_MEMORY_BYTES["fp16"] / 1e9, 1),
        "export_cpu_gb": (EXPORT_MEMORY_BYTES["fp32"] / 1e9, 1),
        "run_cpu_gb": (rows.number("install-cpu", "full_size", "peak_host_bytes") / 1e9, 1),
        "least_512_gb": (_least_free_gb(rows), 1),
        "least_256_gb": (
            rows.number("sync-cuda-h200-256-fp16-low-memory-5gb-free", "free_device_gb"),
            1,
        ),
        "download_gb": (rows.number("install-cpu", "downloaded_gb"), 1),
        "install_gb": (rows.number("install-cpu", "installed_gb"), 1),
        "demo_s": (rows.number("install-cpu", "rows", 0, "make_demo_s"), 0),
        "size_times": (rows.clip("denoise_step_ms", 512) / rows.clip("denoise_step_ms", 256), 1),
        "dynamic_times": (
            _step_ms(rows, "256-512 px, dynamic") / _step_ms(rows, "static, CUDA form"),
            1,
        ),
        "variants_apart": (_largest_difference(rows), 4),
        "live_loop_gb": (rows.number(LIVE, "rows", 0, "loop_mb") / 1e3, 1),
        "balanced_db": (
            rows.number("fidelity-demo", "rungs", {"variant": _BALANCED}, "psnr_db"),
            0,
        ),
        "int8_gpu_s": (rows.number("calibrate-cuda-h100", 1, "seconds"), 0),
        "int8_gpu_gb": (rows.number("calibrate-cuda-h100", 1, "peak_device_bytes") / 1e9, 1),
        "int8_cpu_min": (rows.number("calibrate-cpu-full", 2, "seconds") / 60, 0),
        "int8_cpu_gb": (rows.number("calibrate-cpu-full", 2, "peak_host_bytes") / 1e9, 1),
    }
    for size_px in (512, 256):
        pace = rows.clip("frames_per_s", size_px)
        found |= {
            f"sync_{size_px}_s": (rows.clip("process_s", size_px), 1),
            f"first_{size_px}_s": (rows.clip("first_window_s", size_px), 1),
            f"pace_{size_px}": (pace, 1 if size_px == 512 else 0),
            f"peak_{size_px}_gb": (rows.peak_gb(size_px), 1),
            f"turns_{size_px}_gb": (rows.window_gb(f"bench-cuda-h100-{size_px}"), 1),
            f"full_{size_px}_gb": (
                _needed_gb(size_px, pipelined=True, recorded=_RECORDED[size_px]),
                1,
            ),
        }
    return {name: f"{number:.{digits}f}" for name, (number, digits) in found.items()}


def _least_free_gb(rows: Rows) -> float:
    """The least free memory with which a run at 512 px came to its end."""
    name = "sync-cuda-h200-512-short-of-memory"
    return rows.number(
        name, "rows", {"graph_form": "auto, --low-memory", "free_gb": 6.8}, "free_gb"
    )


def _step_ms(rows: Rows, bundle: str) -> float:
    """A full step at 512 px, with a bundle of fixed shapes or of several resolutions."""
    case = {"bundle": bundle, "resolution_px": 512}
    return rows.number("resolutions-cuda-h200", "rows", case, "median_ms", "denoise_step")


def _largest_difference(rows: Rows) -> float:
    """Between values of the two variants of a graph, relative to the largest."""
    graphs = rows.value("forms-cuda-h200-values", "graphs")
    return float(max(max(graph["difference"].values()) for graph in graphs))


@cache
def _manifest() -> Any:
    """Of the published networks in float16."""
    small = Bundle.load(demo_folder(), verify=False).manifest
    files = {
        name: replace(entry, bytes=WEIGHT_BYTES.get(name, entry.bytes))
        for name, entry in small.files.items()
    }
    unet = {**small.unet, "widths": [320, 640, 1280, 1280]}
    graphs = {
        name: replace(graph, forms={"cuda": graph.file}) for name, graph in small.graphs.items()
    }
    return replace(small, frames=16, precision="fp16", unet=unet, files=files, graphs=graphs)


def _needed_gb(size_px: int, **how: bool) -> float:
    """Free GPU memory from which on a run works in this way."""
    manifest = replace(_manifest(), resolution_px=size_px)
    return MemoryEstimate(manifest, CUDA, "cuda").needed_bytes(**how) / 1e9


def clip_table() -> str:
    """Speed of whole clips, and of a step beside PyTorch."""
    rows = Rows()
    known = facts()
    sizes = (512, 256)
    eager = [
        rows.number(CLIP, "pytorch_eager", {"resolution_px": size}, "denoise_step_ms")
        for size in sizes
    ]
    return _table(
        (f"one {card()}, `--preset fast`", "512 px (1.6)", "256 px (1.5)"),
        (
            f"a clip of {known['clip_s']} s, the whole command",
            *(f"{known[f'sync_{size}_s']} s" for size in sizes),
        ),
        (
            "first window painted, from the start of the command",
            *(f"{known[f'first_{size}_s']} s" for size in sizes),
        ),
        ("frames per second while it paints", *(known[f"pace_{size}"] for size in sizes)),
        ("one denoising step", *(f"{rows.clip('denoise_step_ms', size):.1f} ms" for size in sizes)),
        ("… in PyTorch, eager", *(f"{each:.0f} ms" for each in eager)),
    )


def seconds_table() -> str:
    """GPU seconds for a second of video."""
    rows = Rows()
    cards = [(size_px, card) for size_px in (512, 256) for card in ("h100", "h200")]
    lines = []
    for preset in PRESETS:
        found = [rows.seconds(preset, *each) for each in cards]
        label = f"`--preset {preset}`" + (" (default)" if preset == SyncOptions().preset else "")
        lines.append((label, *("" if each is None else f"{each:.2f}" for each in found)))
    return _table(("", *(f"{size_px} px, {card.upper()}" for size_px, card in cards)), *lines)


def memory_table() -> str:
    """What a run does with the GPU memory that it finds free."""
    known = facts()
    sizes = (512, 256)
    full = [f"{known[f'full_{size_px}_gb']} GB" for size_px in sizes]
    turns = [f"{_needed_gb(size_px):.1f} GB" for size_px in sizes]
    least = f"{known['least_512_gb']} and {known['least_256_gb']} GB free were enough"
    return _table(
        ("free at 512 px", "at 256 px", "what a run does", "GB in use, measured"),
        (
            *full,
            "a window is encoded and another decoded while a "
            "third is denoised; at 256 px steps replay CUDA graphs",
            f"{known['peak_512_gb']}; {known['peak_256_gb']}",
        ),
        (
            *turns,
            "windows pass the networks in turn",
            f"{known['turns_512_gb']}; {known['turns_256_gb']}",
        ),
        (
            "less",
            "less",
            f"one network at a time is on the GPU, as with `--low-memory`: {least}",
            "",
        ),
    )


PRESETS_OF_COST: tuple[tuple[int, PresetName], ...] = (
    *((512, "quality"), (512, "balanced"), (512, "fast")),
    *((256, "balanced"), (256, "fast")),
)
_CORE_S = {512: 2.2, 256: 1.8}
"""Core-seconds for a second of video, besides those that feed a painting GPU."""
_FEEDING_CORES = 1.4


def cost_table() -> str:
    """What one H100 does in an hour, and the CPU cores that it needs for that."""
    lines = []
    for size_px, preset in PRESETS_OF_COST:
        seconds = Rows().seconds(preset, size_px, "h100") or 0.0
        cores = _CORE_S[size_px] / seconds + _FEEDING_CORES
        lines.append(
            (
                f"{size_px} px, `{preset}`",
                f"{seconds:.2f}",
                f"{60 / seconds:.0f}",
                f"{cores:.1f}",
            )
        )
    return _table(("one H100", "`f`", "minutes of video per hour", "CPU cores"), *lines)


def live_table() -> str:
    """Seconds from speech to its picture, by what is painted at once, and sessions beside one
    another.
    """
    rows = Rows().value(LIVE, "rows")
    lines = []
    for size_px, frames, hop in ((512, 16, 16), (512, 8, 8), (256, 16, 8), (256, 16, 4)):
        case = {"resolution_px": size_px, "frames": frames, "hop": hop, "picture_px": [1080, 1920]}
        found = {
            row["speech"]: row
            for row in rows
            if case.items() <= row.items() and row["plan"]["steps"] > 2
        }
        delays_ms = (found[speech]["delay_ms"] for speech in ("microphone", "tts"))
        cells = (f"{delay['p50'] / 1000:.2f}, {delay['p99'] / 1000:.2f}" for delay in delays_ms)
        label = f"{size_px} px, windows of {frames}, `--hop {hop}`"
        lines.append((label, *cells, str(found["microphone"]["streams"]["admitted"])))
    return _table(("", "microphone", "text-to-speech, pace 4", "sessions"), *lines)


def eight_bits_table() -> str:
    """What 8 bits change in faces and lips of the built-in model, and in engines of the published
    size.
    """
    rows = Rows()
    kinds = ("int8", "fp8")

    def clip(kind: str, *keys: str | dict[str, Any]) -> float:
        return rows.number(f"compare-demo-{kind}", "clips", 0, *keys)

    def engine(kind: str) -> str:
        bytes_ = rows.number(
            f"check-full-{kind}-512", "graphs", {"graph": "denoise_step"}, "engine_bytes"
        )
        return f"{bytes_ / 1e9:.2f} GB"

    openings = (
        clip("int8", "lips", "a", "opening"),
        *(clip(kind, "lips", "b", "opening") for kind in kinds),
    )
    return _table(
        ("", "float16", "INT8", "FP8"),
        (
            "built-in model: faces against float16, PSNR",
            "",
            *(f"{clip(kind, 'areas', {'area': 'face'}, 'psnr_db'):.1f} dB" for kind in kinds),
        ),
        ("… opening of the lips against the words, r", *(f"{opening:.2f}" for opening in openings)),
        ("published size, 512 px: engine of a full step", *map(engine, ("fp16", *kinds))),
    )


def built_in_table() -> str:
    """How the built-in model does on sentences that it was not trained on."""
    rows = Rows().value("demo-held-out")

    def each(key: str, scale: float = 1.0, unit: str = "") -> tuple[str, ...]:
        return tuple(f"{scale * row[key]:.3g}{unit}" for row in rows)

    return _table(
        ("", "goal", "the built-in sentence", "a second one", "a third one"),
        ("opening, correlation", "≥ 0.9", *each("opening")),
        ("frames late", "0", *each("lag_frames")),
        ("m, b, p shown shut", "≥ 95%", *each("closures", 100, "%")),
        ("shut in silence", "100%", *each("silence", 100, "%")),
        ("range of the gap", "≥ 0.25", *each("range")),
        (
            "finest detail of the mouth",
            "≥ 85%",
            *(f"{100 * row['detail'][0]:.0f}%" for row in rows),
        ),
    )


def _table(head: tuple[str, ...], *lines: tuple[str, ...]) -> str:
    """A Markdown table; columns of short cells are aligned to the right."""
    short = [max(len(line[column]) for line in lines) <= 10 for column in range(len(head))]
    rule = tuple("---:" if each else "---" for each in short)
    return "".join(
        f"|{''.join(f' {cell} |' if cell else ' |' for cell in line)}\n"
        for line in (head, rule, *lines)
    )


_TABLES = {
    "built_in": built_in_table,
    "clip": clip_table,
    "cost": cost_table,
    "eight_bits": eight_bits_table,
    "live": live_table,
    "memory": memory_table,
    "seconds": seconds_table,
}


def updated(text: str) -> str:
    """A page with the numbers and tables of today's rows. Raises `KeyError` for a name that does
    not exist.
    """
    text = _TABLE.sub(lambda found: f"{found[1]}\n{_TABLES[found[2]]()}\n{found[3]}", text)
    return _NUMBER.sub(lambda found: facts()[found[2]] + found[1], text)


def pages() -> list[Path]:
    """The files with such numbers."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if text != (new := updated(text)):
            page.write_text(new, encoding="utf-8", newline="\n")
            print(f"{page.relative_to(ROOT)}: written")
