"""``python -m frenzy.trainer.evaluate < request.json``: perplexity and a sample.

Scores the finished model on the held-out text (on the training text when nothing was held out)
and lets it continue a prompt; the figures go to ``evaluation.json`` in the run directory. A model
that does not fit in host memory in fp32 is not loaded.

This runs in Airflow's task, not as the user's code: the run directory is read as data alone, and nothing in it
says what to do. The job comes with the request.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.core.memory.model_trace import library_config
from frenzy.core.values import codec
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.prepared_data import PreparedData, PreparedPaths
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.sources import SourceRules
from frenzy.core.values.units import format_bytes
from frenzy.trainer import files
from frenzy.trainer.guarded import check_no_links, guarded
from frenzy.trainer.model.library_configs import config_of
from frenzy.trainer.outcome import BadInputError
from frenzy.trainer.telemetry.host_room import fp32_bytes, free_host_bytes

RESULT_NAME: Final = "evaluation.json"
# The exit code where the model does not fit in host memory here; no code of the trainer's.
NO_ROOM: Final = 75
_PROMPT_TOKENS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What is read from standard input. output: the local file that the result is put into, too.

    model_config, prepared: the ledger's; the config beside the weights is the run's code's to write, and says how much
    is made.
    """

    run_dir: str
    job: TrainingJob
    model_config: Mapping[str, Any]
    sources: SourceRules
    output: str
    prepared: PreparedData | None = None


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


def evaluate(request: EvaluationRequest, scratch: Path) -> Evaluation:
    """Score and sample the run's finished model. Raises BadInputError when there is none, and NoRoomError."""
    import torch

    from frenzy.trainer.data.tokenizer import load_tokenizer
    from frenzy.trainer.model.export import READY_FILE

    job, model_dir = request.job, RunPaths(request.run_dir).model_dir
    if not files.exists(f"{model_dir}/{READY_FILE}"):
        raise BadInputError("run_dir", request.run_dir, "it holds no finished model; evaluate after the training's end")
    run_dir = files.local_path(request.run_dir)
    for each in () if run_dir is None else (run_dir / "model", run_dir / "data", *_prepared_folders(request)):
        check_no_links(each)
    check_room(model_dir, free_host_bytes())
    folder = files.fetch_folder(model_dir, scratch / "model")
    tokenizer = load_tokenizer(folder)
    data = _data(request, tokenizer)
    model = _model(folder, job, request.model_config)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    loss, num_sequences, num_tokens = mean_loss(model, _reader(data, job, tokenizer), data, job)
    prompt, sample = _sample(model, tokenizer, data, job)
    return Evaluation(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        num_sequences=num_sequences,
        num_tokens=num_tokens,
        held_out=data.num_validation > 0,
        prompt=prompt,
        sample=sample,
        step=int(json.loads((folder / READY_FILE).read_text())["step"]),
    )


def _prepared_folders(request: EvaluationRequest) -> list[Path]:
    """Written by processes that have the variables of the team's jobs."""
    if request.prepared is None:
        return []
    found = PreparedPaths.beside(request.run_dir, request.job.team).folders_of(request.prepared)
    return [path for path in map(files.local_path, found) if path is not None]


def _data(request: EvaluationRequest, tokenizer: Any) -> Any:
    """What the model is scored on. Only found: Airflow's machine does not prepare a data set again."""
    from frenzy.trainer.data.packing import find_packed, index_name
    from frenzy.trainer.data.run_data import as_held_out, frozen_data

    held_out = request.job.held_out
    job = held_out or request.job
    if request.prepared is not None and held_out is None:
        return frozen_data(request.prepared, PreparedPaths.beside(request.run_dir, job.team), job.data)
    index = f"{RunPaths(request.run_dir).data_dir}/{index_name(job, tokenizer)}"
    data = find_packed(index, job.data)
    if data is None:  # the run's code may have removed them
        raise BadInputError("run_dir", index, "the run's prepared data are gone or not whole; train again to evaluate")
    return data if held_out is None else as_held_out(data)


def _model(folder: Path, job: TrainingJob, model_config: Mapping[str, Any]) -> Any:
    """The finished model, of which nothing is run as code and nothing is fetched from elsewhere."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    if (folder / "adapter_config.json").exists():  # it names another model to load
        raise BadInputError("run_dir", str(folder), "a finished model is whole; its adapters are in its folder adapter")
    config = config_of(library_config(model_config))
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        trust_remote_code=False,
        use_safetensors=True,
        local_files_only=True,
        attn_implementation="eager" if job.training.attention == "eager" else "sdpa",
    )
    model.generation_config = GenerationConfig()  # the folder's may ask for any number of beams
    return model


def _first_scored(data: Any) -> int:
    return int(data.num_train) if data.num_validation else 0


def _reader(data: Any, job: TrainingJob, tokenizer: Any) -> Any:
    from frenzy.trainer.data.batches import BatchReader
    from frenzy.trainer.data.packing import SequenceReader

    return BatchReader(SequenceReader(data), job.data, int(tokenizer.eos_token_id))


def mean_loss(model: Any, reader: Any, data: Any, job: TrainingJob) -> tuple[float, int, int]:
    """Mean loss over the tokens that count, one sequence at a time; the numbers of sequences and of tokens."""
    import numpy as np
    import torch

    available = data.num_validation or data.num_train
    first, count = _first_scored(data), min(available, job.evaluation.max_sequences)
    total, num_tokens = 0.0, 0
    with torch.inference_mode():
        for index in range(first, first + count):
            batch = reader.read(np.array([index]))
            if not batch.num_counted:  # its mean would be none
                continue
            inputs = {name: torch.from_numpy(values).to(model.device) for name, values in batch.arguments()}
            # With a cache, transformers makes no block mask of the positions.
            total += float(model(**inputs, use_cache=False).loss) * batch.num_counted
            num_tokens += batch.num_counted
    reader.close()
    if num_tokens == 0:
        allowed = "none of these sequences has a token that counts; score more"
        raise BadInputError("evaluation.max_sequences", job.evaluation.max_sequences, allowed)
    return total / num_tokens, count, num_tokens


def _sample(model: Any, tokenizer: Any, data: Any, job: TrainingJob) -> tuple[str, str]:
    """The prompt and what the model makes of it; the same for the same seed."""
    import numpy as np
    import torch

    from frenzy.trainer.data.packing import SequenceReader

    settings = job.evaluation
    if settings.prompt:
        tokens = tokenizer(settings.prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    else:
        row = SequenceReader(data).read(np.array([_first_scored(data)]))[:, :_PROMPT_TOKENS]
        tokens = torch.from_numpy(row)
    room = _positions(model) - tokens.shape[1]
    torch.manual_seed(job.training.seed)
    with torch.inference_mode():
        made = model.generate(
            tokens.to(model.device),
            attention_mask=torch.ones_like(tokens).to(model.device),
            do_sample=True,
            top_k=50,
            max_new_tokens=max(1, min(settings.max_new_tokens, room)),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    continuation = made[0, tokens.shape[1] :]
    return tokenizer.decode(tokens[0]), tokenizer.decode(continuation, skip_special_tokens=True)


def _positions(model: Any) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else 2**20


def main() -> int:
    """Evaluate and write the result; the exit code."""
    try:
        request = codec.loads(EvaluationRequest, sys.stdin.read())
        with guarded(request.job, request.sources), tempfile.TemporaryDirectory(prefix="frenzy-evaluate-") as scratch:
            result = codec.dumps(evaluate(request, Path(scratch)), indent=2)
    except NoRoomError as error:
        sys.stderr.write(f"{error}\n")
        return NO_ROOM
    except (FrenzyError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_CONFIG_OR_DATA
    for place in (f"{request.run_dir}/{RESULT_NAME}", request.output):
        files.write_text(place, result)
    sys.stdout.write(f"{result}\n")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
