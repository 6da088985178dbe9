"""One node of an attempt that runs a script: a child for each GPU slot that becomes the command, watched to its end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.failure_classes import name_last_words
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.run_files import EXIT_BY_REASON, REASON_BY_EXIT, ExitCode, RunPaths, how_ended
from frenzy.core.values.workload import WorkloadSpec
from frenzy.trainer import env, files, heartbeats
from frenzy.trainer.launch.child import fork, log_tail
from frenzy.trainer.launch.local_ranks import LocalRanks, local_ranks, log_file, logs_folder, upload_logs
from frenzy.trainer.launch.rank_failures import share_failures
from frenzy.trainer.launch.rendezvous import meet
from frenzy.trainer.launch.script.checkpoints import ScriptCheckpoint, newest
from frenzy.trainer.launch.script.environment import ScriptRank, deepspeed_text, job_text
from frenzy.trainer.launch.script.relay import NodeWatch, RankWatch, bound
from frenzy.trainer.launch.supervise import Ended, Supervisor
from frenzy.trainer.launch.tracking import begin_tracking
from frenzy.trainer.loop.control import StopRequest
from frenzy.trainer.outcome import CRASHED, budget_exceeded, describe_death
from frenzy.trainer.telemetry.shared_progress import SharedProgress
from frenzy.trainer.telemetry.writer import NodeTelemetry

logger = logging.getLogger("frenzy.trainer")

_CANNOT_START: Final = 127
# What a script of a framework has loaded before it makes its model.
_LIBRARIES: Final[Mapping[str, str]] = {
    "torchrun": "torch, torch.distributed",
    "deepspeed": "torch, deepspeed",
    "hf-trainer": "torch, transformers.trainer",
}
_MEASURE: Final = "import {}; print(open('/proc/self/statm').read().split()[5])"
_MEASURE_S: Final = 300.0


def run_script(spec: LaunchSpec, workload: WorkloadSpec, *, node_rank: int | None, scratch: Path) -> AttemptResult:
    """Run this node's part of the attempt to its end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop, ranks, paths = StopRequest(), local_ranks(spec.gpus_per_node, node_rank), RunPaths(spec.run_dir)
    logs = logs_folder(spec, scratch)
    heartbeats.begin(paths.heartbeat(spec.attempt, ranks.node_rank))
    try:
        heartbeats.beat("starting the script")
        (scratch / "ds_config.json").write_text(deepspeed_text(spec))
        if ranks.is_first_node:
            files.write_text(paths.ds_config(spec.attempt), deepspeed_text(spec))
        (scratch / "job.json").write_text(job_text(spec))
        resume = newest(spec)
        baseline = bytes_of_libraries(workload.framework) if spec.gpu.kind is DeviceKind.VIRTUAL else 0
        own = _run(spec, workload, ranks, stop, logs, scratch, resume, baseline)
        return own if ranks.is_only_machine else share_failures(spec, node_rank=ranks.node_rank, own=own)
    finally:
        upload_logs(spec, logs)


def _run(
    spec: LaunchSpec,
    workload: WorkloadSpec,
    ranks: LocalRanks,
    stop: StopRequest,
    logs: Path,
    scratch: Path,
    resume: ScriptCheckpoint | None,
    baseline: int,
) -> AttemptResult:
    each_rank = _script_ranks(spec, ranks, scratch, resume)
    board = _board(spec, ranks, resume)
    pids = {
        each.local_rank: fork(_becoming(workload, each, baseline), log_file=log_file(logs, each.rank))
        for each in each_rank
    }
    tracking = begin_tracking(spec, ranks.node_rank, logs, scratch)
    telemetry = NodeTelemetry(RunPaths(spec.run_dir), spec.attempt, ranks.node_rank, beside=tracking)
    watches = {
        each.local_rank: RankWatch(each, pids[each.local_rank], board, baseline, telemetry) for each in each_rank
    }
    watch = NodeWatch(watches, each_rank[0], stop.received, telemetry)
    supervisor = Supervisor(
        pids,
        board,
        samples_memory=spec.gpu.kind is DeviceKind.VIRTUAL,
        stop_grace_s=env.stop_grace_s(),
        stop_requested=stop.received,
        each_turn=watch.turn,
        judged=lambda local, code: watches[local].judged(code),
    )
    ended = supervisor.wait()
    watch.close()
    _end_groups(pids.values())
    own = _fold(spec, ranks, board, watch, ended, logs, resume)
    tracking.end(own.exit_code)
    return own


def _script_ranks(
    spec: LaunchSpec, ranks: LocalRanks, scratch: Path, resume: ScriptCheckpoint | None
) -> list[ScriptRank]:
    """One for each GPU slot, which meet where the script's own first rank will listen."""
    meeting = meet(spec, ranks)
    if meeting.listener is not None:
        meeting.listener.close()
    first = ScriptRank(
        spec=spec,
        ranks=ranks,
        local_rank=0,
        address=meeting.address,
        port=meeting.port,
        scratch=scratch,
        resume=resume,
    )
    return [replace(first, local_rank=local) for local in range(ranks.count)]


def _board(spec: LaunchSpec, ranks: LocalRanks, resume: ScriptCheckpoint | None) -> SharedProgress:
    board = SharedProgress(ranks.count)
    for local in range(ranks.count):
        board.set_plan(
            local, total_steps=spec.job.training.max_steps or 0, resumed_step=None if resume is None else resume.step
        )
        board.set_measuring(local, True)
    return board


def _becoming(workload: WorkloadSpec, rank: ScriptRank, baseline: int) -> Callable[[], int]:
    """What the child does: it becomes the command."""

    def main() -> NoReturn:
        os.setpgid(0, 0)
        variables = rank.environment(os.environ)
        folder = Path(workload.folder) if workload.folder is not None else rank.scratch / "work"
        if workload.folder is None:
            folder.mkdir(exist_ok=True)
        if baseline:
            bound(os.getpid(), baseline + rank.spec.gpu.memory_bytes)
        try:
            os.chdir(folder)
            os.execvpe(workload.command[0], workload.command, variables)  # noqa: S606  # words, no shell
        except OSError as error:
            sys.stderr.write(f"The command cannot be started in {folder}: {workload.command[0]}: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(_CANNOT_START)

    return main


def bytes_of_libraries(framework: str) -> int:
    """Data memory of a process that loaded the framework: what a virtual GPU does not count. 0 where none can say."""
    heartbeats.beat("measuring what the libraries take")
    code = _MEASURE.format(_LIBRARIES[framework])
    try:
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=_MEASURE_S
        )
        return int(said.stdout.split()[-1]) * os.sysconf("SC_PAGE_SIZE")
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        logger.warning("what %s takes is not known, so that memory is not bounded: %s", framework, error)
        return 0


def _end_groups(pids: Iterable[int]) -> None:
    """Whatever a rank started and left behind."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _fold(
    spec: LaunchSpec,
    ranks: LocalRanks,
    board: SharedProgress,
    watch: NodeWatch,
    ended: Ended,
    logs: Path,
    resume: ScriptCheckpoint | None,
) -> AttemptResult:
    """The attempt's result, as the ranks' exit codes and the agent's words have it."""
    last_step = max(board.last_step(each) for each in ended.codes)
    checkpoint = board.checkpoint_step(0)
    result = AttemptResult(
        exit_code=0,
        last_step=last_step,
        total_steps=max(board.total_steps(0), last_step),
        resumed_from_step=None if resume is None else resume.step,
        checkpoint_step=checkpoint,
        final_loss=board.loss(0) if last_step > (0 if resume is None else resume.step) else None,
        releases=watch.watches[0].releases,
    )
    ended = _as_failed(ended, asked=watch.is_asked_to_stop)
    if ended.first_failing is not None:
        rank = ranks.first + ended.first_failing
        refusal = watch.watches[ended.first_failing].refusal
        if refusal and ended.codes[ended.first_failing] == ExitCode.BAD_CONFIG_OR_DATA:
            code, detail = int(ExitCode.BAD_CONFIG_OR_DATA), f"refused: {refusal}"
        else:
            code, detail = _failure(spec, ended, rank, log_tail(log_file(logs, rank)))
        return replace(result, exit_code=code, first_failing_rank=rank, detail=f"rank {rank} {detail}")
    if any(each.is_stopping for each in watch.watches.values()) or ExitCode.CHECKPOINTED in ended.codes.values():
        detail = "stopped on request" + ("" if checkpoint is None else f" after the checkpoint of step {checkpoint}")
        return replace(result, exit_code=ExitCode.CHECKPOINTED, detail=detail)
    # It ended well, so all is done: how many steps that were, it need not have said.
    steps = last_step or spec.job.training.max_steps or 1
    return replace(result, last_step=steps, total_steps=steps)


def _as_failed(ended: Ended, *, asked: bool) -> Ended:
    """``ended``; a script that says to have stopped though nobody asked it to has failed."""
    stopped = (local for local, code in sorted(ended.codes.items()) if code == ExitCode.CHECKPOINTED)
    return ended if asked or ended.first_failing is not None else replace(ended, first_failing=next(stopped, None))


def _failure(spec: LaunchSpec, ended: Ended, rank: int, tail: str) -> tuple[int, str]:
    """Exit code and what happened: the script's own code, unless its last words name a known failure.

    A code that is the trainer's by chance says nothing: the script did not mean its reason. The agent's ``refuse`` is
    asked for before.
    """
    own = ended.codes[ended.first_failing or 0]
    code = CRASHED if own in REASON_BY_EXIT or own == ExitCode.CHECKPOINTED else own
    virtual = spec.gpu.kind is DeviceKind.VIRTUAL
    if ended.killed_after_grace:
        return code, "did not stop in time and was killed"
    if code == _CANNOT_START:
        return ExitCode.BAD_CONFIG_OR_DATA, f"never began: {_last_line(tail)}"
    died = describe_death(code, tail, virtual=virtual, oom_killed=ended.num_oom_kills > 0)
    if died is not None:
        return died[0], died[1]
    if code == CRASHED:
        if virtual and budget_exceeded(tail):
            return ExitCode.BUDGET_EXCEEDED, f"exceeded its memory: {_last_line(tail)}"
        named = name_last_words(tail)
        if named is not None and named.failure.code in EXIT_BY_REASON:
            of_host = virtual and named.failure.code is ReasonCode.HOST_OUT_OF_MEMORY
            return ExitCode.BUDGET_EXCEEDED if of_host else EXIT_BY_REASON[named.failure.code], f"failed: {named.line}"
    return code, f"{how_ended(own)}: {_last_line(tail)}"


def _last_line(tail: str) -> str:
    lines = [each for each in tail.splitlines() if each.strip()]
    return lines[-1].strip()[:500] if lines else "it wrote nothing"
