"""The training loop: the same global batch at the same step, whatever the plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import distributed

from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.models.flops import checkpointed_layers, training_flops
from frenzy.core.values.errors import TemporaryError
from frenzy.core.values.job import CheckpointSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.core.values.telemetry import SAVING, StepRecord
from frenzy.trainer import heartbeats
from frenzy.trainer.best_so_far import BestSoFar, is_due
from frenzy.trainer.callbacks import StepContext, callback_states, restore_callbacks
from frenzy.trainer.checkpoint.load import load_checkpoint
from frenzy.trainer.checkpoint.save import CheckpointSaver
from frenzy.trainer.checkpoint.saved_state import TrainState
from frenzy.trainer.checkpoint.store import PreparedCheckpoint, prepare_step
from frenzy.trainer.collective import gathered_at_length
from frenzy.trainer.data.batches import BatchReader
from frenzy.trainer.data.packing import PackedData, SequenceReader
from frenzy.trainer.loop.batch_share import model_inputs, weighted_batches
from frenzy.trainer.loop.control import ControlFile
from frenzy.trainer.loop.learning_rate import batch_sequences, dropout_seed, learning_rate
from frenzy.trainer.loop.pace import Pace, log_progress, log_validation
from frenzy.trainer.loop.rank_run import Run
from frenzy.trainer.loop.validation import validation_loss
from frenzy.trainer.model.export import export_model
from frenzy.trainer.telemetry.device import MemoryReading

logger = logging.getLogger("frenzy.trainer")
# Nothing comes after an attempt's last checkpoint: it is tried again. The grace of a stop has room for little more.
_TRIES_AFTER_S: Final = (None, 2.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEnd:
    """How the training ended: ExitCode.DONE or CHECKPOINTED. detail: what else there is to say of a good end."""

    code: ExitCode
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """What the steps of an attempt share."""

    reader: BatchReader
    held_out: BatchReader
    control: ControlFile
    pace: Pace
    saver: CheckpointSaver


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What all ranks agree on after a step. is_due: a checkpoint is; is_writing: one of them still writes one.

    is_last: no step follows, in this attempt or another. best: with the validation after it, if there was one.
    """

    step: int
    loss: float
    rate: float
    stop: bool
    is_due: bool
    is_writing: bool
    is_last: bool
    best: BestSoFar


def train(run: Run) -> TrainEnd:
    """Train to the last step, until the validation loss stays, or until asked to stop. Collective."""
    state = _restore(run)
    heartbeats.beat("first step")
    start, best, last_loss = (0, BestSoFar(), None) if state is None else (state.step, state.best, None)
    reader, held_out = _readers(run)
    if best.owes(run.spec.job.validation) and run.spec.rehearsal is None:
        best = best.after(run.spec.job.validation, step=start, loss=_validation(run, held_out, start))
    is_over = best.ends_training(run.spec.job.validation)
    last = start if is_over else run.prepared.total_steps
    run.board.set_plan(run.local_rank, total_steps=last, resumed_step=None if state is None else start)
    _each_callback(run, "on_train_begin", _context(run, step=start, loss=None))
    with _saver(run) as saver:
        saver.kept_steps = () if state is None else state.kept_after(start)
        loop = _Loop(
            reader=reader,
            held_out=held_out,
            control=ControlFile(run.paths.control(run.spec.attempt)),
            pace=Pace(run.spec.gpu, run.rank),
            saver=saver,
        )
        for step in range(start + 1, last + 1):
            end = _one_step(run, loop, step, best)
            best, last_loss = end.best, end.loss
            if run.spec.rehearsal is not None:
                continue
            if not end.is_writing:
                _publish(run, saver)
            if end.stop or end.is_due or end.is_last:
                heartbeats.beat(f"{SAVING} after step", step)
                failure = _save(run, end, saver, trains_on=not end.stop and not end.is_last)
            if end.is_last:
                last = step
                break
            if end.stop:
                return TrainEnd(code=ExitCode.CHECKPOINTED, detail=_stopped(step, failure))
    if run.spec.rehearsal is not None:
        return TrainEnd(code=ExitCode.DONE)
    run.board.set_total(run.local_rank, last)
    model_step = _finish(run, last, last_loss, (best.step, *saver.kept_steps))
    return TrainEnd(code=ExitCode.DONE, detail=" ".join(_account(run, last, model_step, best)))


def _stopped(step: int, failure: str | None) -> str:
    if failure is None:
        return "stopped on request after a checkpoint"
    return f"stopped on request at step {step}, whose checkpoint could not be written: {failure}"


def _account(run: Run, last: int, model_step: int, best: BestSoFar) -> Iterator[str]:
    if last < run.prepared.total_steps:
        yield f"Stopped early after step {last} of {run.prepared.total_steps}: {best.why_no_further()}"
    if run.spec.job.validation.final_model == "best":
        if best.step not in (0, model_step):
            yield f"The best checkpoint, of step {best.step}, could not be read or is not whole."
        yield f"The model is that of step {model_step}."


def _restore(run: Run) -> TrainState | None:
    """Load the prepared checkpoint if there is one; its state."""
    if run.prepared.resume is None:
        return None
    heartbeats.beat("loading the checkpoint")
    with run.device.host_work():
        state = load_checkpoint(run.engine, run.prepared.resume, ParallelLayout.of(run.spec.plan))
    restore_callbacks(run.callbacks, state.callback_states)
    logger.info("resumed from the checkpoint of step %d", state.step)
    return state


def _one_step(run: Run, loop: _Loop, step: int, best: BestSoFar) -> StepEnd:
    started_s = time.monotonic()
    training, total = run.spec.job.training, run.prepared.total_steps
    rate = learning_rate(training, step=step, total_steps=total)
    for group in run.engine.optimizer.param_groups:
        group["lr"] = rate
    local_loss = _forward_backward(run, step, loop.reader)
    wants_stop = run.stop_is_set() or (run.rank == 0 and loop.control.asks_to_stop())
    saves = run.rank == 0 and _is_due(run.spec.job.checkpoint, step, loop.saver)
    loss, (stop, saves, is_writing) = _agree(run, local_loss, (wants_stop, saves, loop.saver.is_writing))
    end = StepEnd(
        step=step,
        loss=loss,
        rate=rate,
        stop=stop,
        is_due=saves,
        is_writing=is_writing,
        is_last=step == total,
        best=best,
    )
    _each_callback(run, "on_step_end", _context(run, step=step, loss=loss))
    flops = _flops_of_rank(run)
    throttle_s = run.device.throttle(started_s=started_s, flops=flops)
    loop.pace.note(throttle_s=throttle_s, step_time_s=time.monotonic() - started_s, flops=flops)
    reading = run.device.read_step()
    record = _record(run, end, reading, step_time_s=time.monotonic() - started_s, throttle_s=throttle_s)
    log_progress(record, total_steps=total, num_ranks=run.spec.plan.num_gpus)
    end, validated = _validated(run, loop.held_out, end)
    run.records.write(replace(record, validation_loss=validated))
    run.board.set_progress(run.local_rank, step=step, loss=loss)
    return end


def _validated(run: Run, reader: BatchReader, end: StepEnd) -> tuple[StepEnd, float | None]:
    """``end`` with what a validation changes of it, and its loss; neither where none is due."""
    asked = run.spec.job.validation
    due = is_due(asked, step=end.step, total_steps=run.prepared.total_steps)
    if not due or run.spec.rehearsal is not None:
        return end, None
    if end.stop and not end.is_last:  # whoever asked waits, and the next attempt has the same weights
        return replace(end, best=replace(end.best, is_owed=True)), None
    loss = _validation(run, reader, end.step)
    best = end.best.after(asked, step=end.step, loss=loss)
    is_better = best.step == end.step
    changed = replace(
        end,
        best=best,
        is_due=end.is_due or (is_better and asked.keep_best),
        is_last=end.is_last or best.ends_training(asked),
    )
    return changed, loss


def _validation(run: Run, held_out: BatchReader, step: int) -> float:
    loss = validation_loss(run, held_out)
    log_validation(step, loss)
    return loss


def _readers(run: Run) -> tuple[BatchReader, BatchReader]:
    """Of what is trained on, and of what is held out: the same, unless that has a place of its own."""
    prepared = run.prepared
    reader = _reader(run, prepared.data, run.scratch)
    is_apart = run.spec.job.held_out is not None
    return reader, _reader(run, prepared.held_out, run.scratch / "held-out") if is_apart else reader


def _reader(run: Run, data: PackedData, cache: Path) -> BatchReader:
    return BatchReader(SequenceReader(data, cache), run.spec.job.data, run.prepared.eos_token_id)


def _forward_backward(run: Run, step: int, reader: BatchReader) -> torch.Tensor:
    """Accumulate the rank's share of the global batch and step.

    The share's loss; its mean over the ranks is the mean over all tokens that count in the global batch.
    """
    plan, seed = run.spec.plan, run.spec.job.training.seed
    order = batch_sequences(
        seed=seed, step=step, global_batch_size=plan.global_batch_size, num_sequences=run.prepared.data.num_train
    )
    total = torch.zeros((), dtype=torch.float64, device=run.device.torch_device)
    for first, batch, weight in weighted_batches(run, reader, order):
        torch.manual_seed(dropout_seed(seed=seed, step=step, first_sample=first))
        loss = run.engine(**model_inputs(batch, run.device.torch_device), use_cache=False).loss
        loss = loss if weight is None else loss * weight
        total += loss.detach().double()
        run.engine.backward(loss)
        del loss
        run.engine.step()
    return total / plan.accumulation_steps


def _is_due(asked: CheckpointSpec, step: int, saver: CheckpointSaver) -> bool:
    if asked.every_minutes is None:
        return step % asked.every_steps == 0
    return time.monotonic() - saver.begun_s >= 60 * asked.every_minutes


def _agree(run: Run, local_loss: torch.Tensor, flags: tuple[bool, ...]) -> tuple[float, tuple[bool, ...]]:
    """Mean loss of the global batch, and which flags any rank has set; the same on all ranks."""
    shared = torch.stack((local_loss, *(torch.full_like(local_loss, float(each)) for each in flags)))
    distributed.all_reduce(shared)
    loss, *counts = shared.tolist()
    return loss / run.spec.plan.num_gpus, tuple(each > 0 for each in counts)


def _flops_of_rank(run: Run) -> float:
    plan = run.spec.plan
    flops = training_flops(
        run.flops_shape,
        num_tokens=run.tokens_per_step // plan.dp,
        sequence_length=run.spec.job.data.sequence_length,
        checkpointing=_repeated_share(run),
    )
    return flops / plan.tp


def _repeated_share(run: Run) -> float:
    """Of the layers, those whose forward pass is computed again."""
    if not run.spec.plan.activation_checkpointing:
        return 0.0
    num_layers = run.flops_shape.num_layers
    return checkpointed_layers(num_layers, run.spec.job.training.checkpoint_every_layers) / num_layers


def _record(run: Run, end: StepEnd, reading: MemoryReading, *, step_time_s: float, throttle_s: float) -> StepRecord:
    norm = run.engine.get_global_grad_norm()
    return StepRecord(
        rank=run.rank,
        step=end.step,
        time_s=time.time(),
        loss=end.loss,
        step_time_s=step_time_s,
        tokens_per_s=run.tokens_per_step / run.spec.plan.num_gpus / step_time_s,
        peaks=reading.peaks,
        capacity_bytes=reading.capacity_bytes,
        num_alloc_retries=reading.num_alloc_retries,
        num_ooms=reading.num_ooms,
        learning_rate=end.rate,
        grad_norm=None if norm is None else float(norm),
        throttle_s=throttle_s,
        utilisation=reading.utilisation,
        clock_reasons=reading.clock_reasons,
        ecc_errors=reading.ecc_errors,
        host_rss_bytes=reading.host_rss_bytes,
    )


def _saver(run: Run) -> CheckpointSaver:
    resumed = run.prepared.resume
    return CheckpointSaver(
        run.engine,
        run.paths,
        ParallelLayout.of(run.spec.plan),
        run.spec.job.checkpoint.keep,
        scratch_dir=run.scratch,
        resumed=None if resumed is None else resumed.manifest,
    )


def _save(run: Run, end: StepEnd, saver: CheckpointSaver, *, trains_on: bool) -> str | None:
    """Begin a checkpoint, once the one before is whole; the last one of an attempt is waited for, and tried again.

    Returns why the last one is not there.
    """
    _publish(run, saver)
    _each_callback(run, "on_checkpoint", _context(run, step=end.step, loss=end.loss))
    state = TrainState(
        step=end.step,
        tokens_seen=end.step * run.tokens_per_step,
        callback_states=callback_states(run.callbacks),
        best=end.best,
        kept_step=end.best.step if run.spec.job.validation.keep_best else None,
        kept_before=tuple(step for step in saver.kept_steps if step != end.best.step),
    )
    meanwhile = trains_on and run.spec.job.checkpoint.background
    failure = None
    for wait_s in (None,) if trains_on else _TRIES_AFTER_S:
        if wait_s is not None:
            time.sleep(wait_s)
        with run.device.host_work():
            saver.begin(state, trains_on=meanwhile)
        failure = None if meanwhile else _publish(run, saver)
        if failure is None:
            break
    return failure


def _publish(run: Run, saver: CheckpointSaver) -> str | None:
    """Make the checkpoint whole that was begun, if there is one; waits for its files. Returns why it is not."""
    step = saver.pending_step
    if step is None:
        return None
    try:
        with run.device.host_work():
            saver.finish()
    except TemporaryError as error:
        # All ranks come here together; the checkpoint before this one is whole, and the next may be.
        logger.warning("no checkpoint of step %d: %s", step, error)
        return error.reason.sentence
    run.board.set_checkpoint(run.local_rank, step)
    return None


def _finish(run: Run, last: int, last_loss: float | None, best_steps: Sequence[int]) -> int:
    """Export the model; the step it is of. best_steps: of the best checkpoint, then of those that were before."""
    _each_callback(run, "on_train_end", _context(run, step=last, loss=last_loss))
    wants_best = run.spec.job.validation.final_model == "best"
    step = model_step(best_steps, last, partial(_bring_back, run)) if wants_best else last
    heartbeats.beat("saving the finished model")
    with run.device.host_work():
        export_model(
            run.engine,
            run.spec.job,
            run.config,
            tokenizer_folder=run.prepared.tokenizer_folder,
            model_dir=run.paths.model_dir,
            step=step,
        )
    return step


def model_step(best_steps: Sequence[int], last: int, bring_back: Callable[[int], bool]) -> int:
    """The first of ``best_steps`` that can be brought back; the last step where that is best, or none can."""
    if best_steps[0] in (0, last):
        return last
    return next((step for step in dict.fromkeys(best_steps) if bring_back(step)), last)


def _bring_back(run: Run, step: int) -> bool:
    """Load the checkpoint of ``step``, which one rank of each node brings near. False where it is gone. Collective."""
    heartbeats.beat("loading the best checkpoint")
    with run.device.host_work():
        first = run.rank - run.local_rank
        of_ranks = gathered_at_length((lambda: (first, _near(run, step))) if run.rank == first else None)
        near = dict(each for each in of_ranks if each is not None)
        found = near[first]
        if found is None or None in near.values():
            logger.warning("the checkpoint of step %d, which is wanted as the model, is gone or not whole", step)
            return False
        load_checkpoint(run.engine, found, ParallelLayout.of(run.spec.plan))
    return True


def _near(run: Run, step: int) -> PreparedCheckpoint | None:
    try:
        return prepare_step(run.paths, run.scratch / "best", step, ParallelLayout.of(run.spec.plan))
    except Exception as error:  # stores raise errors of their own, and there is the last model
        logger.warning("the checkpoint of step %d cannot be read: %s", step, error)
        return None


def _each_callback(run: Run, hook: str, context: StepContext) -> None:
    for each in run.callbacks:
        getattr(each, hook)(context, run.engine.module)


def _context(run: Run, *, step: int, loss: float | None) -> StepContext:
    total = run.prepared.total_steps
    return StepContext(
        step=step,
        total_steps=total,
        loss=loss,
        learning_rate=learning_rate(run.spec.job.training, step=max(1, step), total_steps=total),
        rank=run.rank,
        world_size=run.spec.plan.num_gpus,
        zero_stage=run.spec.plan.zero_stage,
    )
