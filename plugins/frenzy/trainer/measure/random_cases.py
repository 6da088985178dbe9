"""Random cases: any family and any plan that the trainer runs, from a few thousand parameters on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from frenzy.core.planning.grid import divisors
from frenzy.core.planning.launchable import TRAINED_FAMILIES
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.trainer.measure.case import MeasureCase, refusal_of

FAMILIES: Final[tuple[str, ...]] = tuple(TRAINED_FAMILIES)
_MAX_RANKS: Final = 4
_POSITIONS: Final = 512
_GROUPED: Final = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi")
_LATER: Final = ("granite", "gemma2", "gemma3_text", "phi3", "mixtral", "qwen3_moe")
_OWN_HEAD_DIM: Final = ("qwen3", "gemma", "gemma2", "gemma3_text", "qwen3_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCases:
    """What is drawn. options: also losses, attentions, optimizers, adapters and tensor parallelism."""

    families: Sequence[str]
    seed: int = 0
    max_parameters: float = 100e6
    options: bool = True
    kind: DeviceKind = DeviceKind.VIRTUAL

    def draw(self) -> Iterator[MeasureCase]:
        """Cases without end, the same for the same seed; with and without options of the same models."""
        plain, options = random.Random(self.seed), random.Random(f"options of {self.seed}")
        while True:
            case = random_case(plain, self.families)
            if self.options:
                case = with_options(case, options, self.kind)
            if case.num_parameters <= self.max_parameters:
                yield case


def random_case(generator: random.Random, families: Sequence[str]) -> MeasureCase:
    """A job and plan from about 0.3M to 60M parameters, any stage, precision and world up to 4."""
    config = _random_config(generator.choice(families), generator)
    dp = generator.choice([1, 1, 2, 2, 3, 4])
    length = generator.choice([32, 64, 96, 128, 200, 256, 384, 512])
    per_rank = generator.choice([each for each in (1, 2, 3, 4, 6, 8, 12, 16) if each * length <= 3072])
    micro = generator.choice(divisors(per_rank, per_rank))
    return MeasureCase(
        config=config,
        sequence_length=length,
        precision=generator.choice([Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16]),
        dp=dp,
        zero_stage=generator.choice([1, 2, 3]) if dp > 1 else generator.choice([1, 1, 2, 3]),
        micro_batch=micro,
        accumulation=per_rank // micro,
        checkpointing=generator.random() < 0.3,
    )


def with_options(case: MeasureCase, generator: random.Random, kind: DeviceKind) -> MeasureCase:
    """``case`` with random options, of those that the trainer runs for it; the case itself where none was met."""
    drawn = (_with_any_options(case, generator) for _ in range(50))
    return next((each for each in drawn if refusal_of(each, kind) is None), case)


def _with_any_options(case: MeasureCase, generator: random.Random) -> MeasureCase:
    adapters = generator.choice(["none", "none", "lora", "nf4"])
    narrow = case.dp <= _MAX_RANKS // 2
    return replace(
        case,
        lora_rank=None if adapters == "none" else generator.choice([4, 8, 16, 64]),
        quantization="nf4" if adapters == "nf4" else "none",
        double_quantization=adapters == "nf4" and generator.random() < 0.5,
        optimizer=generator.choice(["adamw", "adamw", "adamw-8bit", "sgd"]),
        attention=generator.choice(["sdpa", "sdpa", "eager"]),
        loss=generator.choice(["torch", "fused"]),
        tp=generator.choice([1, 1, 1, 2]) if narrow else 1,
    )


def _random_config(family: str, generator: random.Random) -> dict[str, Any]:
    head_dim = generator.choice([16, 32, 48, 64])
    heads = generator.choice([2, 4, 6, 8, 12])
    hidden, layers = heads * head_dim, generator.choice([1, 2, 3, 4, 6, 8, 12])
    vocabulary = generator.choice([264, 300, 1024, 4096, 8192, 16384])
    ids = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": vocabulary}
    if family in ("gpt2", "gpt_bigcode"):
        dropout = generator.choice([0.0, 0.0, 0.1])
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        widths = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": _POSITIONS}
        return {"model_type": family, **widths, **rates, **ids}
    if family == "mpt":
        return {
            "model_type": family,
            "d_model": hidden,
            "n_layers": layers,
            "n_heads": heads,
            "max_seq_len": _POSITIONS,
            "vocab_size": vocabulary,
        }
    inner = generator.choice([2, 8 / 3, 4])
    config = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": _POSITIONS,
        **ids,
    }
    if family == "opt":
        return {**config, "ffn_dim": 4 * hidden, "word_embed_proj_dim": hidden, "pad_token_id": 1}
    config["intermediate_size"] = int(inner * hidden) // 8 * 8
    if family in _GROUPED + _LATER:
        config["num_key_value_heads"] = generator.choice([each for each in (1, 2, heads) if heads % each == 0])
        config["tie_word_embeddings"] = generator.random() < 0.5
        config["pad_token_id"] = None
    if family in _OWN_HEAD_DIM:
        config["head_dim"] = head_dim
    return {**config, **_experts(family, config, generator)}


def _experts(family: str, config: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    if family not in ("mixtral", "qwen3_moe"):
        return {}
    number = generator.choice([4, 8])
    if family == "mixtral":
        return {"num_local_experts": number, "num_experts_per_tok": 2}
    return {"num_experts": number, "num_experts_per_tok": 2, "moe_intermediate_size": config["intermediate_size"]}
