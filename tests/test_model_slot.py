"""The model of a `LipSync`: opened once, again with more graphs when no call uses it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest

from latentsync_trt.errors import Busy, EngineBuildError, InputError
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
        self.models: list[OpenedModel] = []
        self.error: Exception | None = None

    def __call__(self, graphs: Sequence[str]) -> Any:
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
def slot(opening: Opening) -> ModelSlot:
    return ModelSlot(opening)


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    """Runs calls in threads."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


@pytest.mark.parametrize(
    ("calls", "opened"),
    [(["ab", "ab", "b"], ["ab"]), (["ab", "bc"], ["ab", "abc"]), (["a", "b", "ab", "c"], ["a", "ab", "abc"])],
)
def test_calls_one_after_another(slot: ModelSlot, opening: Opening, calls: list[str], opened: list[str]) -> None:
    for graphs in calls:
        assert slot.acquire(graphs).graphs.issuperset(graphs)
        slot.release()
    assert opening.graphs() == opened
    assert slot.model is opening.models[-1]
    slot.close()
    assert not any(model.is_open for model in opening.models)


def test_one_that_needs_more_waits_for_the_others(
    slot: ModelSlot, opening: Opening, background: Callable[..., Future[Any]]
) -> None:
    first = slot.acquire("a")
    assert slot.acquire("a") is first
    more = background(slot.acquire, "ab")
    assert not wait([more], WAITS_S).done
    slot.release()
    assert not wait([more], WAITS_S).done
    slot.release()
    assert more.result(TIMEOUT_S).graphs == {"a", "b"}
    assert opening.graphs() == ["a", "ab"]


def test_nobody_waits_for_live_sessions(
    slot: ModelSlot, opening: Opening, background: Callable[..., Future[Any]]
) -> None:
    slot.acquire("a", lasting=True)
    assert slot.acquire("a") is slot.model
    more = background(slot.acquire, "abc")
    assert not wait([more], WAITS_S).done  # for the clip beside the session
    slot.release()
    with pytest.raises(Busy, match="live sessions use the open networks, and b, c would have to be opened"):
        more.result(TIMEOUT_S)
    slot.release(lasting=True)
    assert slot.acquire("abc").graphs == {"a", "b", "c"}


def test_one_that_cannot_be_opened_is_tried_again(slot: ModelSlot, opening: Opening) -> None:
    slot.acquire("a")
    slot.release()
    opening.error = EngineBuildError("b cannot be built")
    for _ in range(2):
        with pytest.raises(EngineBuildError), slot.opening("b") as opened:
            opened()
    assert slot.model is None
    opening.error = None
    with slot.opening("b") as opened:
        assert opened() is opened() is slot.model
    assert slot.acquire("c").graphs == {"b", "c"}  # as no call uses it any more


@pytest.mark.parametrize("ahead", [True, False])
def test_an_error_beside_opening_leaves_no_user(slot: ModelSlot, opening: Opening, ahead: bool) -> None:
    with pytest.raises(InputError, match="damaged"), slot.opening("a", ahead=ahead):
        raise InputError("damaged")
    assert opening.graphs() == ["a"] * ahead
    assert slot.acquire("b").graphs.issuperset("b")


def test_the_detector_is_there_while_a_model_is_being_opened(background: Callable[..., Future[Any]]) -> None:
    """So that sound and faces are read meanwhile."""
    begun, ready = Event(), Event()

    def open_model(graphs: Sequence[str]) -> Any:
        begun.set()
        assert ready.wait(TIMEOUT_S)
        return OpenedModel(graphs)

    slot = ModelSlot(open_model)
    opened = background(slot.acquire, ("a",))
    assert begun.wait(TIMEOUT_S)
    try:
        background(slot.detector).result(TIMEOUT_S)
        assert not opened.done()
    finally:
        ready.set()
    opened.result(TIMEOUT_S)
    slot.release()
    slot.close()
