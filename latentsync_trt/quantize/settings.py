"""What `calibrate` can be told."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS
from latentsync_trt.config import check_limits, option
from latentsync_trt.quantize.ranges import METHODS, PERCENTILE, Method

if TYPE_CHECKING:
    from latentsync_trt.quantize.options import QuantizeOptions

NOTHING = "none"


def parse_kept(text: str) -> tuple[str, ...]:
    """ "conv_in,conv_out" → ("conv_in", "conv_out"); "none" → ()."""
    return () if text == NOTHING else tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """How a bundle is calibrated. Raises `InputError` on a value outside its limits; needs no extra to be made.

    What was seen of clips once serves all values of `precision`, `method`, `percentile`, `smooth`, `keep`,
    `target_psnr` and `measure`; the others decide what is seen.
    """

    precision: Literal["int8", "fp8"] = option(
        "int8", "What most layers of the U-Net compute in.", choices=EIGHT_BIT_PRECISIONS
    )
    samples: int = option(
        32, "Windows to look at, spread evenly over the clips; more are slower and surer.", minimum=1, maximum=4096
    )
    method: Method = option(
        "percentile",
        "Where eight bits end: max = at the largest value seen; percentile = where so many values lie within; "
        "entropy = where the values keep their distribution best.",
        choices=METHODS,
    )
    percentile: float = option(PERCENTILE, "Share of values, for the method of that name.", minimum=90.0, maximum=100.0)
    smooth: float | None = option(
        None,
        "SmoothQuant: how much of the range of linear layers' inputs goes over to their weights, e.g. 0.5.  "
        "[default: not used]",
        minimum=0.0,
        maximum=1.0,
    )
    keep: tuple[str, ...] | None = option(
        None,
        f"Layers that keep their precision: parts of names, with commas, or {NOTHING}. With --target-psnr, the choice "
        "to begin with.  [default: convolutions that read or write what is not normalized]",
        parse=parse_kept,
        metavar="NAMES",
    )
    target_psnr: float | None = option(
        None,
        "Search for the fewest layers to keep so that faces after the whole loop are so near to the bundle's own, in "
        "dB.  [default: no search]",
        minimum=1.0,
        maximum=120.0,
    )
    measure: bool = option(
        True, "Measure what the result makes of faces, on windows that were not looked at.", off="--no-measure"
    )
    steps: int = option(20, "Denoising steps of the loops that are looked at.", minimum=1, maximum=999)
    cache_interval: int = option(3, "Run the whole network every N-th of these steps.", minimum=1, maximum=999)
    guidance: float = option(1.5, "Guidance scale of these loops, above 1.", minimum=1.001, maximum=20.0)
    seed: int = option(1247, "Seed of the noise they begin with.", minimum=0, maximum=2**63 - 1)

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def measures(self) -> bool:
        """Whether whole loops are run on windows that were not looked at, to measure the result or to search for it."""
        return self.measure or self.target_psnr is not None

    def quantize_options(self) -> "QuantizeOptions":
        """What of this concerns the rewriting of graphs; needs the extra."""
        from latentsync_trt.quantize.options import RESIDUAL_READERS, QuantizeOptions

        kept = RESIDUAL_READERS if self.keep is None else self.keep
        return QuantizeOptions(self.precision, kept, self.method, self.percentile, self.smooth)

    def of_the_loops(self) -> dict[str, Any]:
        """What decides what is seen, as JSON types."""
        names = ("samples", "steps", "cache_interval", "guidance", "seed")
        return {name: getattr(self, name) for name in names}
