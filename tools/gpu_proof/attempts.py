"""One attempt after the other through the trainer's launcher, each with a plan of MARP's and a limit of time."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import psutil

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import PlanRow, predict_memory
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.planning.candidates import TypeFacts, gpu_facts
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.marp import plan_candidates, smallest_remedy
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values import codec
from frenzy.core.values.cluster import Cluster, Node, NodeAllocation, Placement
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import AttemptResult, LaunchSpec, Rehearsal
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.trainer.launch.child import fork, log_tail
from frenzy.trainer.model.libraries import import_libraries
from tools.gpu_proof.scale import Scale
from tools.gpu_proof.this_machine import Machine

# Beside the lines: last words of attempts that did not end with 0, on purpose or not.
FAILED: Final = "failed.log"
_KEPT_CHARACTERS: Final = 6000
_POLL_S: Final = 0.25
_STEP: Final = re.compile(r" step (\d+)/")


class TimeIsUp(Exception):
    """Raised inside a case when its time, or the session's, is over; nothing of it is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that ended. steps: of rank 0. wall_s: of the whole process; start_s: of it, to the first step's begin.

    host_bytes: highest memory of all its processes, shared pages once. stopped_s: from the signal to the end, where
    one was sent.
    """

    spec: LaunchSpec
    result: AttemptResult
    steps: tuple[StepRecord, ...]
    wall_s: float
    start_s: float | None
    host_bytes: int
    stopped_s: float | None = None

    @property
    def step_time_s(self) -> float | None:
        """Median of the steps but the first two, which compile and allocate."""
        times = sorted(each.step_time_s for each in self.steps[2:] or self.steps)
        return times[len(times) // 2] if times else None

    @property
    def peak_bytes(self) -> int | None:
        return max((each.peaks.allocated_bytes for each in self.steps), default=None)

    @property
    def trained(self) -> bool:
        return self.result.exit_code == 0 and bool(self.steps)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where attempts run. folder: of the runs; output: of what is kept. deadline_s: of the running case."""

    machine: Machine
    scale: Scale
    calibration: Calibration
    folder: Path
    output: Path
    text: Path
    clock_s: Callable[[], float] = time.monotonic
    deadline_s: float = float("inf")

    def until(self, deadline_s: float) -> Bench:
        return replace(self, deadline_s=deadline_s)

    @cached_property
    def cluster(self) -> Cluster:
        """One node with one card."""
        machine = self.machine
        node = Node(
            name="here",
            gpu_type=machine.gpu.name,
            num_gpus=1,
            host_memory_bytes=machine.host_bytes,
            num_cpus=float(machine.num_cpus),
        )
        return Cluster(gpu_types=(machine.gpu,), nodes=(node,))

    def job(
        self,
        model: Mapping[str, Any],
        *,
        steps: int,
        sequence_length: int,
        checkpoint: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> TrainingJob:
        """A job of ``steps`` steps with ``model`` (a section of the job); ``training`` over the trainer's defaults."""
        return codec.decode(
            TrainingJob,
            {
                "name": "gpu-proof",
                "model": dict(model),
                "data": {"path": str(self.text), "format": "text", "sequence_length": sequence_length},
                "training": {"global_batch_size": self.scale.batch, "max_steps": steps, **training},
                "checkpoint": {"every_steps": 1_000_000, **(checkpoint or {})},
            },
        )

    def request(self, job: TrainingJob, config: Mapping[str, Any]) -> PlanRequest:
        return PlanRequest(job=job, shape=shape_of(config), total_steps=job.training.max_steps or 1)

    def best_plan(self, job: TrainingJob, config: Mapping[str, Any]) -> ResourcePlan:
        """What MARP would run. Raises PermanentError with the smallest remedy where no plan is feasible."""
        request = self.request(job, config)
        candidates = plan_candidates(request, self.cluster, self.calibration)
        if not candidates or not candidates[0].feasible:
            raise PermanentError(smallest_remedy(request, self.cluster, self.calibration, known=candidates))
        return candidates[0].plan

    def plan_at(
        self, job: TrainingJob, config: Mapping[str, Any], *, zero_stage: int, offload: bool = False
    ) -> ResourcePlan:
        """The plan of one stage, which MARP offers on one card at stage 1 alone. Raises PermanentError if refused."""
        # Two micro-batches a step: their sum in fp32, and the optimizers that make it, are tried with the rest.
        accumulation = 1 if offload else 2
        return self.plan_of(
            job, config, PlanRow(1, 1, zero_stage, self.scale.batch // accumulation, accumulation, False, offload)
        )

    def plan_of(self, job: TrainingJob, config: Mapping[str, Any], row: PlanRow) -> ResourcePlan:
        """The plan ``row``, predicted. Raises PermanentError if refused."""
        request = self.request(job, config)
        (facts,) = gpu_facts(request, self.cluster, self.calibration)
        plan = _plan_of_row(facts, row, self.calibration)
        refused = facts.refusal(plan)
        if refused is not None:
            raise PermanentError(refused)
        return plan

    def run(
        self,
        job: TrainingJob,
        plan: ResourcePlan,
        run_dir: Path,
        *,
        attempt: int = 1,
        rehearsal: bool = False,
        fresh: bool = False,
        stop_at_step: int | None = None,
    ) -> Ended:
        """One attempt, to its end. Raises TimeIsUp at the deadline; its processes end with it.

        rehearsal: nothing is saved. fresh: in a new interpreter, else in a fork that finds the libraries imported.
        stop_at_step: SIGTERM to the launcher once that step was reported.
        """
        spec = LaunchSpec(
            run_key="gpu-proof",
            attempt=attempt,
            job=job,
            plan=plan,
            gpu=replace(self.machine.gpu, memory_bytes=plan.gpu_memory_bytes),
            placement=Placement(allocations=(NodeAllocation(node="here", num_gpus=plan.num_gpus),)),
            run_dir=str(run_dir),
            rehearsal=Rehearsal() if rehearsal else None,
        )
        place = Path(RunPaths(spec.run_dir).spec(attempt))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(codec.dumps(spec), encoding="utf-8")
        return _Attempt(spec, self).run(fresh=fresh, stop_at_step=stop_at_step)


@dataclass(slots=True)
class _Attempt:
    spec: LaunchSpec
    bench: Bench
    host_bytes: int = 0
    signalled_s: float | None = None
    started_s: float = field(default_factory=time.time)

    @property
    def log(self) -> Path:
        return Path(RunPaths(self.spec.run_dir).attempt_dir(self.spec.attempt)) / "launcher.log"

    def run(self, *, fresh: bool, stop_at_step: int | None) -> Ended:
        words = ["--run-dir", self.spec.run_dir, "--attempt", str(self.spec.attempt)]
        if not fresh:
            import_libraries(self.spec.job.model)
        pid = fork(lambda: _exec_launcher(words) if fresh else _call_launcher(words), log_file=self.log)
        try:
            self._wait(pid, stop_at_step)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        ended_s = time.time()
        steps = tuple(steps_of(self.spec))
        result = self._result()
        if result.exit_code != 0:
            self._keep_words(result)
        return Ended(
            spec=self.spec,
            result=result,
            steps=steps,
            wall_s=ended_s - self.started_s,
            start_s=steps[0].time_s - steps[0].step_time_s - self.started_s if steps else None,
            host_bytes=self.host_bytes,
            stopped_s=None if self.signalled_s is None else ended_s - self.signalled_s,
        )

    def _wait(self, pid: int, stop_at_step: int | None) -> None:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if self.bench.clock_s() > self.bench.deadline_s:
                raise TimeIsUp
            self.host_bytes = max(self.host_bytes, resident_bytes(pid))
            if stop_at_step is not None and self.signalled_s is None and self._reached(stop_at_step):
                self.signalled_s = time.time()
                os.kill(pid, signal.SIGTERM)
            time.sleep(_POLL_S)

    def _keep_words(self, result: AttemptResult) -> None:
        """What the launcher and rank 0 said last, beside the figures: the run's folder will be gone."""
        ranks = Path(RunPaths(self.spec.run_dir).rank_log(self.spec.attempt, 0))
        with (self.bench.output / FAILED).open("a", encoding="utf-8") as out:
            out.write(f"=== {self.spec.run_dir}: exit {result.exit_code}: {result.detail}\n")
            for each in (self.log, ranks):
                out.write(f"--- {each.name}\n{log_tail(each)[-_KEPT_CHARACTERS:]}\n")

    def _reached(self, step: int) -> bool:
        """As the rank's log tells, at once: telemetry may come a minute later."""
        told = _STEP.findall(log_tail(Path(RunPaths(self.spec.run_dir).rank_log(self.spec.attempt, 0))))
        return bool(told) and int(told[-1]) >= step

    def _result(self) -> AttemptResult:
        """What the launcher wrote; one that was killed, or never came so far, leaves its log's last line."""
        try:
            written = Path(RunPaths(self.spec.run_dir).result(self.spec.attempt)).read_text(encoding="utf-8")
        except FileNotFoundError:
            last = (log_tail(self.log).strip().splitlines() or ["no word"])[-1]
            return AttemptResult(exit_code=1, last_step=0, total_steps=0, detail=f"the launcher left {last!r}")
        return codec.loads(AttemptResult, written)


def _call_launcher(words: list[str]) -> int:
    from frenzy.trainer.launch.__main__ import main

    return main(words)


def _exec_launcher(words: list[str]) -> int:
    os.execv(sys.executable, [sys.executable, "-m", "frenzy.trainer.launch", *words])  # noqa: S606  # words, no shell


def _plan_of_row(facts: TypeFacts, row: PlanRow, calibration: Calibration) -> ResourcePlan:
    grid = grid_of([row])
    memory = predict_memory(facts.workload, grid, calibration)
    if memory is None:
        raise ValueError(f"the memory model has no coefficients for {facts.request.shape.family}")
    return facts.plan(row, memory.on_card(facts.gpu.compute_capability).prediction(0))


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of ``config`` with the library's defaults."""
    from transformers import AutoConfig

    return model_shape(AutoConfig.for_model(**config).to_dict())


def steps_of(spec: LaunchSpec) -> list[StepRecord]:
    """What rank 0 reported, in the order of the steps."""
    folder = Path(RunPaths(spec.run_dir).telemetry_dir(spec.attempt))
    lines = (line for chunk in sorted(folder.glob("*.jsonl")) for line in chunk.read_text().splitlines())
    records = (codec.loads(StepRecord, line) for line in lines)
    return sorted((each for each in records if each.rank == 0), key=lambda each: each.step)


def resident_bytes(pid: int) -> int:
    """Memory of a process and all it started: each one's own, and once what the one that shares most shares.

    Proportional sizes would do for the tree alone, but pages of libraries count less while others have them, too.
    """
    try:
        launcher = psutil.Process(pid)
        parts = [_own_and_shared(each) for each in (launcher, *launcher.children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    return sum(own for own, _ in parts) + max(shared for _, shared in parts)


def _own_and_shared(process: psutil.Process) -> tuple[int, int]:
    try:
        found = process.memory_full_info()
    except psutil.Error:  # it has just ended
        return 0, 0
    return int(found.uss), int(found.rss - found.uss)
