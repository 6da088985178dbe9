"""One node of an attempt: prepare once, fork a rank for each GPU slot, watch, fold the result."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import AttemptResult, LaunchSpec, deepspeed_config
from frenzy.core.values.run_files import ExitCode, RunPaths, how_ended
from frenzy.trainer import env, files, heartbeats
from frenzy.trainer.checkpoint.store import CheckpointStore
from frenzy.trainer.data.make_shards import Share
from frenzy.trainer.launch.child import call_in_child, fork, log_tail, read_report
from frenzy.trainer.launch.local_ranks import LocalRanks, local_ranks, log_file, logs_folder, upload_logs
from frenzy.trainer.launch.rank_failures import share_failures
from frenzy.trainer.launch.rendezvous import Rendezvous, meet
from frenzy.trainer.launch.supervise import Ended, Supervisor
from frenzy.trainer.launch.tracking import begin_tracking
from frenzy.trainer.loop.control import StopRequest
from frenzy.trainer.loop.prepare import Prepared, prepare
from frenzy.trainer.loop.worker import RankContext, run_rank
from frenzy.trainer.model.libraries import import_libraries
from frenzy.trainer.outcome import RankReport, describe_death
from frenzy.trainer.telemetry.shared_progress import SharedProgress
from frenzy.trainer.telemetry.writer import NodeTelemetry, RecordPipe

logger = logging.getLogger("frenzy.trainer")


def run_node(spec: LaunchSpec, *, node_rank: int | None, scratch: Path) -> AttemptResult:
    """Run this node's part of the attempt to its end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = StopRequest()
    ranks = local_ranks(spec.gpus_per_node, node_rank)
    paths = RunPaths(spec.run_dir)
    logs = logs_folder(spec, scratch)
    heartbeats.begin(paths.heartbeat(spec.attempt, ranks.node_rank))
    try:
        heartbeats.beat("importing the libraries")
        import_libraries(spec.job.model, spec.job.training)
        if ranks.is_first_node:
            settings = deepspeed_config(spec.job, spec.plan, spec.gpu.kind)
            files.write_text(paths.ds_config(spec.attempt), json.dumps(settings, indent=2))
        prepared = call_in_child(
            lambda: prepare(spec, scratch, share=_share_of(spec, ranks)),
            scratch / "prepared.pickle",
            log_file=logs / "prepare.log",
        )
        if isinstance(prepared, RankReport):
            return _unprepared(prepared)
        if stop.received():
            return _stopped_early(prepared)
        return _run_ranks(spec, prepared, ranks, stop, logs, scratch)
    finally:
        upload_logs(spec, logs)


def _run_ranks(
    spec: LaunchSpec, prepared: Prepared, ranks: LocalRanks, stop: StopRequest, logs: Path, scratch: Path
) -> AttemptResult:
    meeting = meet(spec, ranks)
    board, records = SharedProgress(ranks.count), RecordPipe()
    contexts = [
        _context(spec, prepared, board, records, ranks, meeting, scratch, local) for local in range(ranks.count)
    ]
    pids = {each.local_rank: fork(_rank_main(each), log_file=log_file(logs, each.rank)) for each in contexts}
    if meeting.listener is not None:
        meeting.listener.close()
    tracking = begin_tracking(spec, ranks.node_rank, logs, scratch)
    telemetry = NodeTelemetry(RunPaths(spec.run_dir), spec.attempt, ranks.node_rank, beside=tracking)

    def relay() -> None:
        for each in records.read():
            telemetry.add(each)
        telemetry.turn()

    supervisor = Supervisor(
        pids,
        board,
        samples_memory=spec.gpu.kind is DeviceKind.VIRTUAL,
        stop_grace_s=env.stop_grace_s(),
        stop_requested=stop.received,
        each_turn=relay,
    )
    ended = supervisor.wait()
    relay()
    telemetry.close()
    records.close()
    own = _fold(contexts, ended, logs)
    tracking.end(own.exit_code)
    return own if ranks.is_only_machine else share_failures(spec, node_rank=ranks.node_rank, own=own)


def _share_of(spec: LaunchSpec, ranks: LocalRanks) -> Share:
    """Of what is prepared, this machine's part."""
    return Share() if ranks.is_only_machine else Share(rank=ranks.node_rank, count=len(spec.gpus_per_node))


def _rank_main(context: RankContext) -> Any:
    return lambda: run_rank(context)


def _context(
    spec: LaunchSpec,
    prepared: Prepared,
    board: SharedProgress,
    records: RecordPipe,
    ranks: LocalRanks,
    meeting: Rendezvous,
    scratch: Path,
    local_rank: int,
) -> RankContext:
    return RankContext(
        spec=spec,
        prepared=prepared,
        board=board,
        records=records,
        rank=ranks.first + local_rank,
        local_rank=local_rank,
        local_world_size=ranks.count,
        address=meeting.address,
        port=meeting.port,
        listen_fd=meeting.listener.fileno() if meeting.listener is not None else None,
        scratch=scratch,
    )


def _fold(contexts: list[RankContext], ended: Ended, logs: Path) -> AttemptResult:
    """The attempt's result from the first failing rank, or from rank 0 when none failed."""
    local = ended.first_failing if ended.first_failing is not None else 0
    context = contexts[local]
    code, detail = _code_and_detail(context, ended, local, logs)
    if ended.first_failing is None and ExitCode.CHECKPOINTED in ended.codes.values():
        code = ExitCode.CHECKPOINTED
    board, planned = context.board, context.prepared.total_steps
    total = board.total_steps(local) or planned if code == ExitCode.DONE else planned
    return AttemptResult(
        exit_code=int(code),
        last_step=max(board.last_step(each) for each in ended.codes),
        total_steps=total,
        stopped_early=total < planned,
        resumed_from_step=board.resumed_step(local),
        checkpoint_step=_newest_checkpoint(context.spec, known=board.checkpoint_step(local)),
        final_loss=board.loss(local),
        first_failing_rank=context.rank if ended.first_failing is not None else None,
        detail=detail,
    )


def _newest_checkpoint(spec: LaunchSpec, known: int | None) -> int | None:
    """Step of the newest complete checkpoint: what the store says; ``known`` to a rank where it does not answer."""
    try:
        return max((each.step for each in CheckpointStore(RunPaths(spec.run_dir)).manifests()), default=None)
    except OSError as error:
        logger.warning("checkpoints could not be listed: %s", error)
        return known


def _code_and_detail(context: RankContext, ended: Ended, local: int, logs: Path) -> tuple[int, str]:
    code = ended.codes[local]
    report = read_report(context.report_file)
    if report is not None:
        killed = f" {how_ended(code)}" if code > 128 else ""
        who = f"rank {context.rank} at step {report.last_step + 1}{killed}: " if ended.first_failing is not None else ""
        return code, f"{who}{report.detail}"
    if ended.killed_after_grace:
        return code, f"rank {context.rank} did not stop in time and was killed"
    tail = log_tail(log_file(logs, context.rank))
    said = describe_death(code, tail, virtual=context.is_virtual, oom_killed=ended.num_oom_kills > 0)
    if said is not None:
        return said[0], f"rank {context.rank}: {said[1]}"
    return code, f"rank {context.rank} {how_ended(code)}" + ("" if code > 128 else " and no report")


def _unprepared(report: RankReport) -> AttemptResult:
    logger.error("preparation failed: %s", report.detail)
    return AttemptResult(exit_code=report.exit_code, last_step=0, total_steps=0, detail=report.detail)


def _stopped_early(prepared: Prepared) -> AttemptResult:
    step = prepared.resume.step if prepared.resume is not None else None
    return AttemptResult(
        exit_code=ExitCode.CHECKPOINTED,
        last_step=step or 0,
        total_steps=prepared.total_steps,
        resumed_from_step=step,
        checkpoint_step=step,
        detail="stopped on request before the first step",
    )
