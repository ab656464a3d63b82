"""`SyncOptions` and `RuntimeOptions`: presets, limits, and the command line, which agrees with
Python.
"""

import sys
from dataclasses import astuple, fields, is_dataclass, make_dataclass
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.bundle.manifest import Bundle, DimensionRange
from latentsync_trt.cli.options import options_of, takes
from latentsync_trt.config import Sampling
from latentsync_trt.errors import InputError
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.option_fields import Speaker, command_line
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.engines.shapes import engine_ranges
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.serve.admission import Limits, LiveLimits
from tests.small import small_bundle


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({"preset": "fast"}, Sampling(4, "dpmpp", 1)),
        (
            {"preset": "fast", "steps": 30, "solver": "ddim", "cache_interval": 4},
            Sampling(30, "ddim", 4),
        ),
        ({"solver": "dpmpp", "cache_interval": (0, 7)}, Sampling(20, "dpmpp", (0, 7))),
    ],
)
def test_options_override_the_preset(given: dict[str, Any], sampling: Sampling) -> None:
    assert SyncOptions(**given).sampling == sampling


def test_times_and_speakers_are_objects_or_text() -> None:
    wanted = Fraction(125, 2)
    assert [SyncOptions(start=given).start for given in (62.5, "1:02.5", wanted)] == [wanted] * 3
    assert SyncOptions(start=0.1, end=np.float32(0.25)).start == Fraction(1, 10)
    ann = Speaker(0, "a.wav")
    ben = Speaker(3, "b=c.wav")
    assert SyncOptions(speaker=["0=a.wav", ben]).speaker == (ann, ben)
    assert SyncOptions(speaker=(ann, "3=b=c.wav")).speaker == (ann, ben)
    assert SyncOptions(speaker="0=a.wav").speaker == (ann,)


EVERY = """
--preset fast --steps 9 --solver ddim --guidance 1.75 --seed 7 --cache-interval 0,1,5
--turns t.rttm --faces f.json
--keep-mask m.png --occluders paint --finish plain --paste mask --enhancer sharp --fps 25
--length longest --extend loop --start 2.5 --end 1:00:00 --offset -40 --mix m.wav --silence model
--codec prores
--audio-segments public
--encoder prores:hq --crf 20 --no-mark --c2pa c.pem --overwrite --strict
--redo 1:02.5-1:04 --redo 5:6.25 --keep-source --backup
--report page.html --resolution 320 --speaker 0=a.wav --speaker 2=b.wav
"""


def parsed(cls: type[Any], words: list[str]) -> Any:
    """What the command line makes of `words`."""
    request_class = make_dataclass("Request", [("options", cls, options_of())])
    requests: list[Any] = []
    command = click.command()(takes(request_class)(requests.append))
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return requests[0].options


def test_options_come_back_from_the_command_line() -> None:
    every = parsed(SyncOptions, EVERY.split())
    at_default = [spec.name for spec in fields(every) if getattr(every, spec.name) == spec.default]
    assert at_default == ["face", "preview_s", "resume"]  # which exclude others
    for options in (every, SyncOptions(cache_interval=4, face="at:10,20.5")):
        assert parsed(SyncOptions, command_line(options)) == options


def option_classes() -> list[type[Any]]:
    """Every dataclass of the library that declares options."""
    classes = set()
    for name, module in sys.modules.items():
        if name.startswith("latentsync_trt"):
            classes |= {value for value in vars(module).values() if is_options_class(value)}
    return sorted(classes, key=lambda cls: cls.__name__)


def is_options_class(value: Any) -> bool:
    if not (isinstance(value, type) and is_dataclass(value)):
        return False
    of_a_command = value.__module__.startswith("latentsync_trt.cli.")
    return not of_a_command and any("help" in spec.metadata for spec in fields(value))


@pytest.mark.parametrize("cls", [Limits, LiveLimits, LiveOptions, SyncOptions])
def test_too_small_a_number_is_refused(cls: type[Any]) -> None:
    for spec in fields(cls):
        if "minimum" in spec.metadata:
            with pytest.raises(InputError) as problem:
                cls(**{spec.name: spec.metadata["minimum"] - 1})
            assert problem.value.option == spec.name
            assert "number" in str(problem.value)


@pytest.mark.parametrize("cls", option_classes())
def test_defaults_of_the_command_line_are_those_of_python(cls: type[Any]) -> None:
    assert parsed(cls, []) == cls()


WRONG = [
    ({"solver": "euler"}, "--solver euler: not one of ddim, dpmpp"),
    ({"steps": 0}, "--steps 0: not a whole number from 1 to 999"),
    ({"cache_interval": (0, 3, 3)}, "--cache-interval .*: not a number"),
    ({"cache_interval": (0, 4), "preset": "fast"}, "at most 3"),
    ({"start": 3, "end": 3}, "--end 3: is not after --start 3"),
    ({"start": "1:77"}, "--start 1:77: not a time"),
    ({"speaker": "0=a.wav", "face": "left"}, "--face left and --speaker exclude each other"),
    ({"offset": float("inf")}, "--offset inf: not a number from"),
]


# A value for every field that is not its default, and one more of those that have three.
VALUES: dict[str, Any] = {
    "dynamic": False,
    "device": 1,
    "provider_option": ("trt_builder_optimization_level=4", "gpu_mem_limit=1"),
    "cuda_graph": False,
    "graph_variant": "portable",
    "build": "background",
    "low_memory": True,
    "engine_cache": Path("a folder/für Ženy"),
    "syncnet": Path("syncnet.onnx"),
    "verify": True,
}


def test_runtime_options_come_back_from_the_command_line() -> None:
    assert set(VALUES) == {spec.name for spec in fields(RuntimeOptions)}
    for options in (
        RuntimeOptions(**VALUES),
        RuntimeOptions(dynamic=True),
        RuntimeOptions(cuda_graph=True),
    ):
        assert parsed(RuntimeOptions, command_line(options)) == options
    assert command_line(RuntimeOptions(engine_cache=Path("cache"))) == ["--engine-cache", "cache"]


WRONG_RUNTIME = [
    ({"device": "0,1,0"}, "--device 0,1,0: not different numbers"),
    ({"provider_option": "level"}, "--provider-option level: not KEY=VALUE"),
]


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [(SyncOptions, *case) for case in WRONG] + [(RuntimeOptions, *case) for case in WRONG_RUNTIME],
)
def test_invalid_values_are_refused(cls: type[Any], given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cls(**given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"dynamic": True},
            "bundle demo has fixed shapes; export it with `--dynamic`, or leave --dynamic out",
        ),
        ({"cuda_graph": True}, "--cuda-graph: not with provider cpu, only on a GPU"),
    ],
)
def test_what_a_bundle_or_provider_lacks(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    bundle = Bundle.load(small_bundle(), verify=False)
    cache = EngineCache(tmp_path / "cache")
    with pytest.raises(InputError, match=words):
        SessionFactory(bundle, Selection("cpu"), RuntimeOptions(**options), cache)


def test_engines_cover_what_a_run_uses_of_a_dynamic_bundle() -> None:
    """An engine holds the memory of its largest shape."""
    names = "windows", "frames", "images", "segments", "latent_height"
    spans = (1, 1, 4), (2, 16, 24), (1, 4, 8), (1, 4, 8), (32, 64, 64)
    bundle = {name: DimensionRange(*span) for name, span in zip(names, spans, strict=True)}
    used = (1, 1, 1), (16, 16, 16), (4, 4, 4), (1, 1, 1), (32, 64, 64)
    assert [astuple(engine_ranges(bundle)[name]) for name in names] == [*used]


ANY = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=3)
)
OTHERS = [np.zeros(2), Path("a"), b"a", object(), Fraction(1, 3), {}]


@pytest.mark.parametrize("cls", [SyncOptions, RuntimeOptions])
@given(data=st.data(), value=ANY | st.tuples(ANY, ANY) | st.sampled_from(OTHERS))
def test_a_field_takes_what_fits_its_type_or_the_error_names_it(
    cls: type[Any], data: st.DataObject, value: Any
) -> None:
    spec = data.draw(st.sampled_from(fields(cls)))
    hint = get_type_hints(cls)[spec.name]
    kinds = {hint, *get_args(hint)}
    try:
        taken = getattr(cls(**{spec.name: value}), spec.name)
    except InputError as error:
        assert error.option == spec.name
        return
    if taken is None:
        assert type(None) in kinds
    elif isinstance(taken, bool):
        assert bool in kinds
    elif isinstance(taken, Real):
        assert kinds & {int, float, Fraction}
    elif isinstance(taken, Path):
        assert Path in kinds
    else:
        assert isinstance(taken, str | tuple | list)
