"""The same training in a dozen lines of plain torch: what every plan's losses must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.trainer.launching import Case

from frenzy.core.values.job import TrainingSpec
from frenzy.trainer.data.batches import BatchReader
from frenzy.trainer.data.packing import SequenceReader, pack
from frenzy.trainer.data.tokenizer import byte_tokenizer
from frenzy.trainer.loop.learning_rate import batch_sequences, learning_rate
from frenzy.trainer.model.loading import load_config
from frenzy.trainer.model.making import make_model


def train_plainly(case: Case, folder: Path) -> tuple[list[float], Any]:
    """Losses of each step in fp32 with torch alone, and the trained model."""
    job = case.spec().job
    training = job.training
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None if job.data.messages is None else job.data.messages.template
    data = pack(job, tokenizer, folder)
    reader = BatchReader(SequenceReader(data), job.data, 256)
    model = make_model(job, load_config(job.model, eos_token_id=256))
    optimizer = torch.optim.AdamW(_groups(model, training), lr=training.learning_rate)
    losses = []
    for step in range(1, case.num_steps + 1):
        order = batch_sequences(
            seed=training.seed,
            step=step,
            global_batch_size=training.global_batch_size,
            num_sequences=data.num_train,
        )
        inputs = {name: torch.from_numpy(values) for name, values in reader.read(order).arguments()}
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step=step, total_steps=case.num_steps)
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    reader.close()
    return losses, model


def _groups(model: torch.nn.Module, training: TrainingSpec) -> list[dict[str, Any]]:
    vectors = [each for each in model.parameters() if each.dim() == 1]
    matrices = [each for each in model.parameters() if each.dim() > 1]
    on_vectors = training.weight_decay if training.weight_decay_on == "all" else 0.0
    return [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": on_vectors},
    ]
