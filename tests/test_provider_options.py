"""Every option that is set is one that the installed provider accepts: its name, and each of its values.

Names are looked up in the provider's library, those of the plug-in in its header, as its compiler has put short ones
into instructions. Values are given to the provider itself: ONNX Runtime reads TensorRT's before it looks for TensorRT;
the CUDA provider reads its own once its libraries load, for which the stand-in serves.
"""

import inspect
import itertools
import json
import mmap
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.runtime.compiler.profiles import InputShapes
from latentsync_trt.runtime.providers import libraries
from latentsync_trt.runtime.sessions.builders import RTX_KERNEL_CACHE, cuda_options, rtx_options, tensorrt_options
from tests.tensorrt_stand_in.stand_in import stand_in_at

SHAPES = {"latents": InputShapes((1, 4), (2, 4), (3, 4)), "history": InputShapes((1, 2), (1, 2), (1, 2))}

# What parameters that are no flags are set to.
VALUES: dict[str, tuple[Any, ...]] = {"device": (0, 1), "shapes": (None, SHAPES)}

MAKERS: dict[str, Callable[..., dict[str, str]]] = {
    "cuda": cuda_options,
    "tensorrt": tensorrt_options,
    "rtx": rtx_options,
}
NAMES = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


def every_value(provider: str) -> list[dict[str, str]]:
    """The dictionaries of every combination of the parameters' values; the last one has every name."""
    choices = {
        name: (False, True) if isinstance(parameter.default, bool) else VALUES[name]
        for name, parameter in inspect.signature(MAKERS[provider]).parameters.items()
    }
    made = MAKERS[provider]
    return [made(**dict(zip(choices, chosen, strict=True))) for chosen in itertools.product(*choices.values())]


# With every parameter set, so that every name is emitted.
OPTIONS = {provider: every_value(provider)[-1] for provider in MAKERS}
OPTIONS["rtx"][RTX_KERNEL_CACHE] = "a folder/für Ženy"

# A provider's own option names that we use beside the option objects.
PROBE_OPTIONS = {"device_id": "0", "trt_op_types_to_exclude": "Neg"}

NOT_LOADED = "Failed to add provider of type", "Please install TensorRT libraries"
"""What ONNX Runtime says of options that it has read, for a provider whose libraries are missing."""

_LIMIT_S = 100

# Reads [provider, options] pairs and writes what ONNX Runtime says of each, or an empty line if nothing.
_ATTEMPTS = """
import json, sys
import onnxruntime as ort

ort.set_default_logger_severity(4)

def attempt(name, own):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        options.add_provider(name, own)
    except Exception as error:
        return str(error).strip()
    return ""

json.dump([attempt(*pair) for pair in json.load(sys.stdin)], sys.stdout)
"""


def said(provider: str, dictionaries: Sequence[Mapping[str, str]], environment: Mapping[str, str]) -> list[str]:
    """What ONNX Runtime says, in a process of its own, of each of `dictionaries`; empty of what the provider took."""
    pairs = [(NAMES[provider], dict(own)) for own in dictionaries]
    command = [sys.executable, "-c", _ATTEMPTS]
    done = subprocess.run(
        command,
        input=json.dumps(pairs),
        env=dict(environment) or None,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers: list[str] = json.loads(done.stdout)
    return answers


def refusals(provider: str, dictionaries: Sequence[Mapping[str, str]], environment: Mapping[str, str]) -> list[str]:
    """Those of `said` that are about the options."""
    answers = said(provider, dictionaries, environment)
    return [answer for answer in answers if answer and not any(sign in answer for sign in NOT_LOADED)]


@pytest.fixture
def with_cuda(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the CUDA provider loads, on a machine with two GPUs."""
    if not libraries.provider_library("cuda").is_file():
        pytest.skip("this onnxruntime is a build without GPU providers")
    return stand_in_at(tmp_path).variables(STAND_IN_GPUS="2")


def library_of(provider: str) -> Path:
    path = libraries.provider_library(provider)
    if not path.is_file():
        pytest.skip("this onnxruntime is a build without GPU providers")
    return path


def plug_in_folder() -> Path:
    folder = libraries.package_folder(libraries.RTX_PACKAGE)
    if folder is None:
        pytest.skip('the TensorRT-RTX plug-in is not installed: pip install "latentsync-trt[dev]"')
    return folder


def unknown_names(provider: str, names: tuple[str, ...]) -> list[str]:
    """Those of `names` that the plug-in's header lacks, or that no string (text between zero bytes) of a library is."""
    if provider == "rtx":
        header = (plug_in_folder() / "tensorrt_rtx_provider_options.h").read_text(encoding="utf-8")
        _, _, own = header.partition("namespace provider_option_names")
        known = re.findall(r'constexpr const char\* \w+ = "(\w+)";', own.partition("namespace")[0])
        return [name for name in names if name not in known]
    path = library_of(provider)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [name for name in names if content.find(b"\0" + name.encode() + b"\0") < 0]


# Names.


@pytest.mark.parametrize("provider", OPTIONS)
def test_a_provider_knows_every_option_that_it_is_given_and_no_other(provider: str) -> None:
    names = tuple(OPTIONS[provider])
    assert unknown_names(provider, names) == []
    made_up = tuple(f"{name}_renamed" for name in names)
    assert unknown_names(provider, made_up) == list(made_up)


def test_the_options_of_the_trial_session_exist() -> None:
    assert unknown_names("tensorrt", tuple(PROBE_OPTIONS)) == []


# Values.


def test_tensorrt_takes_every_value_that_we_give() -> None:
    library_of("tensorrt")
    assert refusals("tensorrt", [*every_value("tensorrt"), PROBE_OPTIONS], {}) == []


def test_tensorrt_refuses_what_it_does_not_take() -> None:
    library_of("tensorrt")
    wrong = {
        "trt_cuda_graph_enable": ("1", "'trt_cuda_graph_enable' should be 'True' or 'False'"),
        "trt_cuda_graph_enabled": ("True", "Invalid TensorRT EP option: trt_cuda_graph_enabled"),
        "device_id": ("first", "stoi"),
    }
    answers = refusals("tensorrt", [{name: value} for name, (value, _) in wrong.items()], {})
    for answer, (_, words) in zip(answers, wrong.values(), strict=True):
        assert words in answer


def test_tensorrt_and_cuda_take_every_value_where_they_load(with_cuda: dict[str, str]) -> None:
    assert set(said("tensorrt", [*every_value("tensorrt"), PROBE_OPTIONS], with_cuda)) == {""}
    assert set(said("cuda", [*every_value("cuda"), {"device_id": "0"}], with_cuda)) == {""}


def test_cuda_refuses_what_it_does_not_take(with_cuda: dict[str, str]) -> None:
    right = OPTIONS["cuda"]
    wrong = [own for name in right for own in ({f"{name}_renamed": right[name]}, {name: "wrong"})]
    *answers, absent = said("cuda", [*wrong, {"device_id": "2"}], with_cuda)
    for name, renamed, misread in zip(right, answers[::2], answers[1::2], strict=True):
        assert f'Unknown provider option: "{name}_renamed"' in renamed
        assert f'Failed to parse provider option "{name}"' in misread
    assert "Invalid device ID: 2" in absent
