"""Local paths of a job's file are spelt out; the rest of the text stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from frenzy.cli.commands.spec_file import with_absolute_paths

TEXT = "# top\ndata: {path: %s, format: text}  # data\nmodel:\n  tokenizer: byte\n"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    return tmp_path / "near", tmp_path / "far"


def test_path_is_taken_from_the_first_folder_that_has_it(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        (folder / "a.txt").touch()
    assert with_absolute_paths(TEXT % "a.txt", folders) == TEXT % f'"{folders[0] / "a.txt"}"'


def test_path_found_only_later_is_taken_from_there(folders: tuple[Path, Path]) -> None:
    (folders[1] / "a.txt").touch()
    assert str(folders[1] / "a.txt") in with_absolute_paths(TEXT % "a.txt", folders)


def test_glob_is_spelt_out_where_it_matches(folders: tuple[Path, Path]) -> None:
    (folders[1] / "b.jsonl").touch()
    text = with_absolute_paths(TEXT % "'*.jsonl'", folders)
    assert yaml.safe_load(text)["data"]["path"] == str(folders[1] / "*.jsonl")


@pytest.mark.parametrize("path", ["missing.txt", "s3://bucket/a.txt", "/etc/hostname"])
def test_what_is_not_a_local_relative_path_is_left_alone(path: str, folders: tuple[Path, Path]) -> None:
    assert with_absolute_paths(TEXT % path, folders) == TEXT % path


def test_tokenizer_kind_is_no_folder(folders: tuple[Path, Path]) -> None:
    (folders[0] / "byte").mkdir()
    assert with_absolute_paths(TEXT % "x", folders) == TEXT % "x"


def test_path_with_quotes_and_unicode_survives(tmp_path: Path) -> None:
    folder = tmp_path / 'od"d ü'
    folder.mkdir()
    (folder / "a.txt").touch()
    text = with_absolute_paths(TEXT % "a.txt", (folder,))
    assert yaml.safe_load(text)["data"]["path"] == str(folder / "a.txt")
