"""Documents of a packed sequence that are kept apart: no family lets one see another, and no layout changes a loss."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.families import config_of
from tests.trainer.launching import LLAMA, SENTENCES, Case, LaunchServer, losses, records
from tests.trainer.reference import train_plainly
from torch.nn.functional import cross_entropy

from frenzy.core.planning.launchable import TRAINED_FAMILIES
from frenzy.core.values.job import MASKING_ATTENTION, ModelSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.trainer.data.batches import NOT_COUNTED, BatchReader
from frenzy.trainer.data.packing import SequenceReader, pack
from frenzy.trainer.data.run_data import job_tokenizer
from frenzy.trainer.evaluate import mean_loss
from frenzy.trainer.loop.worker import checkpoint_activations
from frenzy.trainer.model.loading import load_config
from frenzy.trainer.model.making import make_model

TOLERANCE = 2e-5
VALIDATION = {"validation": {"every_steps": 2, "max_sequences": 5}}
DOCUMENTS = {"document_masks": True}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents of very different lengths: sequences differ in how many tokens count."""
    file = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    texts = (SENTENCES[number % 4][: 2 + 7 * (number % 11)] for number in range(600))
    file.write_text("\n".join(json.dumps({"text": each}) for each in texts))
    return str(file)


def kept_apart() -> Iterator[Any]:
    for family, known in TRAINED_FAMILIES.items():
        marks = () if family in ("gpt2", "llama") else (pytest.mark.thorough,)
        for attention in MASKING_ATTENTION:
            if known.document_masks and (known.sdpa or attention == "eager"):
                yield pytest.param(family, attention, marks=marks)


@pytest.mark.parametrize(("family", "attention"), list(kept_apart()))
def test_tokens_of_one_document_change_no_logit_of_another(family: str, attention: str) -> None:
    model = random_model(family, attention)
    tokens = torch.randint(5, 250, (2, 24), generator=torch.Generator().manual_seed(1))
    others = tokens.clone()
    others[:, :10] = (tokens[:, :10] + 1) % 250
    positions = torch.cat((torch.arange(10), torch.arange(14))).expand(2, -1)
    with torch.no_grad():
        found = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, 10:]
        beside_others = model(input_ids=others, position_ids=positions, use_cache=False).logits[:, 10:]
        alone = model(input_ids=tokens[:, 10:], use_cache=False).logits
        ones = torch.ones_like(tokens)
        with_ones = model(input_ids=tokens, position_ids=positions, attention_mask=ones, use_cache=False).logits[:, 10:]
    assert (found - beside_others).abs().max() < 1e-6
    assert (found - alone).abs().max() < 1e-5
    assert (with_ones - alone).abs().max() > 1e-2, "a mask of ones beside the positions no longer turns them off"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library asks for it
@pytest.mark.parametrize("choices", [{"lora": {"rank": 4}}, {"loss": "fused"}, {}], ids=["adapters", "fused", "layers"])
def test_documents_stay_apart_under_adapters_a_fused_loss_and_checkpointed_layers(
    lines: str, choices: dict[str, Any]
) -> None:
    job = Case(run_dir="", data=lines, model=LLAMA, training=choices).spec().job
    model: Any = make_model(job, load_config(job.model, eos_token_id=256))
    if not choices:
        checkpoint_activations(model, 1)
    tokens = torch.randint(5, 250, (2, 24), generator=torch.Generator().manual_seed(1))
    others = tokens.clone()
    others[:, :10] = (tokens[:, :10] + 1) % 250
    labels = torch.where(torch.arange(24) < 11, NOT_COUNTED, tokens)
    positions = torch.cat((torch.arange(10), torch.arange(14))).expand(2, -1)
    losses = [
        model(input_ids=each, position_ids=positions, labels=labels, use_cache=False).loss for each in (tokens, others)
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    losses[0].backward()
    found = [each.grad for each in model.parameters() if each.requires_grad]
    assert any(each is not None and each.abs().sum() > 0 for each in found)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_evaluation_scores_each_document_as_if_it_were_alone(lines: str, family: str, tmp_path: Path) -> None:
    job = Case(run_dir="", data=lines, data_section=DOCUMENTS, job={"evaluation": {"max_sequences": 5}}).spec().job
    data = pack(job, job_tokenizer(job), tmp_path)
    model, reader = random_model(family, "sdpa"), BatchReader(SequenceReader(data), job.data, 256)
    model.config.use_cache = True  # as the export leaves it
    batch = reader.read(np.arange(data.num_train, data.num_train + 5))
    assert batch.positions is not None
    total = 0.0
    for tokens, labels, positions in zip(batch.tokens, batch.labels, batch.positions, strict=True):
        ends = [*np.flatnonzero(positions == 0)[1:].tolist(), len(tokens)]
        for start, end in itertools.pairwise([0, *ends]):
            with torch.no_grad():
                logits = model(input_ids=torch.from_numpy(tokens[None, start:end]), use_cache=False).logits[0, :-1]
            total += cross_entropy(logits, torch.from_numpy(labels[start + 1 : end]), reduction="sum").item()
    found, count, num_tokens = mean_loss(model, reader, data, job)
    assert (count, num_tokens) == (5, batch.num_counted)
    assert found == pytest.approx(total / num_tokens, abs=1e-5)


def random_model(family: str, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    config = load_config(ModelSpec(config=config_of(family)), eos_token_id=256)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def test_the_losses_are_those_of_plain_torch_on_every_layout_and_after_moves(
    server: LaunchServer, lines: str, tmp_path: Path
) -> None:
    whole = Case(
        run_dir=str(tmp_path / "whole"),
        data=lines,
        model=LLAMA,
        data_section=DOCUMENTS,
        num_gpus=2,
        zero_stage=3,
        micro_batch_size=2,
        job=VALIDATION,
    )
    assert server.run(whole).exit_code == ExitCode.DONE
    plain, _ = train_plainly(whole, tmp_path / "plain")
    assert losses(whole) == pytest.approx(plain, abs=TOLERANCE)

    first = replace(whole, run_dir=str(tmp_path / "moved"), num_gpus=1, zero_stage=1, micro_batch_size=1, num_steps=2)
    second = replace(first, attempt=2, num_gpus=2, zero_stage=2, micro_batch_size=4, num_steps=4)
    assert server.run(first).exit_code == ExitCode.DONE
    assert server.run(second).exit_code == ExitCode.DONE
    assert losses(first) + losses(second) == pytest.approx(plain, abs=TOLERANCE)
    assert [each.validation_loss for each in records(second)][-1] == pytest.approx(
        records(whole)[-1].validation_loss, abs=TOLERANCE
    )


def test_a_family_without_position_ids_is_refused(server: LaunchServer, lines: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=lines, model=config_of("opt"), data_section=DOCUMENTS)
    result = server.run(case)
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "data.document_masks: True is refused; opt does not tell documents apart" in result.detail
