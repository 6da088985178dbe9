"""Failures on purpose: what Frenzy names them, and whether the forecast comes before a real out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from frenzy.core.lifecycle.monitor import MonitorPolicy, MonitorState, absorb, assess
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.run_files import REASON_BY_EXIT, ExitCode
from tools.gpu_proof.attempts import Bench, Ended, shape_of
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import rounded
from tools.gpu_proof.proof import Case, Part

_MANY_STEPS: Final = 10_000
# A virtual GPU gets room for so many snapshots; a real card is filled as it is.
_VIRTUAL_SNAPSHOTS: Final = 14
_WEIGHT_BYTES: Final = 2


def _cases(bench: Bench) -> Iterator[Case]:
    yield Case(name="growing memory", run=_growth)
    yield Case(name="raw allocation", run=_raw)
    yield Case(name="SIGTERM", run=_stopped)


def _growth(bench: Bench, folder: Path) -> Iterator[Found]:
    """A callback that keeps a copy of all weights at each step, until the allocator has no more."""
    config = bench.scale.one
    callback = {"path": "frenzy.trainer.callbacks:SnapshotAverage", "args": {"keep_last": _MANY_STEPS}}
    job = bench.job(
        {"config": config}, steps=_MANY_STEPS, sequence_length=bench.scale.sequence_length, callbacks=[callback]
    )
    plan = bench.best_plan(job, config)
    if bench.machine.is_virtual:
        room = _VIRTUAL_SNAPSHOTS * _WEIGHT_BYTES * shape_of(config).num_parameters
        plan = replace(plan, gpu_memory_bytes=plan.memory.required_bytes + room)
    ended = bench.run(job, plan, folder)
    yield _named(ended, _out_of_memory(bench))
    forecast = _first_forecast(ended)
    if forecast is None:
        yield Found(name="forecast ahead", value=None, unit="steps", detail="no forecast")
        return
    step, sentence = forecast
    yield Found(name="forecast ahead", value=float(ended.result.last_step + 1 - step), unit="steps", detail=sentence)


def _first_forecast(ended: Ended) -> tuple[int, str] | None:
    """When the monitor would have called for a move, shown one step after the other as it would have seen them."""
    policy, state = MonitorPolicy(), MonitorState(num_ranks=1)
    for each in ended.steps:
        state = absorb(state, (each,), policy)
        seen = assess(
            state,
            ended.spec.plan,
            total_steps=_MANY_STEPS,
            now_s=each.time_s,
            running_since_s=ended.steps[0].time_s,
            policy=policy,
        )
        if seen.pressure is not None and seen.pressure.reason.code is ReasonCode.MEMORY_PRESSURE_FORECAST:
            return each.step, seen.pressure.reason.sentence
    return None


def _raw(bench: Bench, folder: Path) -> Iterator[Found]:
    callback = {"path": "tools.gpu_proof.in_the_loop:RawAllocation", "args": {"step": 2}}
    job = bench.job(
        {"config": bench.scale.base}, steps=6, sequence_length=bench.scale.sequence_length, callbacks=[callback]
    )
    ended = bench.run(job, bench.best_plan(job, bench.scale.base), folder)
    yield _named(ended, _out_of_memory(bench))


def _stopped(bench: Bench, folder: Path) -> Iterator[Found]:
    """SIGTERM to the launcher while steps run: a checkpoint, and another attempt that goes on from it."""
    job = bench.job({"config": bench.scale.base}, steps=_MANY_STEPS, sequence_length=bench.scale.sequence_length)
    plan = bench.best_plan(job, bench.scale.base)
    ended = bench.run(job, plan, folder, stop_at_step=2)
    yield _named(ended, ExitCode.CHECKPOINTED)
    if ended.stopped_s is not None:
        yield Found(name="signal to end", value=rounded(ended.stopped_s), unit="s")
    again = bench.run(job, plan, folder, attempt=2, stop_at_step=ended.result.last_step + 1)
    went_on = again.result.resumed_from_step == ended.result.checkpoint_step is not None
    yield Found(
        name="went on", value=float(went_on), unit="yes = 1", detail=f"from step {again.result.resumed_from_step}"
    )


def _out_of_memory(bench: Bench) -> ExitCode:
    return ExitCode.BUDGET_EXCEEDED if bench.machine.is_virtual else ExitCode.CUDA_OUT_OF_MEMORY


def _named(ended: Ended, expected: ExitCode) -> Found:
    """Whether the attempt ended under the name it should have."""
    code = ended.result.exit_code
    reason = REASON_BY_EXIT.get(code)
    name = reason.name if reason is not None else ExitCode(code).name if code in set(ExitCode) else f"exit {code}"
    detail = f"{name}: {ended.result.detail}" if ended.result.detail else name
    return Found(name="named rightly", value=float(code == expected), unit="yes = 1", detail=detail)


PART: Final = Part(
    name="failures",
    title="failures on purpose: out of memory past a forecast, a raw allocation, SIGTERM in mid-step",
    share=0.12,
    case_s=180.0,
    cases=_cases,
)
