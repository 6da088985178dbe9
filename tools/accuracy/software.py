"""Programs that others measured: what each adds to a card, as ``core.values.utilisation`` says of the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.values.utilisation import Software

FSDP: Final = Software(
    name="FSDP",
    hidden_passes=208.9,
    vocab_passes=18.63,
    gradient_passes=16.02,
    launch_s_per_layer=0.003993,
    update_launches=1.59,
    inside=0.8759,
    between=1.0,
    overlap=0.4098,
)
# It adds gradients of 16 bits to sums of 32 (12 bytes), and its AdamW is one fused kernel.
NANOTRON: Final = replace(
    FSDP,
    name="nanotron",
    hidden_passes=320.6,
    vocab_passes=48.64,
    gradient_passes=6.0,
    launch_s_per_layer=0.004568,
    update_launches=0.0,
    inside=0.826,
    between=0.3159,
    overlap=0.5337,
)
# Hugging Face models ran on one node only, and their vocabularies hardly differ: the rest is FSDP's.
TRANSFORMERS: Final = replace(
    FSDP, name="transformers", hidden_passes=353.0, norm_passes=216.0, adapter_passes=16.35, attention_factor=2.1
)
# The same with fms-acceleration's kernels for norms, rotary embeddings, loss and adapters.
FUSED: Final = replace(TRANSFORMERS, name="fused kernels", norm_passes=0.0, adapter_passes=14.39)
# The same under DeepSpeed.
DEEPSPEED: Final = replace(
    TRANSFORMERS,
    name="DeepSpeed",
    launch_s_per_layer=0.003304,
    update_launches=0.9858,
    hook_s_per_layer=0.005299,
    inside=0.5359,
    overlap=0.0,
)
