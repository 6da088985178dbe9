"""A byte-level GPT-2 by ``transformers.Trainer``; two lines are Frenzy's: the callback, and where to resume.

Runs as it is under torchrun, and as a job of Frenzy (include/jobs/scripts/hf-trainer.yaml):

    torchrun --nproc-per-node 2 include/recipes/hf_trainer.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import frenzy_agent

DATA = Path(__file__).parents[1] / "data/tinyshakespeare.txt"


class Bytes(torch.utils.data.Dataset):
    """A file as rows of bytes."""

    def __init__(self, path: Path, length: int) -> None:
        text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self._rows = text[: len(text) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def setting(name: str, otherwise: str) -> str:
    """What the plan says, or what holds outside Frenzy."""
    return os.environ.get(f"FRENZY_{name}") or otherwise


def main() -> None:
    length = int(setting("SEQUENCE_LENGTH", "64"))
    arguments = TrainingArguments(
        output_dir=setting("CHECKPOINT_DIR", "build/hf-trainer"),
        per_device_train_batch_size=int(setting("MICRO_BATCH_SIZE", "8")),
        gradient_accumulation_steps=int(setting("ACCUMULATION_STEPS", "1")),
        gradient_checkpointing=setting("ACTIVATION_CHECKPOINTING", "0") == "1",
        max_steps=int(setting("MAX_STEPS", "20")),
        learning_rate=float(setting("LEARNING_RATE", "1e-3")),
        save_steps=int(setting("CHECKPOINT_EVERY_STEPS", "10")),
        save_total_limit=2,
        logging_steps=1,
        seed=int(setting("SEED", "0")),
        use_cpu=setting("DEVICE", "cuda" if torch.cuda.is_available() else "cpu") == "cpu",
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(arguments.seed)
    shape = GPT2Config(vocab_size=256, n_positions=length, n_embd=64, n_layer=2, n_head=4)
    trainer = Trainer(
        model=GPT2LMHeadModel(shape),
        args=arguments,
        train_dataset=Bytes(Path(setting("DATA_PATH", str(DATA))), length),
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    trainer.train(resume_from_checkpoint=frenzy_agent.resume_from())
    if trainer.state.global_step == arguments.max_steps:
        trainer.save_model(setting("MODEL_DIR", "build/hf-trainer/model"))


if __name__ == "__main__":
    main()
