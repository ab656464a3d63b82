"""Numbers and rows in words, the same in the terminal and in the report. Pure."""

from latentsync_trt.bench.rows import Memory, Quality, Row, StepTimes
from latentsync_trt.bench.spread import Spread

NOT_MEASURED = "not measured"


def number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable: 0.0123, 1.23, 12.3, 123, 1230."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def milliseconds(value_ms: float) -> str:
    """As ms below ten seconds, then as s."""
    return f"{number(value_ms)} ms" if value_ms < 10_000 else f"{number(value_ms / 1000)} s"


def spread(time: Spread) -> str:
    """Where nine of ten runs lie; the only one where there is no more."""
    return "one run" if time.runs == 1 else f"{number(time.p5_ms)}–{number(time.p95_ms)}"


def gigabytes(size_bytes: int | None) -> str:
    """In GB with two digits after the point; nothing where it is not known."""
    return "" if size_bytes is None else f"{size_bytes / 1e9:.2f}"


def title(row: Row) -> str:
    """Case, preset and provider, as far as they matter."""
    return " · ".join(part for part in (row.case, row.preset, row.provider) if part)


def rate(row: Row) -> str:
    """TFLOP/s with the share of the ceiling, or frames/s, whichever the row has."""
    if row.arithmetic is not None:
        share = row.arithmetic.ceiling_share
        per_s = row.arithmetic.tflop_per_s
        shown = f"{number(per_s)} TFLOP/s" if per_s >= 1 else f"{number(1000 * per_s)} GFLOP/s"
        return shown if share is None else f"{shown} ({share:.0%} of matmul)"
    return "" if row.frames_per_s is None else f"{number(row.frames_per_s)} frames/s"


def quality(found: Quality | None) -> str:
    """PSNR and SSIM; LPIPS if it was measured."""
    if found is None:
        return ""
    psnr = "equal" if found.psnr_db is None else f"{found.psnr_db:.1f} dB"
    lpips = "" if found.lpips is None else f", LPIPS {found.lpips:.3f}"
    return f"{psnr}, SSIM {found.ssim:.3f}{lpips}"


def memory(found: Memory | None) -> str:
    """Host and device, GB."""
    if found is None:
        return ""
    device = "" if found.device_bytes is None else f" + {gigabytes(found.device_bytes)} device"
    return f"{gigabytes(found.host_bytes)} GB host{device}"


def step_kind(steps: StepTimes) -> str:
    """ "full", "cached", and whether there is no guidance."""
    return ("full" if steps.full else "cached") + ("" if steps.guided else ", unguided")
