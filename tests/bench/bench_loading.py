"""Host memory while the ranks of a job load a pretrained model, until its engine is made.

Llama-shaped bf16 models in four shards are written to a scratch folder and read by real ranks on a CPU,
where the device's memory is the host's. A figure is the peak of all ranks together (proportional set
size, so that what they share counts once), above what they held before and the weights they keep.
The goal is one shard and half a GiB. ``before`` is how it was once done: whole models in fp32, then cast
and cut. A case that would not fit in half of the free memory is left out, and says so.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from tests.bench.report import figure, publish  # noqa: E402

from frenzy.core.values.units import GIB  # noqa: E402

NUM_SHARDS: Final = 4
ALLOWED_BYTES: Final = GIB // 2
SAMPLE_S: Final = 0.01
# Hidden size, layers, width of the feed-forward block; 32,000 words.
SIZES: Final = {"0.35B": (1024, 24, 2816), "0.7B": (1536, 20, 4096), "1.1B": (2048, 20, 5632)}


@dataclass(frozen=True, slots=True)
class Loading:
    """One case. way: ``straight`` as the trainer loads, ``before``, or ``resume`` before a checkpoint is read."""

    size: str
    num_ranks: int
    zero_stage: int
    lora: bool = False
    way: str = "straight"

    @property
    def name(self) -> str:
        kind = " LoRA" if self.lora else ""
        return f"{self.size} stage {self.zero_stage}, {self.num_ranks} ranks{kind}, {self.way}"


CASES: Final = (
    Loading("0.35B", 2, 1),
    Loading("0.35B", 2, 2),
    Loading("0.35B", 2, 2, way="before"),
    Loading("0.35B", 4, 2),
    Loading("0.35B", 2, 3),
    Loading("0.35B", 2, 3, way="before"),
    Loading("0.35B", 2, 3, way="resume"),
    Loading("0.35B", 2, 2, lora=True),
    Loading("0.7B", 2, 3),
    Loading("0.7B", 4, 3),
    Loading("1.1B", 2, 3),
    Loading("1.1B", 4, 3),
    Loading("1.1B", 2, 2, lora=True),
)


def config_of(size: str) -> dict[str, Any]:
    hidden, layers, inner = SIZES[size]
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }


def write_model(size: str, folder: Path) -> int:
    """A model of zeros in ``folder``; the bytes of all its weights."""
    import torch
    from transformers import AutoConfig

    from frenzy.trainer.model.making import model_without_weights
    from frenzy.trainer.tensor_file import TensorWriter

    given = config_of(size)
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    model = model_without_weights(config, "sdpa", torch.bfloat16)
    weights = list(model.named_parameters())
    per_shard = -(-len(weights) // NUM_SHARDS)
    index = {}
    for number in range(NUM_SHARDS):
        part = weights[number * per_shard : (number + 1) * per_shard]
        name = f"model-{number + 1:05d}-of-{NUM_SHARDS:05d}.safetensors"
        writer = TensorWriter(folder / name, [(key, each.dtype, tuple(each.shape)) for key, each in part])
        for key, each in part:
            writer.write(torch.zeros(each.shape, dtype=each.dtype))
            index[key] = name
        writer.close()
    config.save_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(each.numel() * each.element_size() for _, each in weights)


def rank_main(case: Loading, folder: str, rank: int, port: int, meet: Any) -> None:
    """One rank: imports and warms up, waits, loads, waits."""
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case.num_ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    from tests.trainer.launching import LLAMA, Case

    from frenzy.core.values.job import ModelSpec
    from frenzy.core.values.launch import deepspeed_config
    from frenzy.trainer.model.libraries import import_libraries

    training: dict[str, Any] = {"precision": "bf16"} | ({"lora": {"rank": 8, "alpha": 16}} if case.lora else {})
    plans = {"num_gpus": case.num_ranks, "zero_stage": case.zero_stage, "micro_batch_size": 1, "training": training}
    tiny = Case(run_dir="none", data="none", model=LLAMA, **plans).spec()
    spec = Case(run_dir="none", data="none", model_section={"path": folder}, **plans).spec()
    import_libraries(ModelSpec(config=LLAMA), tiny.job.training)
    import deepspeed
    import torch

    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    settings = deepspeed_config(spec.job, spec.plan, spec.gpu.kind)
    load(case, tiny, settings)
    meet.wait()
    meet.wait()
    model = load(case, spec, settings)
    meet.wait()
    del model
    torch.distributed.destroy_process_group()


def load(case: Loading, spec: Any, settings: dict[str, Any]) -> Any:
    import torch

    from frenzy.trainer.loop.worker import rank_share
    from frenzy.trainer.model.loading import load_config
    from frenzy.trainer.model.making import make_model

    config = load_config(spec.job.model)
    if case.way == "before":
        return load_whole(case, spec, config, settings)
    share = rank_share(spec, settings, torch.device("cpu"))
    return make_model(spec.job, config, share=share, resumes=case.way == "resume")


def load_whole(case: Loading, spec: Any, config: Any, settings: dict[str, Any]) -> Any:
    """How it was once done: fp32 on every rank, then a cast of all of it, then ``zero.Init``."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM

    if spec.job.model.path is None:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(spec.job.model.path, config=config, dtype=torch.float32)
    model.to(torch.bfloat16)
    if case.zero_stage == 3:
        deepspeed.zero.Init(module=model, config_dict_or_path=settings, dtype=torch.bfloat16)
    return model


def measure(case: Loading, folder: Path, weight_bytes: int) -> int:
    """Peak of all ranks while they load, above what they had before and the weights that they keep."""
    context = multiprocessing.get_context("spawn")
    meet = context.Barrier(case.num_ranks + 1, timeout=400)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = [
        context.Process(target=rank_main, args=(case, str(folder), rank, port, meet)) for rank in range(case.num_ranks)
    ]
    for each in ranks:
        each.start()
    try:
        meet.wait()
        pids = [each.pid for each in ranks]
        before = peak = held_bytes(pids)
        loaded = threading.Event()
        threading.Thread(target=_wait_twice, args=(meet, loaded), daemon=True).start()
        while not loaded.wait(SAMPLE_S):
            peak = max(peak, held_bytes(pids))
    finally:
        for each in ranks:
            each.join(60)
            each.kill()
    kept = weight_bytes if case.zero_stage == 3 else weight_bytes * case.num_ranks
    return peak - before - kept


def _wait_twice(meet: Any, loaded: threading.Event) -> None:
    meet.wait()
    meet.wait()
    loaded.set()


def held_bytes(pids: list[int | None]) -> int:
    return sum(_proportional_bytes(pid) for pid in pids)


def _proportional_bytes(pid: int | None) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def needed_bytes(case: Loading, weight_bytes: int) -> int:
    """Some upper bound, for a machine that others use, too."""
    copies = 4 * case.num_ranks if case.way == "before" else 2 * (1 if case.zero_stage == 3 else case.num_ranks)
    return copies * weight_bytes + case.num_ranks * GIB


def main(sizes: tuple[str, ...] = tuple(SIZES), max_ranks: int = 4) -> list[dict[str, Any]]:
    """Measure every case; rows of {name, value, unit, goal, ok}."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="frenzy-loading-") as scratch:
            weight_bytes = write_model(size, Path(scratch))
            shard_bytes = max(each.stat().st_size for each in Path(scratch).glob("*.safetensors"))
            for case in (each for each in CASES if each.size == size and each.num_ranks <= max_ranks):
                if needed_bytes(case, weight_bytes) > free_bytes() // 2:
                    print(f"{case.name}: left out, it may need {needed_bytes(case, weight_bytes) / GIB:.1f} GiB")
                    continue
                excess = measure(case, Path(scratch), weight_bytes)
                goal = None if case.way == "before" else (shard_bytes + ALLOWED_BYTES) / GIB
                rows.append(figure(f"{case.name} (weights {weight_bytes / GIB:.2f} GiB)", excess / GIB, "GiB", goal))
                print(rows[-1]["name"], round(rows[-1]["value"], 3), flush=True)
    return publish("loading", rows)


def free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


if __name__ == "__main__":
    # python tests/bench/bench_loading.py [size] [most ranks]
    main(tuple(sys.argv[1:2]) or tuple(SIZES), int(sys.argv[2]) if len(sys.argv) > 2 else 4)
