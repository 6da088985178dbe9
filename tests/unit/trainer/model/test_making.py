"""A model whose weights go straight into place: what they are, and what is read and drawn for them."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.trainer.families import config_of
from tests.trainer.launching import Case
from transformers import AutoModelForCausalLM

from frenzy.core.values.errors import TemporaryError
from frenzy.core.values.job import LoraSpec, ModelSpec, TrainingJob
from frenzy.trainer import files
from frenzy.trainer.model import four_bit
from frenzy.trainer.model.loading import check_fit, load_config
from frenzy.trainer.model.making import make_model, model_without_weights
from frenzy.trainer.model.rank_share import WholeWeights
from frenzy.trainer.model.seeded_weights import SeededWeights
from frenzy.trainer.model.weight_files import find_weight_files
from frenzy.trainer.outcome import BadInputError

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library
BF16 = WholeWeights(torch.bfloat16)


def job_of(family: str, **training: Any) -> TrainingJob:
    return Case(run_dir="none", data="none", model=config_of(family), training=training).spec().job


def published(family: str, folder: Path, *, dtype: torch.dtype = torch.bfloat16, shard: str = "40KB") -> TrainingJob:
    """A job that starts from a tiny model's weights as transformers writes them, in several shards."""
    job = job_of(family)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(load_config(job.model), dtype=dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return replace(job, model=replace(job.model, config=None, path=str(folder)))


# Tied, its own layout, base-model names; separate experts in the files, one tensor in the model; plain.
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "llama"])
def test_weights_and_buffers_are_those_that_transformers_loads(family: str, tmp_path: Path) -> None:
    job = published(family, tmp_path)
    made = make_model(job, load_config(job.model), share=BF16)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for key, given in expected.state_dict(keep_vars=True).items():
        assert torch.equal(made.state_dict()[key], given), key
        assert made.state_dict()[key].dtype == given.dtype == torch.bfloat16
    for (name, given), (_, buffer) in zip(expected.named_buffers(), made.named_buffers(), strict=True):
        assert buffer.dtype == given.dtype and torch.equal(buffer, given), name
    assert len(list(made.parameters())) == len(list(expected.parameters()))


def test_weights_go_to_the_ranks_own_device(tmp_path: Path) -> None:
    job = published("llama", tmp_path)
    made = make_model(job, load_config(job.model), share=WholeWeights(torch.bfloat16, torch.device("meta")))
    assert {each.device.type for each in made.parameters()} == {"meta"}
    assert {each.device.type for each in made.buffers()} == {"cpu"}


def test_frequencies_of_rope_are_not_rounded_to_the_weights_format(tmp_path: Path) -> None:
    job = published("llama", tmp_path)
    buffers = dict(make_model(job, load_config(job.model), share=BF16).named_buffers())
    frequencies = next(each for name, each in buffers.items() if name.endswith("inv_freq"))
    assert frequencies.dtype == torch.float32
    assert not torch.equal(frequencies, frequencies.bfloat16().float())


def test_pickles_of_torch_are_read_too(tmp_path: Path) -> None:
    job = published("llama", tmp_path, shard="1GB")
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    (tmp_path / "model.safetensors").unlink()
    torch.save(expected, tmp_path / "pytorch_model.bin")
    made = make_model(job, load_config(job.model)).state_dict()
    assert all(torch.equal(made[key], each) for key, each in expected.items())


def test_what_a_checkpoint_will_fill_is_not_read(tmp_path: Path) -> None:
    job = published("llama", tmp_path)
    for each in tmp_path.glob("*.safetensors*"):
        each.write_text("no such format")
    made = make_model(job, load_config(job.model), resumes=True)
    assert not any(each.is_meta for each in made.parameters())


def test_a_warm_start_never_takes_another_runs_weights(tmp_path: Path) -> None:
    jobs, store = {}, f"memory://{tmp_path}"
    for name, shard in (("a", "40KB"), ("b", "1GB")):
        job = published("llama", tmp_path / name, shard=shard)
        if name == "b":
            torch.manual_seed(6)
            model = AutoModelForCausalLM.from_config(load_config(job.model), dtype=torch.bfloat16)
            model.save_pretrained(tmp_path / name)
        files.publish_folder(tmp_path / name, f"{store}/{name}", last="config.json")
        jobs[name] = replace(job, checkpoint=replace(job.checkpoint, warm_start=f"{store}/{name}"))
    scratch = tmp_path / "scratch"
    for name, job in jobs.items():
        made = make_model(job, load_config(job.model), share=BF16, scratch=scratch).state_dict()
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.bfloat16).state_dict()
        assert all(torch.equal(made[key], each) for key, each in expected.items()), name
    assert len(list(scratch.iterdir())) == 2


def test_a_warm_start_without_room_is_refused_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, place, scratch = published("llama", tmp_path / "a"), f"memory://{tmp_path}/a", tmp_path / "scratch"
    files.publish_folder(tmp_path / "a", place)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FRENZY_DISK_BYTES", "1000")
    with pytest.raises(BadInputError, match=r"checkpoint\.warm_start.*a worker may write 1000 B"):
        make_model(
            replace(job, checkpoint=replace(job.checkpoint, warm_start=place)), load_config(job.model), scratch=scratch
        )
    assert not scratch.exists()


def test_an_index_that_is_left_beside_whole_weights_is_not_followed(tmp_path: Path) -> None:
    published("llama", tmp_path, shard="1GB")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    assert [each.name for each in find_weight_files(str(tmp_path))] == ["model.safetensors"]


class Failing(WholeWeights):
    def __init__(self, error: OSError) -> None:
        super().__init__(torch.bfloat16)
        self._error = error

    def keep(self, like: torch.nn.Parameter, values: Any) -> torch.nn.Parameter:
        raise self._error


def test_weights_that_cannot_be_read_for_now_are_worth_another_try() -> None:
    job = job_of("llama")
    with pytest.raises(TemporaryError, match="could not be read"):
        make_model(job, load_config(job.model), share=Failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(BadInputError, match="model"):
        make_model(job, load_config(job.model), share=Failing(FileNotFoundError(errno.ENOENT, "gone")))


class WatchedShare(WholeWeights):
    """Notes how many bytes linear maps hold, each time that one was put into its place."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16)
        self.held_bytes: list[int] = []

    def keep_rest(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        linears = [each for each in gc.get_objects() if type(each) is torch.nn.Linear]
        weights = [each.weight for each in linears if each.weight is not None]
        self.held_bytes.append(sum(each.nbytes for each in weights if not each.is_meta))
        super().keep_rest(parameters)


def test_a_quantised_weight_is_held_no_longer_than_until_it_is_quantised() -> None:
    share, job = WatchedShare(), job_of("llama", lora={"rank": 4, "alpha": 16, "quantization": "nf4"})
    gc.collect()
    before = sum(
        each.weight.nbytes
        for each in gc.get_objects()
        if type(each) is torch.nn.Linear and each.weight is not None and not each.weight.is_meta
    )
    make_model(job, load_config(job.model), share=share)
    largest = 2 * 64 * 128
    assert len(share.held_bytes) == 15, "14 linear maps, then the rest"
    assert max(share.held_bytes[:14]) - before <= largest


@pytest.mark.parametrize("twice", [False, True])
def test_experts_are_quantised_as_they_are_read_one_map_at_a_time(tmp_path: Path, twice: bool) -> None:
    job = published("mixtral", tmp_path, dtype=torch.float32)
    lora = LoraSpec(rank=4, alpha=16, quantization="nf4", double_quantization=twice)
    job = replace(job, training=replace(job.training, lora=lora))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    held: list[int] = []

    class Watched(WholeWeights):
        def keep_rest(self, parameters: Iterable[torch.nn.Parameter]) -> None:
            experts = [each for each in gc.get_objects() if type(each) is torch.nn.Parameter and each.dim() == 3]
            held.append(sum(not each.is_meta for each in experts))
            super().keep_rest(parameters)

    gc.collect()
    before = sum(not each.is_meta for each in plain.parameters() if each.dim() == 3)
    model = make_model(job, load_config(job.model), share=Watched(torch.float32))
    assert max(held) - before <= 1
    experts = {name: each for name, each in model.named_parameters() if ".experts." in name}
    assert len(experts) == 4
    for name, each in experts.items():
        weight = plain.get_parameter(name.removeprefix("base_model.model.")).detach()
        error = torch.linalg.norm(four_bit.restored(each, each.data) - weight) / torch.linalg.norm(weight)
        assert not each.requires_grad
        assert 0.05 < error < 0.11


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")
@pytest.mark.parametrize(
    ("targets", "why"),
    [(["q_proj", "lm_head"], "weight of lm_head is another module's"), (["q_proj", "embed_tokens"], "is an embedding")],
)
def test_adapters_that_no_export_could_merge_are_refused(targets: list[str], why: str) -> None:
    job = job_of("llama", lora={"rank": 4, "alpha": 16, "target_modules": targets})
    job = replace(job, model=replace(job.model, config={**config_of("llama"), "tie_word_embeddings": True}))
    with pytest.raises(BadInputError, match=rf"training\.lora\.target_modules.*{why}"):
        make_model(job, load_config(job.model))


def test_adapters_on_a_head_of_its_own_are_allowed() -> None:
    job = job_of("llama", lora={"rank": 4, "alpha": 16, "target_modules": ["q_proj", "lm_head"]})
    names = [name for name, _ in make_model(job, load_config(job.model)).named_parameters()]
    assert any("lm_head.lora_A" in name for name in names)


def test_weights_that_are_quantised_on_disk_are_refused() -> None:
    job = job_of("llama")
    config = load_config(job.model)
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(BadInputError, match=r"quantization_config: 'gptq' is refused; give the unquantised weights"):
        check_fit(config, job, largest_token_id=1)


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """The single file of a model with other tensors in it."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def test_a_model_saved_without_its_head_gets_a_random_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = published("llama", tmp_path, shard="1GB")
    bare = AutoModelForCausalLM.from_pretrained(tmp_path).model
    bare.save_pretrained(tmp_path)
    made: Any = make_model(job, load_config(job.model))
    assert 0.01 < float(made.lm_head.weight.detach().std()) < 0.03
    assert torch.equal(made.model.norm.weight, bare.norm.weight.float())
    assert "a model without a head: lm_head.weight begins at random" in caplog.text
    adapted = replace(job, training=replace(job.training, lora=LoraSpec(rank=2, target_modules=("q_proj",))))
    with pytest.raises(BadInputError, match=r"lack lm_head\.weight"):  # adapters would leave it random
        make_model(adapted, load_config(job.model))


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("model.layers.1.", r"lack model\.layers\.1\.\S+, \S+, \S+ and 6 more, which would be random; save the whole"),
        ("lm_head.", r"lack lm_head\.weight, which would be random"),
    ],
)
def test_weights_that_would_silently_be_random_are_refused_by_name(
    lacks: str, said: str, pickled: bool, tmp_path: Path
) -> None:
    job = published("llama", tmp_path, shard="1GB")
    rewritten(tmp_path, lambda held: {key: each for key, each in held.items() if not key.startswith(lacks)})
    if pickled:
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadInputError, match=said):
        make_model(job, load_config(job.model))


def test_an_expert_that_is_not_in_the_files_is_refused(tmp_path: Path) -> None:
    job = published("mixtral", tmp_path, shard="1GB")
    rewritten(tmp_path, lambda held: {key: each for key, each in held.items() if ".experts.1." not in key})
    with pytest.raises(BadInputError, match=r"experts\.gate_up_proj is \[3, .* in its files and \[4, "):
        make_model(job, load_config(job.model))


def test_weights_under_other_names_are_named_beside_what_lacks(tmp_path: Path) -> None:
    job = published("llama", tmp_path, shard="1GB")
    rewritten(tmp_path, lambda held: {key.replace(".layers.", ".blocks."): each for key, each in held.items()})
    with pytest.raises(BadInputError, match=r"lack model\.layers\.0.* They hold model\.blocks\.0\..*other names\?"):
        make_model(job, load_config(job.model))


def test_weights_without_a_place_in_the_model_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = published("llama", tmp_path, shard="1GB")
    make_model(job, load_config(job.model))
    assert not caplog.messages
    name = "model.layers.0.self_attn.q_proj.bias"
    rewritten(tmp_path, lambda held: {**held, name: torch.ones(64), "model.rotary_emb.inv_freq": torch.ones(8)})
    make_model(job, load_config(job.model))
    assert caplog.messages == [f"{tmp_path} holds {name}, which the model has no place for"]


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    job = published("llama", tmp_path)
    config = load_config(job.model)
    config.intermediate_size += 64
    with pytest.raises(BadInputError, match=r"down_proj\.weight is \[64, 128\] in its files and \[64, 192\]"):
        make_model(job, config)


def test_weights_of_another_family_are_refused(tmp_path: Path) -> None:
    job = published("gpt2", tmp_path)
    with pytest.raises(BadInputError, match="weights are of another model"):
        make_model(job, load_config(ModelSpec(config=config_of("llama"))))


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral"])
def test_a_drawn_weight_does_not_depend_on_which_others_are_drawn(family: str) -> None:
    job = job_of(family)
    config = load_config(job.model)
    whole = dict(make_model(job, config).named_parameters())
    empty = model_without_weights(config, "sdpa", torch.float32)
    drawn = SeededWeights(empty, job.training.seed)
    for name, each in reversed(list(empty.named_parameters())):
        assert torch.equal(drawn.draw(each, name), whole[name]), name


def test_drawn_weights_are_as_the_family_draws_them() -> None:
    made: Any = make_model(job_of("gpt2"), load_config(job_of("gpt2").model))
    block = made.transformer.h[0]
    assert float(block.mlp.c_fc.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    # GPT-2 draws what adds to the residual twice; the second time counts.
    assert float(block.mlp.c_proj.weight.detach().std()) == pytest.approx(0.02 / 4**0.5, rel=0.05)
    assert torch.equal(block.ln_1.weight, torch.ones(64)) and not block.mlp.c_fc.bias.any()


def test_weights_that_a_family_makes_elsewhere_and_copies_are_drawn_too() -> None:
    widths = {"num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 64, "num_heads": 8, "head_dim": 8, "n_groups": 1}
    model = Case(run_dir="none", data="none", model={"model_type": "mamba2", **widths}).spec().job.model
    biases = []
    for seed in (1, 1, 2):
        empty = model_without_weights(load_config(model), "eager", torch.float32)
        drawn, parameters = SeededWeights(empty, seed), dict(empty.named_parameters())
        of_layer = "backbone.layers.0.mixer."
        biases.append(drawn.draw(parameters[of_layer + "dt_bias"], of_layer + "dt_bias"))
        slopes = drawn.draw(parameters[of_layer + "A_log"], of_layer + "A_log")
        assert torch.equal(slopes, torch.arange(1, 9).log())
    assert torch.equal(biases[0], biases[1]) and not torch.equal(biases[0], biases[2])
    # Time steps from a thousandth to a tenth, before softplus.
    assert all(-7 < float(each) < -2 for each in biases[0])


def test_another_seed_draws_other_weights() -> None:
    first, second = (make_model(job, load_config(job.model)) for job in (job_of("llama"), job_of("llama", seed=12)))
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


def test_a_large_weight_is_drawn_alike_by_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("llama")
    empty = model_without_weights(load_config(job.model), "sdpa", torch.float32)
    name, large = max(empty.named_parameters(), key=lambda each: each[1].numel())
    monkeypatch.setattr("frenzy.trainer.model.seeded_weights._PART_ELEMENTS", large.numel() // 5)
    drawn, found = SeededWeights(empty, job.training.seed), []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(drawn.draw(large, name))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert 0.01 < float(found[0].std()) < 0.03
    parts = found[0].view(-1)[: 5 * (large.numel() // 5)].view(5, -1)
    assert not torch.equal(parts[0], parts[1])
