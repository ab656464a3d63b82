"""Dataclasses from plain values, in several threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from threading import Barrier

from latentsync_trt.validation import from_json, from_values
from tests.conftest import REPOSITORY

THREADS = 4


def at_once(count: int) -> None:
    """Reads types that are new to msgspec, each in several threads at the same time."""
    sys.setswitchinterval(1e-6)
    values = {f"f{number}": [1] for number in range(20)}
    text = f'{{"a": {values}, "b": [{values}]}}'.replace("'", '"')
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(count):
            inner = make_dataclass("Inner", [(name, "tuple[int, ...]") for name in values])
            outer, gate = make_dataclass("Outer", [("a", inner), ("b", list[inner])]), Barrier(THREADS)

            def read(number: int, outer: type = outer, gate: Barrier = gate) -> object:
                gate.wait()
                if number % 2:
                    return from_json(outer, text, "text")
                return from_values(outer, {"a": values, "b": [values]}, "values")

            one, *others = threads.map(read, range(THREADS))
            assert others == [one] * (THREADS - 1)


def test_threads_that_are_the_first_to_read_a_type_do_not_crash() -> None:
    """In a process of its own, which msgspec alone would end with SIGSEGV."""
    code = f"from {__name__} import at_once; at_once(100)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
