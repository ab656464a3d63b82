"""The model of a `LipSync`: opened once, again with more graphs when no call uses it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import BundleError, Busy, InputError
from latentsync_trt.sync.model_slot import ModelSlot
from tests.compiling import COMPILING, CopyBuilder
from tests.device import CPU
from tests.toy import write_toy

TIMEOUT_S = 600.0
WAITS_S = 0.3
"""After this long, a call waits."""

A = "denoise_step"
B = "denoise_step_cached"
C = "denoise_step_unguided"


@pytest.fixture
def toy(tmp_path: Path) -> Bundle:
    return write_toy(tmp_path / "toy", unguided=True)


@pytest.fixture
def slot(toy: Bundle) -> Iterator[ModelSlot]:
    made = ModelSlot(toy, CPU, RuntimeOptions())
    yield made
    made.close()


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    """Runs calls in threads."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def used(slot: ModelSlot, *graphs: str) -> frozenset[str]:
    """The graphs of the model that a call with these gets."""
    with slot.use_model(graphs) as model:
        return model.graphs


@pytest.mark.parametrize(
    ("calls", "opened"),
    [([{A, B}, {A, B}, {B}], [{A, B}]), ([{A}, {B}, {A, B}, {C}], [{A}, {A, B}, {A, B, C}])],
)
def test_calls_one_after_another(
    slot: ModelSlot, calls: list[set[str]], opened: list[set[str]]
) -> None:
    models: list[Any] = []
    for graphs in calls:
        with slot.use_model([*graphs]) as model:
            models += [] if model in models else [model]
    assert [model.graphs for model in models] == opened
    assert slot.model is models[-1]


def test_one_that_needs_more_waits_for_the_others(
    slot: ModelSlot, background: Callable[..., Future[Any]]
) -> None:
    with slot.use_model([A]) as first:
        with slot.use_model([A]) as second:
            assert second is first
            more = background(used, slot, A, B)
            assert not wait([more], WAITS_S).done
        assert not wait([more], WAITS_S).done
    assert more.result(TIMEOUT_S) == {A, B}


def test_no_call_waits_for_live_sessions(
    slot: ModelSlot, background: Callable[..., Future[Any]]
) -> None:
    with slot.use_model([A], for_live_session=True):
        with slot.use_model([A]) as model:
            assert model is slot.model
            more = background(used, slot, A, B, C)
            assert not wait([more], WAITS_S).done  # for the clip beside the session
        with pytest.raises(Busy, match=f"{B}, {C}"):
            more.result(TIMEOUT_S)
    assert used(slot, A, B, C) == {A, B, C}


def test_one_that_cannot_be_opened_is_tried_again(slot: ModelSlot) -> None:
    used(slot, A)
    for _ in range(2):
        with pytest.raises(BundleError), slot.open_in_background([B, "upside_down"]) as opened:
            opened()
    assert used(slot, A) == {A}
    with slot.open_in_background([B]) as opened:
        assert opened() is opened() is slot.model
    assert used(slot, C) == {A, B, C}  # as no call uses it any more


@pytest.mark.parametrize("builds", [True, False])
def test_an_error_beside_opening_leaves_no_user(
    toy: Bundle, builder: CopyBuilder, tmp_path: Path, builds: bool
) -> None:
    """What must build engines for it does not open before it is waited for."""
    slot = ModelSlot(
        toy, COMPILING if builds else CPU, RuntimeOptions(engine_cache=tmp_path / "cache")
    )
    with pytest.raises(InputError, match="damaged"), slot.open_in_background([A]):
        raise InputError("damaged")
    assert (slot.model is None) == builds
    assert builder.built == []
    assert used(slot, A) == {A}
    slot.close()
