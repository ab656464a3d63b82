"""Draws the plots of the pages from the committed rows, as SVG in the colors of the page."""

import io
import re

import matplotlib as mpl
from facts import CLIP, Rows, card, facts
from matplotlib.figure import Figure

from latentsync_trt.config import PRESETS

INK = "#010203"
"""Replaced by the page's text color, which changes with its palette."""
TEAL = "#00897b"
ORANGE = "#fb8c00"
GRAY = "#8e8e93"

Bar = tuple[str, str, float]
"""Label, color, value."""


def speed(rows: Rows) -> dict[str, list[Bar]]:
    """GPU work by preset, resolution and card."""
    bars = [
        (f"{size} px, {preset}, {card.upper()}", color, seconds)
        for size in (512, 256)
        for preset in PRESETS
        for card, color in (("h100", ORANGE), ("h200", TEAL))
        if (seconds := rows.seconds(preset, size, card)) is not None
    ]
    return {"seconds of GPU work for a second of video": bars}


def pytorch(rows: Rows) -> dict[str, list[Bar]]:
    """The same networks in PyTorch and here, on one card."""
    panels = {}
    size = {"resolution_px": 512}
    for graph, title in {
        "denoise_step": "full denoising step, ms",
        "vae_encoder": "VAE encoder, 4 pictures, ms",
        "vae_decoder": "VAE decoder, 4 pictures, ms",
    }.items():
        panels[title] = [
            ("here", TEAL, rows.clip(f"{graph}_ms", 512)),
            ("PyTorch", GRAY, rows.number(CLIP, "pytorch_eager", size, f"{graph}_ms")),
        ]
    return panels


def gpus(rows: Rows) -> dict[str, list[Bar]]:
    """Pace of a batch with one and with two GPUs."""
    bars = [
        ("1 GPU", TEAL, rows.batch_pace("one_worker")),
        ("2 GPUs", ORANGE, rows.batch_pace("two_workers")),
    ]
    return {"batch of 16 clips, 8 steps, 3 full: seconds of video per second": bars}


def memory(rows: Rows) -> dict[str, list[Bar]]:
    """Peak of GPU memory by resolution."""
    bars = []
    for size in (512, 256):
        bars.append((f"{size} px, full speed", TEAL, rows.peak_gb(size)))
        bars.append(
            (f"{size} px, networks in turn", ORANGE, rows.window_gb(f"bench-cuda-h100-{size}"))
        )
    return {"GB of GPU memory at the peak": bars}


def eight_bits(rows: Rows) -> dict[str, list[Bar]]:
    """What 8 bits save in an engine and cost in the picture."""
    step = "graphs", {"graph": "denoise_step"}, "engine_bytes"
    face = "clips", 0, "areas", {"area": "face"}, "psnr_db"
    kinds = (("float16", GRAY, "fp16"), ("INT8", TEAL, "int8"), ("FP8", ORANGE, "fp8"))
    sizes = [
        (label, color, rows.number(f"check-full-{key}-512", *step) / 1e9)
        for label, color, key in kinds
    ]
    faces = [
        (label, color, rows.number(f"compare-demo-{key}", *face)) for label, color, key in kinds[1:]
    ]
    return {"GB of a full step's engine, 512 px": sizes, "PSNR of faces against float16, dB": faces}


PLOTS = {
    "speed": speed,
    "pytorch": pytorch,
    "gpus": gpus,
    "memory": memory,
    "eight-bits": eight_bits,
}
OWN_SCALES = ("pytorch", "eight-bits")
"""Plots whose panels have different units or ranges."""


def figure(name: str) -> str:
    """The plot of that name with its caption, as HTML."""
    rows = Rows()
    svg = _draw(PLOTS[name](rows), one_scale=name not in OWN_SCALES)
    return f'<figure id="plot-{name}">{svg}<figcaption>{rows.caption()}</figcaption></figure>'


def numbers() -> str:
    """The numbers of the first page, as HTML."""
    known = facts()
    found = {
        f"{known['pace_512']} frames/s": f"painted at 512 px on one {card()}, with --preset fast",
        f"{known['eager_times']}×": "as fast as PyTorch without torch.compile, on the same card",
        f"{known['least_512_gb']} GB": "of GPU memory is enough at 512 px; "
        f"{known['full_512_gb']} for full speed",
        f"{known['gpus_times']}×": "as many clips with a second GPU",
    }
    return "".join(
        f"<div><b>{number}</b><span>{text}</span></div>" for number, text in found.items()
    )


def _draw(panels: dict[str, list[Bar]], *, one_scale: bool) -> str:
    """Panels of horizontal bars, one below the other, as an `<svg>` element."""
    heights = [len(bars) for bars in panels.values()]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plots"}):
        figure = Figure(
            figsize=(7.2, 0.34 * sum(heights) + 0.62 * len(panels)), layout="constrained"
        )
        axes = figure.subplots(
            len(panels), 1, squeeze=False, sharex=one_scale, height_ratios=heights
        )[:, 0]
        for place, (title, bars) in zip(axes, panels.items(), strict=True):
            labels, colors, values = zip(*bars[::-1], strict=True)
            drawn = place.barh(labels, values, color=colors, height=0.66)
            place.bar_label(drawn, fmt="{:.3g}", padding=4, color=INK)
            place.set_title(title, loc="left", color=INK, fontsize=10.5, fontweight="bold")
            place.margins(x=0.12)
            place.spines[:].set_visible(False)
            place.xaxis.set_visible(False)
            place.tick_params(axis="y", length=0, labelcolor=INK)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue().partition("<svg")[2]
    # Its style sheet would apply to the whole page; a blank line would end the element in Markdown.
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[^"]*pt"', "", re.sub(r"\s+", " ", svg))
    return "<svg role='img'" + svg.replace(INK, "var(--md-default-fg-color)")
