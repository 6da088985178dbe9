"""``frenzy marp evaluate FILE``: a user's own file of runs, with the columns of a published data set."""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from frenzy.adapters.calibration_file import default_calibration
from frenzy.cli.main import run
from frenzy.evaluation import read_fms
from frenzy.evaluation.datasets import unread_columns
from frenzy.evaluation.published import UnknownRow
from frenzy.evaluation.read_own import KNOWN
from frenzy.settings import CHECKOUT

FMS = CHECKOUT / "tests/data/memory/fms_a100_80gb.csv"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = FMS.read_text(encoding="utf-8").splitlines()
    mine = tmp_path / "mine.csv"
    mine.write_text("\n".join(lines[:8]) + "\n", encoding="utf-8")
    return mine


def test_a_file_of_ones_own_is_scored_and_held_to_the_goals(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["marp", "evaluate", str(file), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [each["rows"] for each in found["datasets"]] == [7]
    assert {each["is_met"] for each in found["goals"]} <= {True, None}


def test_the_tables_name_every_goal_that_has_rows(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["marp", "evaluate", str(file)]) == 0

    said = capsys.readouterr().out
    assert "grade A, worst error of the peak" in said
    assert "DeepSpeed on GPUs" not in said, "no rows"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    rows = ("Llama-2-7b-hf,torch,a100-80,1,512,70,true,3", "Llama-2-7b-hf,torch,a100-80,1,512,69,true,4")
    mine = tmp_path / "own.csv"
    columns = "model,framework,gpu,micro_batch,sequence_length,peak_gib,gradient_checkpoint,explanation"
    mine.write_text("\n".join((columns, *rows)) + "\n", encoding="utf-8")
    return mine


def test_columns_that_nothing_reads_are_named_with_what_may_have_been_meant(
    own: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["marp", "evaluate", str(own)])
    assert "nothing reads: gradient_checkpoint (did you mean checkpointing?), explanation." in capsys.readouterr().err

    run(["marp", "evaluate", str(file)])
    assert capsys.readouterr().err == "", "the benchmark has columns of its own results"
    file.write_text(file.read_text(encoding="utf-8").replace("lora_dropout", "lora_dropouts"), encoding="utf-8")
    run(["marp", "evaluate", str(file)])
    assert "nothing reads: lora_dropouts (did you mean lora_dropout?)." in capsys.readouterr().err


@pytest.mark.parametrize("written", ["microbatch", "batch_size", "Micro_Batch"])
def test_a_required_column_of_another_name_is_refused_with_the_one_that_was_meant(
    own: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(own.read_text(encoding="utf-8").replace("micro_batch", written), encoding="utf-8")
    assert run(["marp", "evaluate", str(own)]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"no known data set. Unknown: {written} (did you mean micro_batch?)." in said


def test_each_data_set_has_its_verdict_in_a_line(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["marp", "evaluate", str(own)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("own runs: 2 of 2 rows judged; error of the peak in 2: median ")
    assert last.endswith("2 of 2 that ran predicted to fit.")


def test_failures_that_nobody_explained_are_counted_in_the_verdict(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = list(csv.reader(FMS.read_text(encoding="utf-8").splitlines()))
    failed = cells.index(next(each for each in cells if not each[cells[0].index("train_runtime")]))
    chosen = [cells[0], cells[failed]]
    file.write_text("\n".join(",".join(f'"{each}"' for each in row) for row in chosen) + "\n", encoding="utf-8")

    assert run(["marp", "evaluate", str(file)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("of these 1 without error_messages, taken for it by their empty results.")


def test_rows_left_out_are_named_by_their_lines(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    good, bad = "Llama-2-7b-hf,torch,a100-80,1,512,70,true,3\n", "Llama-2-7b-hf,torch,a100-80,0,512,70,true,3\n"
    columns = own.read_text(encoding="utf-8").splitlines()[0]
    own.write_text(f"{columns}\n{bad}{good}{bad * 6}", encoding="utf-8")

    assert run(["marp", "evaluate", str(own)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "own runs 7 2, 4, 5, 6, 7 and 2 more micro_batch '0'" in said
    assert "Goals" not in said
    assert run(["marp", "evaluate", str(own), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["datasets"]
    ((reason, lines),) = found["refused_lines"].items()
    assert found["refused"] == {reason: 7}
    assert lines == [2, 4, 5, 6, 7, 8, 9]


def test_blanks_around_commas_and_rows_of_commas_alone_do_not_matter(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = own.read_text(encoding="utf-8")
    own.write_text(text.replace(",", " , ") + " , , \n", encoding="utf-8")

    assert run(["marp", "evaluate", str(own)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("own runs: 2 of 2 rows judged")


def test_a_quote_that_nobody_closes_is_refused_not_read_to_the_end(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(own.read_text(encoding="utf-8").replace("Llama", '"Llama', 1), encoding="utf-8")

    assert run(["marp", "evaluate", str(own)]) == 2
    assert "is not a CSV file in UTF-8: unexpected end of data" in " ".join(capsys.readouterr().err.split())


def test_a_file_of_which_no_row_is_judged_fails(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.write_text(own.read_text(encoding="utf-8").replace("a100-80", "A100"), encoding="utf-8")

    assert run(["marp", "evaluate", str(own)]) == 1
    said = capsys.readouterr().out
    assert "2 and 3" in said
    assert said.splitlines()[-1] == "own runs: 0 of 2 rows judged."


def test_the_columns_that_are_known_are_those_of_the_page_and_of_the_shipped_files() -> None:
    page = (CHECKOUT / "docs/accuracy.md").read_text(encoding="utf-8").partition("## Score runs of your own")[2]
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    described = {name for cell in table for name in re.findall(r"`([a-z_]+)`", cell) if not name.startswith("_")}
    others = {name for name in KNOWN if name.startswith(("peak_", "reserved_"))}
    assert described | others == set(KNOWN)
    for shipped in FMS.parent.glob("deepspeed_[gr]*.csv"):
        assert unread_columns(shipped) == ()


def test_the_columns_that_are_known_of_the_benchmark_are_those_that_its_reader_reads() -> None:
    read = {"transformers"}  # of a row, whoever reads the rest of it

    class Noted(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            read.add(key)
            return super().get(key, default)

    with FMS.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            with suppress(UnknownRow):
                read_fms.read_row(Noted(row), 1, default_calibration())
    assert read == set(read_fms.KNOWN)


def test_a_file_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["marp", "evaluate"]) == 2
