"""One judgement of whether a checkpoint is complete, for those who write it and those who watch."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.contract import values

from frenzy.core.lifecycle.checkpoint_manifest import complete_manifest, step_folder, step_of_folder
from frenzy.core.values.errors import ContractError

SIZES: Final = {"rank-0.safetensors": 100, "state.json": 20}
DOCUMENT: Final[dict[str, Any]] = json.loads(values.manifest_text(7, SIZES))
(FIRST, STATE) = DOCUMENT["files"]


def changed(**fields: Any) -> str:
    return json.dumps({**DOCUMENT, **fields})


def lacking(name: str) -> str:
    return json.dumps({key: item for key, item in DOCUMENT.items() if key != name})


def test_a_checkpoint_with_every_file_at_its_size_is_complete() -> None:
    manifest = complete_manifest(changed(), 7, {**SIZES, "left over": 3, "manifest.json": 99})
    assert (manifest.folder, manifest.num_bytes) == (step_folder(7), 120)
    assert complete_manifest(changed().encode(), 7, SIZES) == manifest
    assert complete_manifest(changed(files=[]), 7, {}).files == ()


@pytest.mark.parametrize(
    ("text", "sizes", "words"),
    [
        (None, SIZES, "it was never completed"),
        ("", SIZES, "not JSON"),
        (changed()[:-9], SIZES, "not JSON"),
        ("[" * 100_000, SIZES, "nested too deep"),
        ("[]", SIZES, "is not a dict"),
        (changed(schema_version=99), SIZES, "schema version 99"),
        (changed(more=1), SIZES, "unknown key 'more'"),
        *((lacking(name), SIZES, f"lacks the key '{name}'") for name in ("step", "layout", "files", "save_id")),
        (changed(step="7"), SIZES, "step: '7' is not a int"),
        (changed(files=[{"path": "state.json"}]), SIZES, "lacks the key 'num_bytes'"),
        (changed(format="other"), SIZES, "its format is 'other'"),
        (changed(step=8), SIZES, "its manifest is of step 8"),
        (changed(), {"state.json": 20}, "rank-0.safetensors is missing"),
        (changed(), {**SIZES, "state.json": 19}, "state.json has 19 bytes, not 20"),
        (changed(), {}, "rank-0.safetensors is missing"),
        *(
            (changed(files=[{**FIRST, "path": path}]), {path: 100}, "outside the checkpoint's folder")
            for path in ("../step-1/other", "/etc/passwd", "..", ".manifest.json.a")
        ),
    ],
)
def test_what_a_checkpoint_lacks_is_said(text: str | None, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ContractError) as caught:
        complete_manifest(text, 7, sizes)
    assert words in caught.value.reason.sentence


def test_other_folders_are_nobodys_checkpoint() -> None:
    assert [step_of_folder(step_folder(step)) for step in (0, 7, 12, 10**9)] == [0, 7, 12, 10**9]
    others = (
        "step-",
        "step-x",
        "step-1000000001",
        "stepp-1",
        "tmp",
        "step-07",
        "step-\u00b2",
        "step-\u0667",
        "step-1 ",
        "step--1",
        f"step-{10**12}",
    )
    assert [step_of_folder(each) for each in others] == [None] * len(others)
