"""``python -m frenzy.trainer.evaluate --run-dir URL --attempt N``: perplexity and a sample.

Scores the finished model on the held-out text (on the training text when nothing was held out)
and lets it continue a prompt; the figures go to ``evaluation.json`` in the run directory. A model
that does not fit in host memory in fp32 is not loaded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.core import codec
from frenzy.core.errors import FrenzyError
from frenzy.core.launch import ExitCode, LaunchSpec, RunPaths
from frenzy.core.units import format_bytes
from frenzy.trainer import files
from frenzy.trainer.host_room import fp32_bytes, free_host_bytes
from frenzy.trainer.outcome import BadInputError

RESULT_NAME: Final = "evaluation.json"
# The exit code where the model does not fit in host memory here; no code of the trainer's.
NO_ROOM: Final = 75
_PROMPT_TOKENS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """loss: mean over tokens, in nats; perplexity = exp(loss). sample continues ``prompt``.

    held_out: whether the scored text was kept from training.
    """

    loss: float
    perplexity: float
    num_sequences: int
    num_tokens: int
    held_out: bool
    prompt: str
    sample: str
    step: int


class NoRoomError(Exception):
    """The model in fp32 takes more host memory than this process may have; the message says how much."""


def check_room(model_dir: str, free_bytes: float) -> None:
    """Raises NoRoomError where the weights at ``model_dir`` take more than ``free_bytes`` in fp32."""
    needed = fp32_bytes(model_dir)
    if needed > free_bytes:
        raise NoRoomError(
            f"The model takes {format_bytes(needed)} of host memory in fp32, and this process may have "
            f"{format_bytes(int(free_bytes))} more. Give Airflow's task more memory, or evaluate it elsewhere: the "
            f"model is whole at {model_dir}."
        )


def evaluate(spec: LaunchSpec, scratch: Path) -> Evaluation:
    """Score and sample the run's finished model. Raises BadInputError when there is none, and NoRoomError."""
    import torch
    from transformers import AutoModelForCausalLM

    from frenzy.trainer.export import READY_FILE
    from frenzy.trainer.packing import pack
    from frenzy.trainer.tokenizer import load_tokenizer

    paths = RunPaths(spec.run_dir)
    if not files.exists(f"{paths.model_dir}/{READY_FILE}"):
        raise BadInputError("run_dir", spec.run_dir, "it holds no finished model; evaluate after the training's end")
    check_room(paths.model_dir, free_host_bytes())
    folder = files.fetch_folder(paths.model_dir, scratch / "model")
    tokenizer = load_tokenizer(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    run_dir = files.local_path(spec.run_dir)
    data = pack(spec.job, tokenizer, (run_dir or scratch) / "data")
    loss, num_sequences = _mean_loss(model, data, spec.job.evaluation.max_sequences)
    prompt, sample = _sample(model, tokenizer, data, spec)
    return Evaluation(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        num_sequences=num_sequences,
        num_tokens=num_sequences * (data.sequence_length - 1),
        held_out=data.num_validation > 0,
        prompt=prompt,
        sample=sample,
        step=int(json.loads((folder / READY_FILE).read_text())["step"]),
    )


def _first_scored(data: Any) -> int:
    return int(data.num_train) if data.num_validation else 0


def _mean_loss(model: Any, data: Any, max_sequences: int) -> tuple[float, int]:
    """Mean loss per token over at most ``max_sequences`` sequences, one at a time."""
    import numpy as np
    import torch

    from frenzy.trainer.packing import SequenceReader

    available = data.num_validation or data.num_train
    first, count = _first_scored(data), min(available, max_sequences)
    reader = SequenceReader(data)
    total = 0.0
    with torch.inference_mode():
        for index in range(first, first + count):
            tokens = torch.from_numpy(reader.read(np.array([index]))).to(model.device)
            total += float(model(input_ids=tokens, labels=tokens).loss)
    reader.close()
    return total / count, count


def _sample(model: Any, tokenizer: Any, data: Any, spec: LaunchSpec) -> tuple[str, str]:
    """The prompt and what the model makes of it; the same for the same seed."""
    import numpy as np
    import torch

    from frenzy.trainer.packing import SequenceReader

    settings = spec.job.evaluation
    if settings.prompt:
        tokens = tokenizer(settings.prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    else:
        row = SequenceReader(data).read(np.array([_first_scored(data)]))[:, :_PROMPT_TOKENS]
        tokens = torch.from_numpy(row)
    room = _positions(model) - tokens.shape[1]
    torch.manual_seed(spec.job.training.seed)
    with torch.inference_mode():
        made = model.generate(
            tokens.to(model.device),
            attention_mask=torch.ones_like(tokens).to(model.device),
            do_sample=True,
            top_k=50,
            max_new_tokens=max(1, min(settings.max_new_tokens, room)),
            pad_token_id=tokenizer.eos_token_id,
        )
    continuation = made[0, tokens.shape[1] :]
    return tokenizer.decode(tokens[0]), tokenizer.decode(continuation, skip_special_tokens=True)


def _positions(model: Any) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate and write the result; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m frenzy.trainer.evaluate", description=__doc__)
    parser.add_argument("--run-dir", required=True, help="fsspec URL or path of the run directory")
    parser.add_argument("--attempt", required=True, type=int, help="the attempt whose spec.json is read")
    options = parser.parse_args(arguments)
    try:
        spec = codec.loads(LaunchSpec, files.read_text(RunPaths(options.run_dir).spec(options.attempt)))
        with tempfile.TemporaryDirectory(prefix="frenzy-evaluate-") as scratch:
            result = codec.dumps(evaluate(spec, Path(scratch)), indent=2)
    except NoRoomError as error:
        sys.stderr.write(f"{error}\n")
        return NO_ROOM
    except (FrenzyError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_CONFIG_OR_DATA
    files.write_text(f"{options.run_dir}/{RESULT_NAME}", result)
    sys.stdout.write(f"{result}\n")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
