"""Networks in a process of their own: what they compute, and what happens when the process dies."""

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import BundleError, InferenceError, InputError
from latentsync_trt.runtime.networks import apart as apart_module
from latentsync_trt.runtime.networks.apart import SubprocessNetworks
from latentsync_trt.runtime.networks.devices import networks_on
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import Selection
from tests.small import small_bundle

CPU = Selection("cpu")


def bundle() -> Bundle:
    return Bundle.load(small_bundle(), verify=False)


@pytest.fixture
def apart() -> Iterator[SubprocessNetworks]:
    networks = SubprocessNetworks(bundle(), CPU, RuntimeOptions())
    yield networks
    networks.close()
    assert not psutil.pid_exists(networks._child.pid)


@pytest.mark.integration
def test_results_are_those_of_this_process(apart: SubprocessNetworks) -> None:
    here = Networks(bundle(), CPU, RuntimeOptions())
    random, side_px = np.random.default_rng(0), apart.bundle.manifest.resolution_px
    faces = random.integers(0, 255, (5, side_px, side_px, 3), dtype=np.uint8)
    mask = np.ones((side_px, side_px), np.float32)
    mine, theirs = here.codec.encode_faces(faces, mask), apart.codec.encode_faces(faces, mask)
    assert all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))
    painted = zip(here.codec.decode_faces(mine[0]), apart.codec.decode_faces(theirs[0]), strict=True)
    assert all(np.array_equal(*pictures) for pictures in painted)
    mel = random.standard_normal((1, 80, 3000)).astype(np.float32)
    assert np.array_equal(here.encode_mel(mel), apart.encode_mel(mel))
    assert {time.graph for time in apart.times()} == {time.graph for time in here.times()}
    here.close()


@pytest.mark.integration
def test_errors_and_notices_arrive(apart: SubprocessNetworks) -> None:
    with pytest.raises(InferenceError, match="vae_decoder on CPUExecutionProvider"):
        apart.codec.decode_faces(np.zeros((3, 3), np.float32))
    with pytest.raises(BundleError, match="no graph"):
        apart.prepare(["not_there"])
    with pytest.raises(InputError, match="8 windows: the engines take 1"):
        SubprocessNetworks(bundle(), CPU, RuntimeOptions(windows_per_batch=8))
    apart.prepare([AUDIO_ENCODER])


@pytest.mark.integration
def test_a_gpu_whose_process_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart_module, "_MODULE", "latentsync_trt.not_there")
    first, others, notices = networks_on([CPU, CPU], bundle(), RuntimeOptions(), may_fall_back=True, on_notice=None)
    first.close()
    assert others == []
    assert len(notices) == 1
    assert "the process of the CPU died: exit code 1" in notices[0]
