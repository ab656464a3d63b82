"""Every option that is set is one that the installed provider accepts: its name, and each of its
values.

The providers read options once their libraries load, for which the stand-in serves.
"""

import inspect
import itertools
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from latentsync_trt.runtime.engines.builders import cuda_options, tensorrt_options
from latentsync_trt.runtime.providers import libraries
from tests.tensorrt_stand_in.stand_in import StandIn

pytestmark = pytest.mark.integration


def every_value(make: Callable[..., dict[str, str]]) -> list[dict[str, str]]:
    """The options of every combination of the parameters' values; the last one has every name."""
    choices = {
        name: (False, True) if isinstance(parameter.default, bool) else (0, 1)
        for name, parameter in inspect.signature(make).parameters.items()
    }
    return [
        make(**dict(zip(choices, chosen, strict=True)))
        for chosen in itertools.product(*choices.values())
    ]


# Reads [provider, options] pairs and writes what ONNX Runtime says of each, or an empty line if
# nothing.
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


@pytest.mark.parametrize(
    ("provider", "right", "wrong"),
    [
        (
            "TensorrtExecutionProvider",
            every_value(tensorrt_options),
            {
                "Invalid TensorRT EP option: trt_renamed": {"trt_renamed": "True"},
            },
        ),
        (
            "CUDAExecutionProvider",
            [{"device_id": "0"}, *every_value(cuda_options)],
            {
                'Unknown provider option: "renamed"': {"renamed": "1"},
                "Invalid device ID: 2": {"device_id": "2"},
            },
        ),
    ],
)
def test_a_provider_takes_every_value_and_refuses_others(
    stand_in: StandIn, provider: str, right: list[dict[str, str]], wrong: dict[str, dict[str, str]]
) -> None:
    if not libraries.provider_library("cuda").is_file():
        pytest.skip("this onnxruntime is a build without GPU providers")
    pairs = json.dumps([(provider, own) for own in (*right, *wrong.values())])
    command = [sys.executable, "-c", _ATTEMPTS]
    environment = stand_in.variables(STAND_IN_GPUS="2")
    done = subprocess.run(
        command, input=pairs, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = json.loads(done.stdout)
    assert set(answers[: len(right)]) == {""}
    for answer, words in zip(answers[len(right) :], wrong, strict=True):
        assert words in answer
