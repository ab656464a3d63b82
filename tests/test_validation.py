"""Dataclasses from plain values, in several threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from functools import partial
from threading import Barrier

from latentsync_trt.option_fields import from_json, from_values
from tests.conftest import REPOSITORY


def at_once() -> None:
    """Reads types that are new to msgspec, each in several threads at the same time."""
    sys.setswitchinterval(1e-6)
    values = {f"f{number}": [1] for number in range(20)}
    text = f'{{"a": {values}, "b": [{values}]}}'.replace("'", '"')
    gate = Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(100):
            inner = make_dataclass("Inner", [(name, "tuple[int, ...]") for name in values])
            outer = make_dataclass("Outer", [("a", inner), ("b", list[inner])])
            reads = (
                partial(from_json, outer, text),
                partial(from_values, outer, {"a": values, "b": [values]}),
            )
            one, *others = threads.map(lambda read: (gate.wait(), read("source"))[1], reads * 2)
            assert others == [one] * 3


def test_threads_that_are_the_first_to_read_a_type_do_not_crash() -> None:
    """In a process of its own, which msgspec alone would end with SIGSEGV."""
    subprocess.run(
        [sys.executable, "-c", f"from {__name__} import at_once; at_once()"],
        check=True,
        cwd=REPOSITORY,
    )
