"""``frenzy marp trace``: a trace from a job's file alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., object]


def test_the_peak_is_told_by_point_in_time_and_by_purpose(frenzy: Command, spec: Path) -> None:
    said = frenzy("marp", "trace", str(spec), "--zero", "0", "--micro-batch", "2")
    assert said.status == 0
    for word in ("forward", "loss", "backward", "optimizer step", "weights", "activations", "one card"):
        assert word in said.out


def test_json_says_what_was_traced_and_its_parts_add_up(frenzy: Command, spec: Path) -> None:
    said = frenzy("marp", "trace", str(spec), "--dp", "2", "--zero", "3", "--rank", "1", "--json")
    told = json.loads(said.out)
    assert (told["engine"], told["rank"], told["num_ranks"], told["zero_stage"]) == ("DeepSpeed", 1, 2, 3)
    peak = next(each for each in told["result"]["by_moment"] if each["name"] == told["result"]["at"])
    assert sum(each["num_bytes"] for each in peak["by_category"]) == told["result"]["peak_bytes"]


def test_a_rank_beyond_the_plan_is_refused_in_words(frenzy: Command, spec: Path) -> None:
    said = frenzy("marp", "trace", str(spec), "--rank", "3")
    assert said.status == 2
    assert "TRACE_UNSUPPORTED" in said.err
    assert "--rank 3" in said.err
