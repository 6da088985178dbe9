"""How long training stands still for a checkpoint that is written meanwhile, beside one that it waits for.

Two real ranks on a CPU train one step of a Llama-shaped bf16 model, save once and wait (the time of a write), once in
the background to take the host memory, and once more while they train on. The pause is what ``begin`` and ``finish``
take of the training; what the writer's thread takes of busy cores is told apart, as the share by which steps are
longer meanwhile. The goal for the pause is a tenth of the write; it is a gate where a core is left for the writer.
Two new ranks then resume at stage 3; the bytes that they read beside those that they need are a gate everywhere.
A case that the free memory might not hold is left out, and says so.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from tests.bench.bench_loading import config_of, free_bytes  # noqa: E402
from tests.bench.report import figure, publish  # noqa: E402

from frenzy.core.values.units import GIB  # noqa: E402

GOAL: Final = 0.10
READ_GOAL: Final = 1.2
SAVED_STAGE: Final = 2
RESUMED_STAGE: Final = 3
NUM_RANKS: Final = 2
_ROUNDS: Final = 3
# Of one measurement, on a busy machine.
_MOST_S: Final = 1500


@dataclass(frozen=True, slots=True)
class Saving:
    """One case. needs_bytes: an upper bound of the memory of all ranks."""

    size: str
    needs_bytes: int
    lora: bool = False

    @property
    def name(self) -> str:
        return f"{self.size} {'LoRA' if self.lora else 'full'}, stage {SAVED_STAGE}, {NUM_RANKS} ranks"


CASES: Final = (Saving("0.35B", 14 * GIB), Saving("1.1B", 9 * GIB, lora=True))


@dataclass(frozen=True, slots=True)
class Times:
    """Of the first rank, in seconds; medians of some rounds. first_pause_s: with the taking of host memory."""

    write_s: float
    first_pause_s: float
    pause_s: float
    step_s: float
    step_meanwhile_s: float
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What the first of new ranks read of a checkpoint, and what it needed of it."""

    read_bytes: int
    needed_bytes: int
    read_s: float


def rank_main(case: Saving, folder: str, stage: int, rank: int, port: int, results: Any) -> None:
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(NUM_RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed
    import torch
    from tests.trainer.launching import Case

    from frenzy.core.lifecycle.resume import ParallelLayout
    from frenzy.core.values.launch import deepspeed_config
    from frenzy.core.values.run_files import RunPaths
    from frenzy.trainer.checkpoint.save import CheckpointSaver
    from frenzy.trainer.loop.worker import make_engine, rank_share
    from frenzy.trainer.model.loading import load_config
    from frenzy.trainer.model.making import make_model

    torch.set_num_threads(1)
    # DeepSpeed calls torch's collectives by their old names, thousands of times.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    training: dict[str, Any] = {"precision": "bf16"} | ({"lora": {"rank": 8, "alpha": 16}} if case.lora else {})
    spec = Case(
        run_dir=folder,
        data="none",
        model=config_of(case.size),
        num_gpus=NUM_RANKS,
        global_batch_size=NUM_RANKS,
        micro_batch_size=1,
        zero_stage=stage,
        training=training,
    ).spec()
    settings = deepspeed_config(spec.job, spec.plan, spec.gpu.kind)
    share = rank_share(spec, settings, torch.device("cpu"))
    # Weights are left as they are made, for nothing here depends on them.
    engine = make_engine(make_model(spec.job, load_config(spec.job.model), share=share, resumes=True), settings)
    train_step(engine)
    found: Times | Reading
    if stage == RESUMED_STAGE:
        found = reading(engine, RunPaths(folder), ParallelLayout.of(spec.plan))
    else:
        with CheckpointSaver(engine, RunPaths(folder), ParallelLayout.of(spec.plan), keep=1) as saver:
            found = times(engine, saver)
    if rank == 0:
        results.put(found)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_step(engine: Any) -> float:
    """A step of a few tokens; its seconds."""
    import torch

    start = time.perf_counter()
    tokens = torch.arange(16).view(1, -1)
    engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
    engine.step()
    return time.perf_counter() - start


def times(engine: Any, saver: Any) -> Times:
    saved(saver, 1, meanwhile=None)  # the frozen base, and the disk's first blocks
    writes = sorted(saved(saver, 2 + each, meanwhile=None)[0] for each in range(_ROUNDS))
    alone = sorted(train_step(engine) for _ in range(_ROUNDS))
    first, _, _ = saved(saver, 10, meanwhile=engine)
    rounds = [saved(saver, 11 + each, meanwhile=engine) for each in range(_ROUNDS)]
    middle = _ROUNDS // 2
    return Times(
        write_s=writes[middle],
        first_pause_s=first,
        pause_s=sorted(pause for pause, _, _ in rounds)[middle],
        step_s=alone[middle],
        step_meanwhile_s=sorted(step for _, step, _ in rounds)[middle],
        written_bytes=rounds[0][2],
    )


def saved(saver: Any, step: int, *, meanwhile: Any) -> tuple[float, float, int]:
    """Seconds that training waits for a checkpoint, of a step meanwhile, and the checkpoint's bytes."""
    from torch import distributed

    from frenzy.trainer.checkpoint.saved_state import TrainState

    distributed.barrier()
    start = time.perf_counter()
    saver.begin(TrainState(step), trains_on=meanwhile is not None)
    pause, steps = time.perf_counter() - start, [0.0]
    while meanwhile is not None and someone_writes(saver):
        steps.append(train_step(meanwhile))
    start = time.perf_counter()
    num_bytes = saver.finish().num_bytes
    return pause + time.perf_counter() - start, max(steps), num_bytes


def someone_writes(saver: Any) -> bool:
    """As the loop's exchange at a step's end."""
    import torch
    from torch import distributed

    flag = torch.tensor(float(saver.is_writing))
    distributed.all_reduce(flag)
    return bool(flag > 0)


def reading(engine: Any, paths: Any, layout: Any) -> Reading:
    """Resume, and what this rank holds afterwards of what a checkpoint holds."""
    from frenzy.trainer.checkpoint import zero_fragments
    from frenzy.trainer.checkpoint.load import load_checkpoint
    from frenzy.trainer.checkpoint.store import prepare_resume

    prepared = prepare_resume(paths, Path(paths.run_dir), layout)
    assert prepared is not None, "a checkpoint was saved"
    before, start = bytes_by_calls(), time.perf_counter()
    load_checkpoint(engine, prepared, layout)
    read, read_s = bytes_by_calls() - before, time.perf_counter() - start
    trained = sum(
        shard.numel * 4 * (1 + len(partition.flat_states()))
        for partition in zero_fragments.partitions(engine)
        for shard in partition.shards
    )
    frozen = sum(each.values.nbytes for each in zero_fragments.frozen_parameters(engine))
    return Reading(read, trained + frozen, read_s)


def bytes_by_calls() -> int:
    """What this process has read so far, from files that lie in memory, too."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure(case: Saving, folder: Path, stage: int) -> Any:
    """Times of saving, or what is read where ``stage`` is the one that resumes; of the first rank."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = [
        context.Process(target=rank_main, args=(case, str(folder), stage, rank, port, results))
        for rank in range(NUM_RANKS)
    ]
    for each in ranks:
        each.start()
    try:
        return results.get(timeout=_MOST_S)
    finally:
        for each in ranks:
            each.join(30)
            each.kill()


def rows_of(case: Saving, found: Times, resumed: Reading) -> list[dict[str, Any]]:
    load = os.getloadavg()[0]
    goal = GOAL if (os.cpu_count() or 1) - load > NUM_RANKS else None
    needed = f"{resumed.needed_bytes / GIB:.2f} GiB"
    size = f"{found.written_bytes / GIB:.2f} GiB"
    return [
        figure(f"{case.name}: a write that training waits for ({size})", found.write_s, "s"),
        figure(f"{case.name}: pause, of the write", found.pause_s / found.write_s, "ratio", goal),
        figure(f"{case.name}: first pause, taking memory, of the write", found.first_pause_s / found.write_s, "ratio"),
        figure(f"{case.name}: a step meanwhile, of a step alone", found.step_meanwhile_s / found.step_s, "ratio"),
        figure(
            f"{case.name}: bytes read to resume at stage {RESUMED_STAGE}, of {needed} needed",
            resumed.read_bytes / resumed.needed_bytes,
            "ratio",
            READ_GOAL,
        ),
        figure(f"{case.name}: time of that resume", resumed.read_s, "s"),
    ]


def main(sizes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Measure every case, or those of ``sizes``; rows of {name, value, unit, goal, ok}."""
    rows = []
    for case in (each for each in CASES if not sizes or each.size in sizes):
        if case.needs_bytes > free_bytes() * 4 // 5:
            print(f"{case.name}: left out, it may need {case.needs_bytes / GIB:.0f} GiB")
            continue
        with tempfile.TemporaryDirectory(prefix="frenzy-checkpoint-") as folder:
            times_of = measure(case, Path(folder), SAVED_STAGE)
            found = rows_of(case, times_of, measure(case, Path(folder), RESUMED_STAGE))
        print(*(f"{each['name']} {each['value']:.3g}" for each in found), sep="\n", flush=True)
        rows += found
    return publish("checkpoint", rows)


if __name__ == "__main__":
    # python tests/bench/bench_checkpoint.py [size ...]
    main(tuple(sys.argv[1:]))
