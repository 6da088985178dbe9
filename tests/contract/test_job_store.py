"""What every jobs folder promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.in_memory.job_store import InMemoryJobStore

from frenzy.adapters.files.job_store import NUM_SHARDS, FolderJobStore, shard_of
from frenzy.core.values.errors import SpecError
from frenzy.ports import JobStore

STORES: dict[str, Callable[[Path], JobStore]] = {
    "memory": lambda _: InMemoryJobStore(),
    "folder": lambda folder: FolderJobStore(folder / "jobs"),
}


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> JobStore:
    return STORES[request.param](tmp_path)


def test_an_empty_store_has_nothing(store: JobStore) -> None:
    assert list(store.names()) == []
    assert store.get("a") is None
    assert store.remove("a") is False


def test_put_says_whether_the_content_changed(store: JobStore) -> None:
    assert store.put("a", "name: a\n") is True
    assert store.put("a", "name: a\n") is False
    assert store.put("a", "name: a\npriority: 1\n") is True
    assert store.get("a") == "name: a\npriority: 1\n"


def test_names_are_sorted(store: JobStore) -> None:
    for name in ("b", "a-2", "a_1", "z9"):
        store.put(name, name)
    assert list(store.names()) == sorted(["b", "a-2", "a_1", "z9"])


def test_a_removed_job_is_gone_and_may_come_back(store: JobStore) -> None:
    store.put("a", "one")
    assert store.remove("a") is True
    assert store.get("a") is None and list(store.names()) == []
    assert store.remove("a") is False
    assert store.put("a", "one") is True


def test_the_text_comes_back_to_the_letter(store: JobStore) -> None:
    text = "name: a\ndescription: 'ü — 漢'\r\n\n"
    store.put("a", text)
    assert store.get("a") == text


def test_removed_specs_are_archived_each_in_its_own_file(tmp_path: Path) -> None:
    store = FolderJobStore(tmp_path)
    for text in ("one", "two"):
        store.put("a", text)
        store.remove("a")
    assert sorted(path.read_text() for path in (tmp_path / "archive").iterdir()) == ["one", "two"]


def test_a_job_lies_in_the_shard_of_its_name(tmp_path: Path) -> None:
    store = FolderJobStore(tmp_path)
    store.put("nightly", "text")
    assert (tmp_path / shard_of("nightly") / "nightly.yaml").read_text() == "text"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["nightly.yaml"]


def test_shards_stay_small_enough_to_parse() -> None:
    sizes: dict[str, int] = {}
    for number in range(50 * NUM_SHARDS):
        shard = shard_of(f"job-{number}")
        sizes[shard] = sizes.get(shard, 0) + 1
    assert max(sizes.values()) <= 100


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "A", "-a", "a\n", "a" * 64])
def test_a_name_that_is_no_job_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    store = FolderJobStore(tmp_path / "jobs")
    for use in (lambda: store.put(name, "x"), lambda: store.get(name), lambda: store.remove(name)):
        with pytest.raises(SpecError, match="name"):
            use()
    assert list(tmp_path.rglob("*")) == []
