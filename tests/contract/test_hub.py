"""Models of a hub: a name and a branch become a commit, which every node fetches once; what goes wrong has a name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.fake_hub import FakeHub, serving
from tests.forked_python import printed

from frenzy.adapters.model_config import resolve_model
from frenzy.airflow.tasks.profile import registration
from frenzy.app.register import record_of
from frenzy.core.runs.ledger import RunIdentity, RunRecord
from frenzy.core.values.errors import PermanentError, TemporaryError
from frenzy.core.values.job import ModelSpec
from frenzy.trainer.model.hub import refusal

CONFIG = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 257}
FETCHES = """
import json, sys
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.job import ModelSpec
from frenzy.trainer.model.hub import fetch_weights_of, on_this_machine
for line in sys.stdin:
    asked = ModelSpec(**json.loads(line))
    try:
        found = on_this_machine(asked)
        fetch_weights_of(asked)
        print(json.dumps({"path": found.path}))
    except FrenzyError as error:
        print(json.dumps({"kind": type(error).__name__, "said": str(error)}))
"""
TELLS = """
import json, sys
from frenzy.trainer.model.weight_files import fetch_weights
told = []
assert fetch_weights("acme/tiny", sys.stdin.read(), told.append)
print(json.dumps(told))
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serving() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield found


def config(**changed: Any) -> bytes:
    return json.dumps({**CONFIG, **changed}).encode()


def fetched(*asked: ModelSpec, **environment: str) -> list[dict[str, str]]:
    """What a node makes of each model, in a process of its own; none of them has a tokenizer."""
    lines = "".join(f"{json.dumps({**asdict(each), 'tokenizer': 'byte'})}\n" for each in asked)
    return [json.loads(line) for line in printed(FETCHES, lines, os.environ | environment).splitlines()]


def test_a_branch_becomes_the_commit_that_it_names_now(hub: FakeHub) -> None:
    first = hub.push("acme/tiny", {"config.json": config()})
    model, found = resolve_model(ModelSpec(hub_id="acme/tiny"))
    assert (model.revision, found["n_embd"]) == (first, 32)
    second = hub.push("acme/tiny", {"config.json": config(n_embd=64)})
    assert resolve_model(model) == (model, found), "the branch has moved on, the run has not"
    model, found = resolve_model(ModelSpec(hub_id="acme/tiny", revision="main"))
    assert (model.revision, found["n_embd"]) == (second, 64)
    with pytest.raises(PermanentError, match=r"model\.revision 'v2' cannot be read"):
        resolve_model(ModelSpec(hub_id="acme/tiny", revision="v2"))


def test_a_hub_that_is_away_is_told_before_its_client_tries_it_and_a_config_that_is_kept_needs_none(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/tiny", {"config.json": config()})
    known = resolve_model(ModelSpec(hub_id="acme/tiny"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert resolve_model(known[0]) == known
    with pytest.raises(TemporaryError, match=r"cannot be reached \(127.0.0.1: Connection refused\).*'acme/none'"):
        resolve_model(ModelSpec(hub_id="acme/none"))


def test_a_node_fetches_a_commit_once_and_needs_no_hub_afterwards(hub: FakeHub) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    files = {
        "config.json": config(),
        "model.safetensors.index.json": index,
        **{f"model-{n}.safetensors": bytes(99) for n in (1, 2)},
    }
    commit = hub.push("acme/tiny", files)
    hub.push("acme/tiny", {"config.json": config(n_embd=64)})
    asked = ModelSpec(hub_id="acme/tiny", revision=commit)
    first, second = fetched(asked, asked)
    assert first == second
    folder = Path(first["path"])
    assert {each.name for each in folder.iterdir()} == files.keys()
    assert json.loads((folder / "config.json").read_text())["n_embd"] == 32
    assert set(hub.fetched.values()) == {1}
    assert fetched(asked, HF_ENDPOINT="http://127.0.0.1:9") == [first]


def test_what_a_hub_refuses_names_the_field_and_what_to_do(hub: FakeHub) -> None:
    hub.push("acme/gated", {"config.json": config()})
    hub.push("acme/bare", {"config.json": config()})
    hub.gated.add("acme/gated")
    gone, moved, gated, bare = fetched(
        ModelSpec(hub_id="acme/none"),
        ModelSpec(hub_id="acme/bare", revision="v2"),
        ModelSpec(hub_id="acme/gated"),
        ModelSpec(hub_id="acme/bare"),
    )
    assert {each["kind"] for each in (gone, moved, gated, bare)} == {"BadInputError"}
    assert "model.hub_id: 'acme/none' is refused; no such model is there for you" in gone["said"]
    assert "model.revision: 'v2' is refused; give a commit, a branch or a tag of acme/bare" in moved["said"]
    assert "accept its terms on the hub" in gated["said"]
    assert "it has no weights" in bare["said"]


def test_weights_without_room_are_refused_before_they_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    """A kubelet would end the pod in the midst of it, on one node after another."""
    described = {"metadata": {"total_size": 140e9}, "weight_map": {"a": "model-1.safetensors"}}
    files = {"model.safetensors.index.json": json.dumps(described).encode(), "model-1.safetensors": bytes(99)}
    hub.push("acme/large", {"config.json": config(), **files})
    asked = ModelSpec(hub_id="acme/large")
    (refused,) = fetched(asked, HOME=str(tmp_path), FRENZY_DISK_BYTES=str(16 * 2**30))
    assert refused["kind"] == "BadInputError"
    assert "model.hub_id: 'acme/large' is refused; 130 GiB would be fetched" in refused["said"]
    assert "a worker may write 16.0 GiB: raise ephemeral_storage in the pod rules, or mount a volume" in refused["said"]
    assert not hub.fetched["model-1.safetensors"]
    (on_a_volume,) = fetched(asked, HOME="/nowhere", TMPDIR="/usr", FRENZY_DISK_BYTES=str(16 * 2**30))
    assert on_a_volume["path"], "the limit is not of a volume"


@pytest.mark.parametrize("last", ["config.json", "model-1.safetensors"])
def test_a_hub_that_goes_away_between_two_files_is_tried_again(hub: FakeHub, last: str) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    shards = {f"model-{n}.safetensors": bytes([n] * 99) for n in (1, 2)}
    commit = hub.push("acme/tiny", {"config.json": config(), "model.safetensors.index.json": index, **shards})
    hub.away_after = last
    asked = ModelSpec(hub_id="acme/tiny", revision=commit)
    (away,) = fetched(asked, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert away["kind"] == "TemporaryError", away
    assert "The hub could not be reached for acme/tiny" in away["said"]
    hub.away_after, hub.is_away = "", False
    assert Path(fetched(asked)[0]["path"]).name == commit
    assert set(hub.fetched.values()) == {1}


def test_bytes_are_told_of_while_a_file_comes(hub: FakeHub) -> None:
    commit = hub.push("acme/tiny", {"model.safetensors": bytes(25 * 1024**2)})
    told = json.loads(printed(TELLS, commit, os.environ))
    assert (len(told) > 1, sum(told)) == (True, 25 * 1024**2)


def test_a_hub_that_cannot_be_reached_is_tried_again() -> None:
    error = OSError("We couldn't connect to the hub")
    error.__cause__ = ConnectionError("refused")
    found = refusal(ModelSpec(hub_id="acme/tiny"), error)
    assert isinstance(found, TemporaryError)
    assert "The hub could not be reached for acme/tiny" in str(found)


def test_a_cleared_run_reads_the_commit_that_it_began_with(hub: FakeHub, tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("to be or not to be\n", encoding="utf-8")
    identity = RunIdentity(dag_id="job_words", run_id="r", task_group="train")

    def asked(before: RunRecord | None, **model: str) -> RunRecord:
        job = {
            "name": "words",
            "model": {"hub_id": "acme/tiny", **model},
            "data": {"path": str(text), "sequence_length": 64},
            "training": {"max_steps": 10, "global_batch_size": 4},
        }
        return record_of(registration(identity, job, None, before=before), 0.0)

    first = hub.push("acme/tiny", {"config.json": config()})
    run = asked(None)
    second = hub.push("acme/tiny", {"config.json": config(n_embd=64)})
    cleared = asked(run)
    assert (cleared.commit, cleared.model_config, cleared.asked_model) == (first, run.model_config, run.asked_model)
    assert asked(run, revision=second).commit == second
