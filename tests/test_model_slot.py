"""The model of a `LipSync`: opened once, again with more graphs when no call uses it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest

from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import Busy, EngineBuildError, InputError
from latentsync_trt.sync import model_slot
from latentsync_trt.sync.model_slot import ModelSlot

TIMEOUT_S = 600.0
WAITS_S = 0.3
"""After this long, a call waits."""


class OpenedModel:
    """Stands in for `Model`."""

    def __init__(self, graphs: Sequence[str]) -> None:
        self.graphs, self.is_open, self.build = frozenset(graphs), True, None

    def close(self) -> None:
        self.is_open = False


class Opening:
    """Opens models, and keeps them; the next one fails with `error`, if there is one."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.error: Exception | None = None

    def __call__(self, bundle: None, selection: None, options: RuntimeOptions, graphs: Sequence[str], _: None) -> Any:
        assert not any(model.is_open for model in self.models)
        if self.error is not None:
            raise self.error
        self.models.append(OpenedModel(graphs))
        return self.models[-1]

    def graphs(self) -> list[str]:
        """Of each model that was opened, sorted."""
        return ["".join(sorted(model.graphs)) for model in self.models]


@pytest.fixture
def opening() -> Opening:
    return Opening()


@pytest.fixture
def slot(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> ModelSlot:
    nothing: Any = None
    for name, stand_in in {
        "check_options": lambda *_: None,
        "must_build": lambda *_: False,
        "open_model": opening,
    }.items():
        monkeypatch.setattr(model_slot, name, stand_in)
    return ModelSlot(nothing, nothing, RuntimeOptions())


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    """Runs calls in threads."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def used(slot: ModelSlot, graphs: str) -> frozenset[str]:
    """The graphs of the model that a call with these gets."""
    with slot.acquired(graphs) as model:
        return model.graphs


@pytest.mark.parametrize(
    ("calls", "opened"),
    [(["ab", "ab", "b"], ["ab"]), (["ab", "bc"], ["ab", "abc"]), (["a", "b", "ab", "c"], ["a", "ab", "abc"])],
)
def test_calls_one_after_another(slot: ModelSlot, opening: Opening, calls: list[str], opened: list[str]) -> None:
    for graphs in calls:
        with slot.acquired(graphs) as model:
            assert model.graphs.issuperset(graphs)
    assert opening.graphs() == opened
    assert slot.model is opening.models[-1]
    slot.close()
    assert not any(model.is_open for model in opening.models)


def test_one_that_needs_more_waits_for_the_others(
    slot: ModelSlot, opening: Opening, background: Callable[..., Future[Any]]
) -> None:
    with slot.acquired("a") as first:
        with slot.acquired("a") as second:
            assert second is first
            more = background(used, slot, "ab")
            assert not wait([more], WAITS_S).done
        assert not wait([more], WAITS_S).done
    assert more.result(TIMEOUT_S) == {"a", "b"}
    assert opening.graphs() == ["a", "ab"]


def test_nobody_waits_for_live_sessions(
    slot: ModelSlot, opening: Opening, background: Callable[..., Future[Any]]
) -> None:
    with slot.acquired("a", lasting=True):
        with slot.acquired("a") as model:
            assert model is slot.model
            more = background(used, slot, "abc")
            assert not wait([more], WAITS_S).done  # for the clip beside the session
        with pytest.raises(Busy, match="live sessions use the open networks, and b, c would have to be opened"):
            more.result(TIMEOUT_S)
    assert used(slot, "abc") == {"a", "b", "c"}


def test_one_that_cannot_be_opened_is_tried_again(slot: ModelSlot, opening: Opening) -> None:
    used(slot, "a")
    opening.error = EngineBuildError("b cannot be built")
    for _ in range(2):
        with pytest.raises(EngineBuildError), slot.opening("b") as opened:
            opened()
    assert slot.model is None
    opening.error = None
    with slot.opening("b") as opened:
        assert opened() is opened() is slot.model
    assert used(slot, "c") == {"b", "c"}  # as no call uses it any more


@pytest.mark.parametrize("builds", [True, False])
def test_an_error_beside_opening_leaves_no_user(
    slot: ModelSlot, opening: Opening, builds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What must build engines for it does not open before it is waited for."""
    monkeypatch.setattr(model_slot, "must_build", lambda *_: builds)
    with pytest.raises(InputError, match="damaged"), slot.opening("a"):
        raise InputError("damaged")
    assert opening.graphs() == ([] if builds else ["a"])
    assert used(slot, "b") >= {"b"}


def test_the_detector_is_there_while_a_model_is_being_opened(
    slot: ModelSlot, background: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that sound and faces are read meanwhile."""
    begun, ready = Event(), Event()

    def open_model(*_: object) -> Any:
        begun.set()
        assert ready.wait(TIMEOUT_S)
        return OpenedModel("a")

    monkeypatch.setattr(model_slot, "open_model", open_model)
    opened = background(used, slot, "a")
    assert begun.wait(TIMEOUT_S)
    try:
        background(slot.detector).result(TIMEOUT_S)
        assert not opened.done()
    finally:
        ready.set()
    opened.result(TIMEOUT_S)
    slot.close()
