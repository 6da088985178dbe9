"""What a run wrote into its folder, as it comes to the ledger: over HTTP, where a message is refused as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.web.conftest import ApiUser

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.core.runs.protocol import EndReport, ReconcileFinding, ReconcileReport, ReconcileSummary, RunView
from frenzy.core.values.launch import AttemptResult
from frenzy.ports import WorkersState

ENDED = {"exit_code": 1, "last_step": 5, "total_steps": 100}
WRITTEN = {
    "a step before the first": json.dumps(ENDED | {"last_step": -1, "total_steps": 0}).encode(),
    "a step of no run": json.dumps(ENDED | {"resumed_from_step": 10**40}).encode(),
    "an exit code of no process": json.dumps(ENDED | {"exit_code": 2**40}).encode(),
    "a rank of no plan": json.dumps(ENDED | {"first_failing_rank": 2**31}).encode(),
    "a long text": json.dumps(ENDED | {"detail": "x" * 65_400}).encode(),
    "bytes that are no text": json.dumps(ENDED | {"detail": "!"}).encode().replace(b"!", b"\xff" * 65_000),
    "half a character": json.dumps(ENDED | {"detail": "\ud800"}).encode(),
    "releases of everything": json.dumps(ENDED | {"releases": {str(each): "1.0" for each in range(4_000)}}).encode(),
}


def begun(op: ApiUser, run_id: str = "manual__2026-01-01T00:00:00+00:00") -> str:
    key = op.registered(run_id=run_id).run.run_key
    op.send("POST", f"/runs/{key}/enqueue")
    assert op.send("POST", f"/runs/{key}/attempts/1/launching").status_code == 200
    return key


def read(root: Path, key: str, written: bytes) -> AttemptResult | None:
    (root / f"{key}/attempt-1").mkdir(parents=True)
    (root / f"{key}/attempt-1/result.json").write_bytes(written)
    return FsspecRunStore(str(root)).result(key, 1)


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_no_result_keeps_the_end_of_its_attempt_from_the_ledger(op: ApiUser, tmp_path: Path, written: bytes) -> None:
    key = begun(op)
    report = EndReport(result=read(tmp_path, key, written))
    view = op.ask("POST", f"/runs/{key}/attempts/1/end", RunView, report)
    assert not view.attempts[0].is_live
    assert view.lease is None


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_no_result_keeps_reconciliation_from_freeing_another_run_s_gpus(
    op: ApiUser, tmp_path: Path, written: bytes
) -> None:
    mine, others = begun(op), begun(op, "manual__2026-01-02T00:00:00+00:00")
    found = ReconcileFinding(run_key=mine, attempt=1, workers=WorkersState.GONE, result=read(tmp_path, mine, written))
    honest = ReconcileFinding(run_key=others, attempt=1, workers=WorkersState.GONE, result=AttemptResult(**ENDED))
    hostile = [found] * 50  # one run has one finding: as many as a cluster may have
    report = ReconcileReport(findings=(*hostile, honest))
    assert op.ask("POST", "/reconcile", ReconcileSummary, report).num_released == 2
