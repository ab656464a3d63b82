"""The engine cache under random use: several processes, damage, leftovers of killed ones, and keys
alike but for one field. Whatever happens, an engine that is found is the one that was built for its
key.
"""

import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from latentsync_trt.errors import EngineBuildError, OutputError
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.entries import RECORD_NAME, EngineKey, Entry
from tests.cache_worker import KEY

KEYS = (KEY, replace(KEY, profile={"windows": (1, 2, 8), "height": (64, 64, 64)}))
"""Few, so that what happens to one is seen."""

PROCESSES = 2
FAILURES = (EngineBuildError, OSError, KeyboardInterrupt)

any_key = st.sampled_from(KEYS)
any_process = st.integers(0, PROCESSES - 1)


# Damage to an entry's folder, after which its engine cannot be used.


def _cut_file(entry: Path, chance: random.Random) -> None:
    os.truncate(entry / "engine.bin", chance.randrange((entry / "engine.bin").stat().st_size))


def _change_file(entry: Path, chance: random.Random) -> None:
    path = entry / "context" / "timing.bin"
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _delete_file(entry: Path, chance: random.Random) -> None:
    (entry / chance.choice(["engine.bin", "context/timing.bin", RECORD_NAME])).unlink()


def _change_record(entry: Path, chance: random.Random) -> None:
    path = entry / RECORD_NAME
    content = bytearray(path.read_bytes())
    first = content.index(b'"graph"')  # not the bundle's name, which is for display
    last = content.index(b'"device_memory_bytes"')
    # not a space
    place = chance.choice([index for index in range(first, last) if chr(content[index]).isalnum()])
    content[place] = ord("x") if content[place] != ord("x") else ord("y")
    path.write_bytes(content)


def _write_record(entry: Path, chance: random.Random) -> None:
    texts = ["", "null", "{}", "1e999", "\0", "[" * 100_000]
    (entry / RECORD_NAME).write_text(chance.choice(texts), encoding="utf-8")


DAMAGES = (_cut_file, _change_file, _delete_file, _change_record, _write_record)


class CacheMachine(RuleBasedStateMachine):
    """Several processes share a cache. `ready`: what the engine of each key was built with, where
    it can be used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="latentsync-test-"))
        self.cache = self.folder / "cache"
        self.ready: dict[str, bytes] = {}
        self.builds = 0

    @initialize()
    def start(self) -> None:
        self.caches = [self.process() for _ in range(PROCESSES)]

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def process(self) -> EngineCache:
        return EngineCache(self.cache, lambda text: None)

    def builder(self, key: EngineKey) -> Callable[[Path], None]:
        """Builds an engine with a content of its own, for this key alone."""

        def build(folder: Path) -> None:
            self.builds += 1
            content = f"{key.digest} {self.builds}".encode()
            (folder / "engine.bin").write_bytes(content)
            (folder / "context").mkdir()
            (folder / "context" / "timing.bin").write_bytes(content)
            self.ready[key.digest] = content

        return build

    def check(self, entry: Entry, key: EngineKey) -> None:
        assert entry.folder == self.cache / key.digest
        assert entry.state == "ready"
        assert replace(key, bundle="") == replace(entry.key or KEY, bundle="")
        for name in ("engine.bin", "context/timing.bin"):
            assert (entry.folder / name).read_bytes() == self.ready[key.digest]

    @rule(number=any_process, key=any_key, bundle=st.sampled_from(["demo", "another"]))
    def obtain(self, number: int, key: EngineKey, bundle: str) -> None:
        known = key.digest in self.ready
        entry = self.caches[number].obtain(replace(key, bundle=bundle), self.builder(key))
        assert entry.built is not known
        self.check(entry, key)
        assert self.leftovers() == [] or known

    @rule(number=any_process, key=any_key, error=st.sampled_from(FAILURES))
    def build_fails(self, number: int, key: EngineKey, error: type[BaseException]) -> None:
        def build(folder: Path) -> None:
            (folder / "engine.bin").write_bytes(b"half of it")
            raise error("no")

        assume(key.digest not in self.ready)
        with pytest.raises(OutputError if error is OSError else error):
            self.caches[number].obtain(key, build)
        assert self.leftovers() == []

    @rule(key=any_key, damage=st.sampled_from(DAMAGES), seed=st.integers(0, 1000))
    def damage(
        self, key: EngineKey, damage: Callable[[Path, random.Random], None], seed: int
    ) -> None:
        assume(key.digest in self.ready)
        damage(self.cache / key.digest, random.Random(seed))
        del self.ready[key.digest]
        # A process checks hashes once; a change of content that keeps the size is for the next one
        # to find.
        self.caches = [self.process() for _ in range(PROCESSES)]

    @rule(keys=st.tuples(any_key, any_key))
    def misplace(self, keys: tuple[EngineKey, EngineKey]) -> None:
        source, target = keys
        if source.digest in self.ready and source is not target:
            shutil.rmtree(self.cache / target.digest, ignore_errors=True)
            shutil.copytree(self.cache / source.digest, self.cache / target.digest)
            self.ready.pop(target.digest, None)

    @precondition(lambda self: len(self.ready) < len(KEYS))
    @rule(number=any_process, key=any_key)
    def prune_while_an_engine_is_built(self, number: int, key: EngineKey) -> None:
        assume(key.digest not in self.ready)

        def build(folder: Path) -> None:
            cache = self.process()
            for entry in cache.entries():
                assert cache.remove(entry) == (
                    "it is being built again" if entry.folder.name == key.digest else ""
                )
            self.ready = {}
            self.builder(key)(folder)

        entry = self.caches[number].obtain(key, build)
        assert entry.built
        self.check(entry, key)

    @invariant()
    def what_is_listed_is_what_is_there(self) -> None:
        listed = EngineCache(self.cache).entries(hashes=True)
        assert {entry.folder.name for entry in listed if entry.state == "ready"} == set(self.ready)
        for entry in listed:
            if entry.state == "ready":
                self.check(entry, next(key for key in KEYS if key.digest == entry.folder.name))
        used = [entry.last_used_at for entry in listed]
        assert used == sorted(used, reverse=True)

    def leftovers(self) -> list[str]:
        """What is in the cache besides engines and locks."""
        if self.cache.is_dir():
            names = (path.name for path in self.cache.iterdir())
        else:
            names = ()
        return [
            name for name in names if name != ".locks" and name not in {key.digest for key in KEYS}
        ]


CacheMachine.TestCase.settings = settings(
    stateful_step_count=20, max_examples=min(settings().max_examples // 2, 1000)
)
test_the_cache_under_random_use = pytest.mark.integration(CacheMachine.TestCase)


def test_any_other_value_of_any_field_makes_another_digest_but_no_order_and_no_bundle() -> None:
    for name, value in asdict(KEY).items():
        if isinstance(value, str):
            others = ["other"]
        else:
            others = [{}, {**value, "other": "1"}, dict.fromkeys(value, "other")]
        for other in others:
            assert (replace(KEY, **{name: other}).digest == KEY.digest) == (name == "bundle")
        if isinstance(value, dict):
            assert replace(KEY, **{name: dict(reversed(value.items()))}).digest == KEY.digest
    assert re.fullmatch(r"[0-9a-f]{24}", KEY.digest)
