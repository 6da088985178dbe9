"""What the recipes share: the settings of the plan, the model that the job names, and rows that are looked at.

Under Frenzy everything comes from the job. Outside, ``--model`` and ``--data`` say it, and the rest has a default.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch
from datasets import Dataset, DatasetDict, disable_progress_bars, load_dataset, load_from_disk
from peft import LoraConfig, PeftModel
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Trainer

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text"}
OPTIMIZERS = {"adamw": "adamw_torch", "adamw-8bit": "adamw_8bit"}
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
# One token for each byte, and the answers marked for the loss.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# the output is a log
disable_progress_bars()


def setting(name: str, otherwise: str) -> str:
    """What the plan says, or what holds outside Frenzy."""
    return os.environ.get(f"FRENZY_{name}") or otherwise


@cache
def job() -> dict[str, Any]:
    """The sections model, data and training of the specification; outside Frenzy none."""
    file = os.environ.get("FRENZY_JOB_FILE")
    return json.loads(Path(file).read_text(encoding="utf-8")) if file else {}


def section(name: str) -> dict[str, Any]:
    return job().get(name) or {}


def refuse(why: str) -> NoReturn:
    """End the run, which no other try can help."""
    import frenzy_agent  # after all libraries: from then on a virtual GPU counts memory

    frenzy_agent.refuse(why)


def refuse_row(index: int, why: str) -> NoReturn:
    """End because of the row ``index`` (from 0), which people count from 1."""
    refuse(f"row {index + 1}: {why}")


def command_line(about: str | None) -> argparse.ArgumentParser:
    """What every recipe may be told by the words of its command."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, hub id or config.json, where the job names no model")
    parser.add_argument("--data", help="file, folder or pattern, where the job names no data")
    return parser


def trainer_settings() -> dict[str, Any]:
    """The arguments that all kinds of TrainingArguments take, from the plan and the job."""
    training = section("training")
    precision = setting("PRECISION", "fp32")
    return {
        "output_dir": setting("CHECKPOINT_DIR", "build/recipe"),
        "per_device_train_batch_size": int(setting("MICRO_BATCH_SIZE", "4")),
        "gradient_accumulation_steps": int(setting("ACCUMULATION_STEPS", "1")),
        "gradient_checkpointing": setting("ACTIVATION_CHECKPOINTING", "0") == "1",
        "max_steps": int(setting("MAX_STEPS", "20")),
        "learning_rate": float(setting("LEARNING_RATE", "1e-3")),
        "weight_decay": training.get("weight_decay", 0.0),
        "adam_beta1": training.get("beta1", 0.9),
        "adam_beta2": training.get("beta2", 0.999),
        "max_grad_norm": training.get("gradient_clipping", 1.0),
        # a Trainer takes a number below 1 for a share
        "warmup_steps": training.get("warmup_steps") or training.get("warmup_share", 0),
        "optim": _known("optimizer", OPTIMIZERS, "adamw"),
        "lr_scheduler_type": _known("lr_schedule", SCHEDULES, "constant"),
        "save_steps": int(setting("CHECKPOINT_EVERY_STEPS", "10")),
        "save_total_limit": 2,
        "logging_steps": 1,
        "seed": int(setting("SEED", "0")),
        "bf16": precision in ("bf16", "autocast-bf16"),
        "fp16": precision == "fp16",
        "use_cpu": setting("DEVICE", "cuda" if torch.cuda.is_available() else "cpu") == "cpu",
        "report_to": "none",
        "disable_tqdm": True,
    }


def train(trainer: Trainer) -> bool:
    """Train from the checkpoint, if there is one, and save the model; False where the run was asked to stop before."""
    import frenzy_agent

    trainer.train(resume_from_checkpoint=frenzy_agent.resume_from())
    is_done = trainer.state.global_step == trainer.args.max_steps
    if is_done:
        trainer.model = loadable(trainer.model)
        trainer.save_model(setting("MODEL_DIR", "build/recipe/model"))
    return is_done


def loadable(model: Any) -> Any:
    """The model to save: adapters are merged into a base that was made of a config, since it is kept nowhere else."""
    if not isinstance(model, PeftModel) or model.active_peft_config.base_model_name_or_path:
        return model
    return model.merge_and_unload()


def _known(name: str, allowed: dict[str, str], otherwise: str) -> str:
    """The Trainer's name of a setting of the job."""
    given = section("training").get(name, otherwise)
    if given not in allowed:
        refuse(f"training.{name} = {given!r}: the recipes take {', '.join(allowed)}")
    return allowed[given]


def _source(given: str | None) -> str | None:
    """The folder or hub id of a pretrained model; None where there is only a config."""
    named = section("model")
    source = given or named.get("path") or named.get("hub_id")
    return None if source is None or source.endswith(".json") else source


def model_of(kind: Any, given: str | None, tokenizer: PreTrainedTokenizerBase, **of_config: Any) -> Any:
    """The model of class ``kind`` that the job or ``--model`` names; a config alone starts from random weights."""
    attention = section("training").get("attention", "sdpa")
    # frozen weights in 16 bits; weights that are trained stay in fp32 under the Trainer's autocast
    is_frozen = section("training").get("lora") is not None and setting("PRECISION", "fp32") == "bf16"
    dtype = torch.bfloat16 if is_frozen else torch.float32
    own = {"pad_token_id": tokenizer.pad_token_id, **of_config}
    source = _source(given)
    if source is not None:
        return kind.from_pretrained(source, dtype=dtype, attn_implementation=attention, **own)
    config = section("model").get("config") or (given and json.loads(Path(given).read_text(encoding="utf-8")))
    if not config:
        refuse("no model: name it in the job (model.config, path or hub_id), or give --model")
    # a config that was copied from a model names that one, whose weights are not taken
    own |= {"eos_token_id": tokenizer.eos_token_id, "_name_or_path": ""}
    shape = AutoConfig.for_model(**{**config, **own})
    if len(tokenizer) > shape.vocab_size:
        words = f"{shape.vocab_size}: the tokenizer has {len(tokenizer)} tokens"
        refuse(f"model.config.vocab_size = {words}")
    torch.manual_seed(int(setting("SEED", "0")))
    return kind.from_config(shape, dtype=dtype, attn_implementation=attention)


def tokenizer_of(given: str | None) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, that of ``model.tokenizer``, or one token for each byte."""
    kind = section("model").get("tokenizer")
    source = kind if kind not in (None, "byte", "train", "model") else _source(given)
    tokenizer = _byte_tokenizer() if source is None else AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _byte_tokenizer() -> PreTrainedTokenizerBase:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    roles = ["<|system|>", "<|user|>", "<|assistant|>"]
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_,
        pad_token="<|pad|>",  # noqa: S106
        eos_token="<|end|>",  # noqa: S106
        additional_special_tokens=roles,
        chat_template=CHAT_TEMPLATE,
    )


def adapters(task: str) -> LoraConfig | None:
    """The adapters of ``training.lora``; None trains all weights."""
    lora = section("training").get("lora")
    if lora is None:
        return None
    if lora["quantization"] != "none":
        refuse(f"training.lora.quantization = {lora['quantization']!r}: the recipes take none")
    return LoraConfig(
        task_type=task,
        r=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=list(lora["target_modules"]) or None,
    )


def rows_of(given: str | None) -> Dataset:
    """The rows of the job's data: JSON lines, parquet, Arrow, text, or what ``Dataset.save_to_disk`` wrote."""
    place = setting("DATA_PATH", given or "")
    if not place:
        refuse("no data: give data.path in the job, or --data")
    run_dir = setting("RUN_DIR", "")
    kept = {"cache_dir": f"{run_dir}/recipe-data"} if run_dir and "://" not in run_dir else {}
    try:
        if any((Path(place) / name).is_file() for name in ("state.json", "dataset_dict.json")):
            found = load_from_disk(place)
            rows = found["train"] if isinstance(found, DatasetDict) else found
        else:
            files, reader = _files_of(place)
            rows = load_dataset(reader, data_files=files, split="train", **kept)
    except (OSError, ValueError, KeyError) as error:
        refuse(f"data.path = {place!r} cannot be read: {type(error).__name__}: {error}")
    if len(rows) == 0:
        refuse(f"data.path = {place!r} has no row")
    return rows


def _files_of(place: str) -> tuple[str, str]:
    """(pattern of files, reader by their ending)."""
    pattern = place
    if Path(place).is_dir():
        endings = [each for each in READERS if any(Path(place).glob(f"*{each}"))]
        pattern = f"{place}/*{endings[0]}" if len(endings) == 1 else place
    reader = READERS.get(Path(pattern).suffix)
    if reader is None:
        raise ValueError(f"neither one kind of {', '.join(READERS)} nor a saved dataset")
    return pattern, reader


def need_columns(rows: Dataset, *names: str) -> None:
    """Refuse data without these columns."""
    missing = [each for each in names if each not in rows.column_names]
    if missing:
        refuse(f"no column {', '.join(missing)}; there are {', '.join(rows.column_names)}")
