"""Let the libraries take the memory they keep, before the baseline of a virtual GPU is read.

Threads and their stacks, communication buffers, modules imported at first use, kernels' scratch:
a rehearsal with a model of a few thousand weights makes them all appear.
"""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from typing import Any, Final

import torch
from torch import distributed

from frenzy.core.values.job import CheckpointSpec, ModelSpec, Precision, TrainingJob
from frenzy.trainer.model.making import make_model, weights_dtype
from frenzy.trainer.model.rank_share import WholeWeights

_WIDTH: Final = 64
_VOCABULARY: Final = 128
_BUCKET_ELEMENTS: Final = 4096


class _Rehearsal(torch.nn.Module):
    """One attention block with an embedding and a head: every kind of kernel a language model uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(_VOCABULARY, _WIDTH)
        self.mix = torch.nn.Linear(_WIDTH, _WIDTH)
        self.norm = torch.nn.LayerNorm(_WIDTH)
        self.head = torch.nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embedding(tokens))
        heads = self.mix(hidden).unflatten(-1, (4, -1)).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        logits = self.head(torch.nn.functional.gelu(attended.transpose(1, 2).flatten(2)))
        loss: torch.Tensor = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
        return loss


def warm_up(make_engine: Any, settings: dict[str, Any], device: torch.device) -> None:
    """Train the rehearsal model for two steps with the run's own DeepSpeed settings."""
    engine = make_engine(_Rehearsal(), _small(settings))
    tokens = torch.randint(_VOCABULARY, (2, 4 * _WIDTH), device=device)
    for _ in range(2):
        engine.backward(engine(tokens))
        engine.step()
    engine.get_global_grad_norm()
    _collectives(torch.ones(_WIDTH, _WIDTH, device=device))
    engine.destroy()
    del engine
    gc.collect()


def warm_up_kernels(job: TrainingJob, config: Any, *, micro_batch_size: int) -> None:
    """One forward and backward pass of the run's own model with its options, cut to a single layer, at its own shapes.

    The CPU's matrix kernels are generated for each shape and stay in a cache of the library, about
    a megabyte each; like a CUDA context they are no part of the memory a plan is charged with.
    """
    precision = job.training.precision
    # From random weights, wherever the run's own come from.
    bare = replace(job, model=ModelSpec(config={}), checkpoint=CheckpointSpec())
    model = make_model(bare, _single_layer(config), share=WholeWeights(weights_dtype(precision)))
    tokens = torch.zeros((micro_batch_size, job.data.sequence_length), dtype=torch.long)
    apart = {"position_ids": torch.zeros_like(tokens)} if job.data.document_masks else {}
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is Precision.AUTOCAST_BF16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False, **apart).loss
    loss.backward()
    del model, loss
    gc.collect()


def _single_layer(config: Any) -> Any:
    single = copy.deepcopy(config)
    text = single.get_text_config()
    if vars(text).get("layer_types"):  # other families derive it from the number of layers
        text.layer_types = text.layer_types[:1]
    text.num_hidden_layers = 1
    return single


def _small(settings: dict[str, Any]) -> dict[str, Any]:
    small = copy.deepcopy(settings)
    for key in ("train_batch_size", "tensor_parallel"):
        small.pop(key, None)
    small["train_micro_batch_size_per_gpu"] = small["gradient_accumulation_steps"] = 1
    for key in ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"):
        if key in small["zero_optimization"]:
            small["zero_optimization"][key] = _BUCKET_ELEMENTS
    return small


def _collectives(tensor: torch.Tensor) -> None:
    world_size = distributed.get_world_size()
    distributed.all_reduce(tensor)
    distributed.broadcast(tensor, src=0)
    distributed.all_gather_object([None] * world_size, 1)
    distributed.barrier()
