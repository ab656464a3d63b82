"""Buffers on devices, also where ONNX Runtime's own CUDA provider is missing, which usually allocates them."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from latentsync_trt.runtime.sessions.memory import DeviceBuffers


@pytest.fixture
def only_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """ONNX Runtime with a plug-in's allocator alone: what it does then, seen with the TensorRT-RTX plug-in."""
    allocated: list[tuple[str, int]] = []
    from_numpy = ort.OrtValue.ortvalue_from_numpy
    from_shape = ort.OrtValue.ortvalue_from_shape_and_type

    def upload(array: Any, device: str = "cpu", device_id: int = 0, *more: Any) -> Any:
        if device != "cpu":
            raise RuntimeError("Can't allocate memory on the CUDA device: CUDA Provider not available")
        return from_numpy(array)

    def allocate(shape: Any, dtype: Any, device: str = "cpu", device_id: int = 0, *more: Any) -> Any:
        allocated.append((device, device_id))
        return from_shape(shape, dtype)

    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_numpy", staticmethod(upload))
    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_shape_and_type", staticmethod(allocate))
    return allocated


@pytest.mark.parametrize("shape", [(), (1, 4, 2, 3, 3)])
def test_values_reach_a_device_through_a_plug_in(shape: tuple[int, ...], only_a_plug_in: list[tuple[str, int]]) -> None:
    array = np.arange(max(1, int(np.prod(shape))), dtype=np.float16).reshape(shape)
    value = DeviceBuffers("cuda", 1).upload("x", array)
    assert only_a_plug_in == [("cuda", 1)]
    assert tuple(value.shape()) == shape  # a scalar stays one
    assert np.array_equal(value.numpy(), array)
    array += 1
    assert not np.array_equal(value.numpy(), array)  # a copy


def test_buffers_are_kept_while_their_shape_stays() -> None:
    buffers, array = DeviceBuffers("cpu", 0), np.arange(6, dtype=np.float32).reshape(2, 3)
    first = buffers.upload("x", array)
    assert buffers.upload("x", -array) is first
    assert np.array_equal(first.numpy(), -array)
    assert buffers.upload("y", array) is not first
    assert buffers.empty("x", (2, 3), np.float32) is first
    assert buffers.upload("x", array.T) is not first
    buffers.clear()
    assert buffers.upload("x", array) is not first
