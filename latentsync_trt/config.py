"""Options of `sync` and of engines. Each field declares its help, default, limits and group,
once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Literal

from latentsync_trt import option_fields as fields
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import (
    FACES,
    FILES,
    HARDWARE,
    OUTPUT_FILE,
    QUALITY,
    SOUND,
    TIME,
    check_limits,
    option,
)
from latentsync_trt.redo_spans import REDO_METAVAR, RedoSpan, parse_redo

MODEL_FPS = 25
"""Frames per second that LatentSync was trained at; the audio windows are cut for it."""

MODEL_RESOLUTION_PX: dict[str, int] = {"1.6": 512, "1.5": 256}
"""Resolution that each published model was trained at."""

Fps = Literal["source", "25"]
Length = Literal["audio", "video", "longest", "shortest"]
Extend = Literal["pingpong", "loop"]
Silence = Literal["closed", "model"]
AudioSegments = Literal["joined", "public"]
Paste = Literal["face", "mask"]
Occluders = Literal["keep", "paint"]
FinishKind = Literal["match", "plain"]
Codec = Literal["h264", "hevc", "av1", "prores", "ffv1"]
Solver = Literal["ddim", "dpmpp"]
ENCODERS = ("x264", "x265", "svtav1", "nvenc", "prores", "auto")
PresetName = Literal["quality", "balanced", "fast", "draft"]

_sampling_option = partial(option, group=QUALITY, advanced=True)
_engine_option = partial(option, group=HARDWARE, advanced=True)
_time_option = partial(
    option,
    None,
    group=TIME,
    parse=fields.parse_time,
    expected="a time, as 62.5 or 1:02.5 or 1:00:02.5",
    show=lambda time_s: str(float(time_s)),
    metavar="TIME",
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of the sampler."""

    steps: int
    solver: Solver
    cache_interval: int | tuple[int, ...]
    """Every N-th step runs the whole network; or the numbers of the steps that do."""


PRESETS: dict[PresetName, Sampling] = {
    "quality": Sampling(20, "ddim", 1),
    "balanced": Sampling(20, "ddim", 3),
    "fast": Sampling(4, "dpmpp", 1),
    "draft": Sampling(2, "dpmpp", 1),
}
"""What each `--preset` sets; explicit options override it."""


def _checked_encoder(text: str) -> str:
    if text.partition(":")[0] not in ENCODERS:
        raise ValueError(text)
    return text


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a video is lip-synced. Raises `InputError` for values outside their limits and for
    contradicting options.

    Where `steps`, `solver` or `cache_interval` is None, the preset decides: see `sampling`.
    """

    preset: PresetName = option(
        "balanced",
        "quality looks best and takes twice as long as "
        "balanced, fast half as long, and draft a third. "
        "--steps, --solver and --cache-interval override it.",
        group=QUALITY,
    )
    resolution: int | None = _sampling_option(
        None,
        "Face resolution in pixels, divisible by 64; smaller "
        "than the bundle's own only if it was exported with "
        "--min-resolution.  [default: the bundle's]",
        minimum=64,
        maximum=2048,
        multiple=fields.RESOLUTION_STEP_PX,
    )
    steps: int | None = _sampling_option(
        None, "Denoising steps.  [default: from --preset]", minimum=1, maximum=999
    )
    solver: Solver | None = _sampling_option(
        None, "DDIM, or DPM-Solver++(2M), which needs fewer steps.  [default: from --preset]"
    )
    guidance: float = option(
        1.5,
        "Classifier-free guidance scale: higher follows "
        "the speech more strongly; 1 or less halves the work.",
        group=QUALITY,
        minimum=0.0,
        maximum=20.0,
    )
    seed: int = _sampling_option(1247, "Seed of the initial noise.", minimum=0, maximum=2**63 - 1)
    cache_interval: int | tuple[int, ...] | None = _sampling_option(
        None,
        "Run the whole network every N-th step and reuse its "
        "inner features between; 1 = every step. Or the steps that "
        "run it, numbered from 0, as in 0,1,2,5,9,14.  [default: from --preset]",
        parse=fields.parse_cache_interval,
        expected="a number of steps from 1, or their ascending "
        "numbers from 0 to the last, as in 0,1,5",
        show=fields.show_numbers,
        metavar="N|STEP,STEP,...",
    )
    face: str = option(
        "largest",
        "Whose mouth: the largest, left or right face, speaking "
        "= at each time the person who speaks in the video, "
        "index:N = the person of that number in `latentsync-trt "
        "faces`, or the face at:X,Y in pixels. For speaking and "
        "index:N the whole video is searched first, unless there is --faces.",
        group=FACES,
        parse=fields.checked_face,
        expected="largest, left, right, speaking, index:N or at:X,Y",
        metavar="FACE",
    )
    speaker: tuple[fields.Speaker, ...] = option(
        (),
        "Instead of --audio, for several people: the number of "
        "a person and their recording, as in 0=a.wav. Repeat "
        "it for each. With --audio and --turns: the name of the speaker there, as in 0=ann.",
        group=FACES,
        parse=fields.parse_speakers,
        expected="the number of a person and a file, as in 0=a.wav",
        metavar="N=FILE",
    )
    turns: str | Path | None = option(
        None,
        "RTTM file, as diarization tools write it: who speaks "
        "when in --audio. Each person is painted in their turns "
        "and stays as they are at other times.",
        group=FACES,
    )
    faces: str | Path | None = option(
        None,
        "Tracks of people, saved by `latentsync-trt faces`, perhaps edited, instead of searching.",
        group=FACES,
    )
    paste: Paste = option(
        "face",
        "What replaces the picture: the painted face within "
        "its outline, or all of the mask around the mouth.",
        group=FACES,
        advanced=True,
    )
    occluders: Occluders = option(
        "keep",
        "What is in front of the mouth, as a hand or a microphone: "
        "keep leaves it as it is, paint paints over it.",
        group=FACES,
    )
    keep_mask: str | Path | None = option(
        None,
        "Picture of the video's size, or video of its length: what is white there stays as it is.",
        group=FACES,
    )
    enhancer: str | None = option(
        None,
        "Improves each painted face: the name of an installed "
        "package's entry point `latentsync_trt.enhancers`.",
        group=FACES,
        metavar="NAME",
    )
    finish: FinishKind = option(
        "match",
        "match gives the painted mouth the sharpness and the grain of the face around it; "
        "plain pastes it as the model painted it.",
        group=FACES,
    )
    strict: bool = option(
        False,
        "Stop where a painted face does not fit its source, or the built-in model meets another "
        "face than the demo's, instead of saying so and going on.",
        group=QUALITY,
    )
    fps: Fps = option("source", "Frame rate: the video's own, or 25, as in training.", group=TIME)
    length: Length | None = option(
        None,
        "Length of the output: that of the audio, the video, the longer or the shorter one.  "
        "[default: audio; video with --start or --end]",
        group=TIME,
    )
    extend: Extend = option(
        "pingpong",
        "If the video ends before the output: play it back and forth, or start it again.",
        group=TIME,
    )
    preview_s: float | None = option(
        None,
        "Paint and write only the first seconds with speech, to "
        "<video>-preview.mp4; as the last word of a command it needs no number, and means 3.",
        group=FILES,
        minimum=0.1,
        maximum=3600.0,
        given_alone=3.0,
        metavar="SECONDS",
    )
    start: Fraction | None = _time_option(
        "Sync from this time on, in seconds or as 1:02.5; what "
        "is before stays as it is. Speech from another file "
        "begins here."
    )
    end: Fraction | None = _time_option(
        "Sync until this time; what follows stays as it is.  "
        "[default: where the video ends; with --start, where "
        "speech from another file ends]"
    )
    offset: float = option(
        0.0,
        "Milliseconds by which the speech comes later than in its file; less than 0 = earlier.",
        group=TIME,
        minimum=-3_600_000.0,
        maximum=3_600_000.0,
    )
    mix: str | Path | None = option(
        None,
        "What is heard instead of --audio, which then "
        "only moves the lips, as a voice without music.",
        group=SOUND,
    )
    silence: Silence = option(
        "closed",
        "Where no one speaks, also over noise and music: "
        "closed shuts the mouth, model leaves it to the model.",
        group=SOUND,
    )
    audio_segments: AudioSegments = option(
        "joined",
        "How speech of more than 30 s is cut for the audio "
        "encoder: joined = into pieces that overlap and meet in "
        "pauses; public = every 30 s, as the public release does.",
        group=SOUND,
        rare=True,
    )
    codec: Codec | None = option(
        None,
        "Codec of the picture.  [default: h264; hevc for more than 8 bits or HDR]",
        group=OUTPUT_FILE,
    )
    encoder: str | None = option(
        None,
        "Encoder: of the codec on the CPU (x264, x265, svtav1), "
        "nvenc on the GPU, or auto: nvenc if it is available. "
        "Its own name for speed against size may follow, "
        "as in x264:slow, svtav1:8, nvenc:p5 or prores:hq.  "
        "[default: the codec's on the CPU]",
        group=OUTPUT_FILE,
        parse=_checked_encoder,
        expected=f"one of {', '.join(ENCODERS)}, or one of them with a preset, as x264:slow",
        metavar="NAME[:PRESET]",
    )
    crf: int | None = option(
        None,
        "Quality, 0 is best, 51 worst (av1: 63).  [default: 16; 18 with hevc, 24 with av1]",
        group=OUTPUT_FILE,
        minimum=0,
        maximum=63,
    )
    mark: bool = option(
        True,
        "Whether the file's metadata say that AI changed the picture.",
        group=OUTPUT_FILE,
        off="--no-mark",
    )
    c2pa: str | Path | None = option(
        None,
        "Certificate chain and private key (one .pem file) that "
        "sign C2PA content credentials; needs the extra c2pa.",
        group=OUTPUT_FILE,
        advanced=True,
    )
    overwrite: bool = option(False, "Replace the output if there is one.", group=FILES)
    resume: bool = option(False, "Go on with an interrupted run of the same command.", group=FILES)
    redo: tuple[RedoSpan, ...] = option(
        (),
        "Do this span of an output that exists again: in seconds, or as 1:02.5-1:04. The parts "
        "between keyframes that touch it are painted and encoded anew, all else is copied. Repeat "
        "it for several. These may differ from the first run: --seed, --preset, --steps, "
        "--guidance, --face, --faces, --turns, --speaker, --occluders, --keep-mask and --finish.",
        group=FILES,
        parse=parse_redo,
        expected="a begin and a later end, as 12.4:14 or 1:02.5-1:04",
        metavar=REDO_METAVAR,
    )
    keep_source: bool = option(False, "With --redo, leave the source's picture there.", group=FILES)
    backup: bool = option(
        False, "Keep the output that is replaced beside it, as <output>-before.mp4.", group=FILES
    )
    report: str | Path | None = option(
        None,
        "Page (.html) to write with measures and pictures of the result.",
        group=FILES,
        written=True,
    )

    def __post_init__(self) -> None:
        check_limits(self)
        steps = self.sampling.steps
        interval = self.sampling.cache_interval
        if isinstance(interval, tuple) and not {0} <= set(interval) <= set(range(steps)):
            raise InputError(
                f"--cache-interval {fields.show_numbers(interval)}: "
                f"does not ascend from 0 to at most {steps - 1}"
            )
        if self.preview_s is not None and self.resume:
            raise InputError("--preview and --resume exclude each other: a preview begins anew")
        if self.redo and (self.resume or self.preview_s is not None):
            other = "--resume" if self.resume else "--preview"
            raise InputError(f"--redo and {other} exclude each other: a part is done anew, in full")
        if self.keep_source and not self.redo:
            raise InputError("--keep-source: says nothing without --redo; give it a span")
        if self.speaker and self.face != "largest":
            raise InputError(
                f"--face {self.face} and --speaker exclude each other: --speaker says whose face"
            )
        if self.turns and self.face == "speaking":
            raise InputError(
                "--face speaking and --turns exclude each other: both say who is painted when"
            )
        if self.start is not None and self.end is not None and not self.start < self.end:
            raise InputError(
                f"--end {float(self.end):g}: is not after --start {float(self.start):g}"
            )

    @property
    def sampling(self) -> Sampling:
        """The preset with explicit options applied."""
        preset = PRESETS[self.preset]
        if self.cache_interval is None:
            interval = preset.cache_interval
        else:
            interval = self.cache_interval
        return Sampling(self.steps or preset.steps, self.solver or preset.solver, interval)

    @property
    def encoder_name(self) -> str | None:
        if self.encoder is None:
            return None
        return self.encoder.partition(":")[0]

    @property
    def encoder_preset(self) -> str | None:
        """The encoder's own preset; None if `encoder` names none."""
        return (self.encoder or "").partition(":")[2] or None

    @property
    def output_length(self) -> Length:
        """`length`, or its default."""
        part_only = self.start is not None or self.end is not None
        return self.length or ("video" if part_only else "audio")


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How engines are built, cached and run. Raises `InputError` for values outside their limits.

    `dynamic`, `provider_option` and `graph_variant` are part of an engine's key in the cache.
    `device` may be given as a number, several numbers, text as on the command line, or "all"; it
    becomes an int for one GPU, a tuple for several, or "all", which `batch` and `serve` take: one
    clip runs on one GPU.
    """

    dynamic: bool | None = _engine_option(
        None,
        "Engines for all shapes the bundle allows, or "
        "for one shape (fastest).  [default: as exported]",
        off="--static",
    )
    device: int | str | tuple[int, ...] = _engine_option(
        0,
        "GPU, by its number in CUDA; for many clips also several, as in 0,1, or all.",
        parse=fields.parse_device,
        expected="different numbers of GPUs from 0 to "
        f"{fields.MAX_DEVICE}, as in 1 or 0,1, nor all",
        show=fields.show_numbers,
        metavar="N,N,...|all",
    )
    provider_option: tuple[str, ...] = _engine_option(
        (),
        "Option that ONNX Runtime passes to its execution "
        "provider, under the provider's own name, as in "
        "gpu_mem_limit=8000000000 or trt_builder_optimization_level=5. "
        "Repeat it for each.",
        parse=fields.parse_provider_options,
        expected="KEY=VALUE",
        metavar="KEY=VALUE",
        rare=True,
    )
    cuda_graph: bool | None = _engine_option(
        None,
        "Record and replay a CUDA graph; fixed shapes only.  "
        "[default: on up to 256 px, with CUDA where the bundle has "
        "graphs made for it and memory allows]",
        off="--no-cuda-graph",
        rare=True,
    )
    graph_variant: Literal["auto", "portable"] = _engine_option(
        "auto",
        "Variant of the graphs: auto = the one for CUDA "
        "with provider cuda if the bundle has it; portable = "
        "bit-for-bit repeatable, and slower on CUDA.",
        rare=True,
    )
    build: Literal["now", "background"] = _engine_option(
        "now",
        "Missing engines: build them first, or for the "
        "next run while the next provider runs this one.",
    )
    low_memory: bool = option(False, "Keep one network at a time on the GPU.", group=HARDWARE)
    engine_cache: str | Path | None = _engine_option(
        None,
        "Folder of built engines.  [default: $LATENTSYNC_TRT_CACHE_DIR, "
        "else ./engine_cache, else the user's cache]",
        folder=True,
        rare=True,
    )
    syncnet: str | Path | None = _engine_option(
        None,
        "SyncNet's graph, from `export --syncnet`, which measures "
        "LSE-C and LSE-D.  [default: checkpoints/syncnet.onnx "
        "if it is there and a report is made]",
        rare=True,
    )
    verify: bool = _engine_option(
        False, "Compare all files of the bundle with their SHA-256, not only its graphs."
    )

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def provider_options(self) -> Mapping[str, str]:
        """The keys and values of `provider_option`; of the same key, the last counts."""
        pairs = (each.partition("=") for each in self.provider_option)
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def one_device(self) -> int:
        """`device` for what uses one GPU; raises `InputError` if it names several."""
        if not isinstance(self.device, int):
            raise InputError(
                f"--device {fields.show_numbers(self.device)}: "
                "one clip runs on one GPU; give its number, or use "
                "`latentsync-trt batch` for many clips on many GPUs"
            )
        return self.device
