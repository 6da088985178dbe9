"""What one look of the monitor asks of the run directory, on an object store."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.contract import values
from tests.unit.airflow.conftest import World
from tests.unit.airflow.triggering import CONN, started, steps

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.airflow.connection import async_api_client
from frenzy.airflow.tasks.workers import using, workers
from frenzy.airflow.triggers.watch import Watch
from frenzy.core.values.job import CheckpointSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.ports import TelemetryCursor
from frenzy.trainer.telemetry.writer import NodeTelemetry

Run = Callable[[Coroutine[Any, Any, Any]], Any]
EVERY = 10
LISTINGS = {"ls", "find"}


class CountedStore(MemoryFileSystem):
    """An object store that counts what is asked of it."""

    protocol = "counted"
    asked: Counter[str] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("counted://")))

    def info(self, path: str, **options: Any) -> Any:
        self.asked["info"] += 1
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self.asked["ls"] += 1
        return super().ls(path, detail=detail, **options)

    def find(self, path: str, **options: Any) -> Any:
        self.asked["find"] += 1
        return super().find(path, **options)

    def cat_file(self, path: str, **options: Any) -> Any:
        self.asked["cat_file"] += 1
        return super().cat_file(path, **options)


@pytest.fixture
def store(world: World) -> Iterator[FsspecRunStore]:
    fsspec.register_implementation(CountedStore.protocol, CountedStore, clobber=True)
    store = FsspecRunStore(f"counted://{uuid.uuid4().hex}/runs")
    reach = workers()
    with using(replace(reach, runs=store, settings=replace(reach.settings, lease_s=0.001))):  # each look reports
        yield store


class AtOnce(Executor):
    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


class Ranks:
    """All ranks of an attempt; they do a step in 3 s, tell of it as nodes do, and save every tenth."""

    def __init__(self, store: FsspecRunStore, spec: LaunchSpec) -> None:
        self._fs, root = fsspec.core.url_to_fs(store.run_dir(spec.run_key))
        self._paths, self._spec, self.step = RunPaths(root), spec, 0
        told = RunPaths(store.run_dir(spec.run_key))
        self._nodes = [
            NodeTelemetry(told, spec.attempt, node, lambda: 3.0 * self.step, AtOnce())
            for node in range(len(spec.gpus_per_node))
        ]

    def advance(self) -> None:
        (record,) = steps(self._spec, self.step + 1, self.step + 1)
        self.step += 1
        first = 0
        for node, num_gpus in zip(self._nodes, self._spec.gpus_per_node, strict=True):
            for rank in range(first, first + num_gpus):
                node.add(replace(record, rank=rank))
            node.turn()
            first += num_gpus
        if self.step % EVERY == 0:
            manifest = self._paths.checkpoint_manifest(self.step)
            self._fs.pipe_file(f"{manifest.rpartition('/')[0]}/part", b"12345")
            self._fs.pipe_file(manifest, values.manifest_text(self.step, {"part": 5}).encode())


@pytest.fixture
def spec(world: World) -> LaunchSpec:
    return started(world, checkpoint=CheckpointSpec(every_steps=EVERY))


def looks(world: World, run_async: Run, store: FsspecRunStore, spec: LaunchSpec, num_looks: int) -> list[Counter[str]]:
    """What each of so many looks asks for, with one new step before each."""
    ranks, asked = Ranks(store, spec), []

    async def scenario() -> None:
        client = await async_api_client(CONN)
        log = logging.getLogger(__name__)
        watch = Watch(spec=spec, view=world.view(spec.run_key), workers=workers(), client=client, log=log)
        for _ in range(num_looks):
            ranks.advance()
            CountedStore.asked.clear()
            await watch.look()
            asked.append(Counter(CountedStore.asked))

    run_async(scenario())
    return asked


def test_a_look_asks_as_much_late_in_a_run_as_early(
    world: World, run_async: Run, store: FsspecRunStore, spec: LaunchSpec
) -> None:
    first, *asked = looks(world, run_async, store, spec, 90)
    assert LISTINGS & first.keys(), "there may be checkpoints of earlier attempts"
    quiet = [each for each in asked if not LISTINGS & each.keys()]
    assert len(quiet) == 80, "all but one for each checkpoint"
    assert all(each == quiet[0] for each in quiet)
    listing = [each for each in asked if LISTINGS & each.keys()]
    # The names of checkpoints, and what the newest consists of: never telemetry, never an older one.
    assert all(each == listing[0] for each in listing)


def test_each_step_of_all_ranks_is_seen_and_history_is_read_only_by_who_comes_late(
    world: World, run_async: Run, store: FsspecRunStore, spec: LaunchSpec
) -> None:
    looks(world, run_async, store, spec, 90)
    assert world.view(spec.run_key).attempts[0].last_step == 90
    chunks = [each for each in store._files.names(f"{spec.run_key}/attempt-1/telemetry") if each.endswith(".jsonl")]
    assert len(chunks) == 4 * len(spec.gpus_per_node), "a chunk a minute"
    page = store.telemetry(spec.run_key, 1, TelemetryCursor())
    assert [each.step for each in page.records if each.rank == 0] == list(range(1, 91))


def test_a_page_of_the_steps_asks_as_much_of_a_long_attempt_as_of_a_short_one(
    world: World, run_async: Run, store: FsspecRunStore, spec: LaunchSpec
) -> None:
    ranks, asked = Ranks(store, spec), []
    for num_steps in (1_300, 700):
        for _ in range(num_steps):
            ranks.advance()
        CountedStore.asked.clear()
        sample = store.telemetry_sample(spec.run_key, 1, most_records=1_000)
        asked.append(Counter(CountedStore.asked))
        assert max(each.step for each in sample) == ranks.step
        assert 200 <= len(sample) <= 1_200
    assert asked[0] == asked[1]
    assert asked[0].total() <= 150


def test_a_new_checkpoint_is_known_within_a_few_looks(
    world: World, run_async: Run, store: FsspecRunStore, spec: LaunchSpec
) -> None:
    looks(world, run_async, store, spec, EVERY + 5)
    assert world.view(spec.run_key).attempts[0].checkpoint_step == EVERY
