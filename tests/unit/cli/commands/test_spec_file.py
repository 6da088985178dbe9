"""Local paths of a job's file are spelt out; the rest of the text stays as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.adapters.spec.spec_file import SpecFile, checked_spec
from frenzy.core.values.errors import SpecError

TEXT = """# top
name: example
data: {path: %s, format: text}  # data
model: {config: {model_type: gpt2}, tokenizer: byte}
training: {global_batch_size: 8, max_steps: 10}
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where the user stands, and where the file lies."""
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "near")
    return tmp_path / "near", tmp_path / "far"


def read(folder: Path, text: str) -> SpecFile:
    (folder / "job.yaml").write_text(text)
    found = checked_spec(folder / "job.yaml")
    assert job_from_yaml(found.text) == found.job
    return found


def test_path_is_taken_from_the_working_folder_before_the_files_own(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        (folder / "a.txt").touch()
    assert read(folders[1], TEXT % "a.txt").text == TEXT % f'"{folders[0] / "a.txt"}"'


def test_path_found_only_beside_the_file_is_taken_from_there(folders: tuple[Path, Path]) -> None:
    (folders[1] / "a.txt").touch()
    assert read(folders[1], TEXT % "'a.txt'").text == TEXT % f'"{folders[1] / "a.txt"}"'


def test_path_of_the_checkout_is_found_from_anywhere(folders: tuple[Path, Path]) -> None:
    path = read(folders[1], TEXT % "include/data/tinyshakespeare.txt").job.data.path
    assert Path(path).is_absolute() and Path(path).is_file()


def test_glob_is_spelt_out_where_it_matches(folders: tuple[Path, Path]) -> None:
    (folders[1] / "b.jsonl").touch()
    assert read(folders[1], TEXT % "'*.jsonl'").job.data.path == str(folders[1] / "*.jsonl")


@pytest.mark.parametrize("path", ["missing.txt", "s3://bucket/a.txt", "/etc/hostname", "'[**'"])
def test_what_is_not_a_local_relative_path_is_left_alone(path: str, folders: tuple[Path, Path]) -> None:
    assert read(folders[1], TEXT % path).text == TEXT % path


def test_tokenizer_kind_is_no_folder(folders: tuple[Path, Path]) -> None:
    (folders[0] / "byte").mkdir()
    assert read(folders[1], TEXT % "x").text == TEXT % "x"


def test_path_with_quotes_and_unicode_survives(folders: tuple[Path, Path]) -> None:
    folder = folders[1] / 'od"d \u00fc'
    folder.mkdir()
    (folder / "a.txt").touch()
    assert read(folder, TEXT % "a.txt").job.data.path == str(folder / "a.txt")


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("{path: %s, format: text}  # data", "\n  path: |-\n    a.txt"),
        json.dumps(
            json.loads(
                "{" + '"name": "example", "data": {"path": "a.txt"}, "model": {"config": {"model_type": "gpt2"}},'
                ' "training": {"global_batch_size": 8, "max_steps": 10}}'
            ),
            indent="\t",
        ),
    ],
    ids=["block text", "JSON with tabs"],
)
def test_a_path_that_cannot_be_put_in_place_is_written_anew(text: str, folders: tuple[Path, Path]) -> None:
    (folders[1] / "a.txt").touch()
    assert read(folders[1], text).job.data.path == str(folders[1] / "a.txt")


def test_a_path_that_an_anchor_shares_is_handed_in_as_it_was_checked(folders: tuple[Path, Path]) -> None:
    (folders[1] / "m").mkdir()
    text = TEXT % "x" + "\n"
    text = text.replace("{config: {model_type: gpt2}, tokenizer: byte}", "{path: &p m, tokenizer: *p}")
    assert "&p" in text
    spec = read(folders[1], text)
    assert spec.job.model.path == spec.job.model.tokenizer == str(folders[1] / "m")
    assert job_from_yaml(spec.text) == spec.job


def test_a_mistyped_key_is_refused_with_what_was_meant(folders: tuple[Path, Path]) -> None:
    with pytest.raises(SpecError) as caught:
        read(folders[1], TEXT % "a.txt\n  , fromat: text".replace("\n  ", ""))
    assert [(each.path, each.allowed) for each in caught.value.violations] == [
        ("data.fromat", "did you mean data.format?")
    ]
