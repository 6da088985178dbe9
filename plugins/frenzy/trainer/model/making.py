"""Making the model of a job: without memory first, then each weight into its place, then adapters."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from frenzy.core.models.trainable import adapter_targets
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import Precision, TrainingJob
from frenzy.core.values.resource_plan import short_hash
from frenzy.trainer import files
from frenzy.trainer.disk_room import check_room
from frenzy.trainer.heartbeats import beat, counting
from frenzy.trainer.model import four_bit, four_bit_experts
from frenzy.trainer.model.faster_layers import use_liger
from frenzy.trainer.model.fused_loss import fuse_loss
from frenzy.trainer.model.rank_share import RankShare, WholeWeights
from frenzy.trainer.model.seeded_weights import SeededWeights
from frenzy.trainer.model.weight_files import (
    HeldValues,
    Values,
    WeightFiles,
    check_names,
    find_weight_files,
    weight_files,
)
from frenzy.trainer.outcome import BadInputError, one_line

_COMPUTE_DTYPES: Final = {
    Precision.FP32: torch.float32,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
    Precision.AUTOCAST_BF16: torch.bfloat16,
}
# What a later try finds as well; libraries raise an OSError without a number where a name or format is wrong.
_NOT_THERE: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def weights_dtype(precision: Precision) -> torch.dtype:
    """The format the model's weights are kept in; the optimizer's own are fp32 in every precision."""
    return torch.float32 if precision is Precision.AUTOCAST_BF16 else _COMPUTE_DTYPES[precision]


def make_model(
    job: TrainingJob,
    config: Any,
    *,
    run_root: str = "",
    scratch: Path | None = None,
    share: RankShare | None = None,
    resumes: bool = False,
) -> torch.nn.Module:
    """The model with this rank's share of the weights: on the host, whole and in fp32 if none is given.

    run_root: folder of all runs, where a run key given as ``checkpoint.warm_start`` is looked up. scratch: the
    attempt's folder on this node, for weights that lie on another store.
    resumes: a checkpoint will fill in the weights, so none are read or drawn. Raises BadInputError.
    """
    share, lora = share or WholeWeights(torch.float32), job.training.lora
    place = None if resumes else _weights_place(job, run_root, scratch)
    model = _first_model(job, config, share, place, resumes=resumes)
    if job.training.loss == "fused":
        fuse_loss(model)
    if job.training.kernels == "liger":
        use_liger(model)
    if lora is not None:
        torch.manual_seed(job.training.seed)
        model = _with_adapters(model, job)
    share.keep_rest(model.parameters())
    model.train()
    return model  # type: ignore[no-any-return]


def _first_model(job: TrainingJob, config: Any, share: RankShare, place: str | None, *, resumes: bool) -> Any:
    try:
        paths = () if place is None else find_weight_files(place)
        if place is not None and not paths:
            return _read_whole(job, config, share, place)
        model = model_without_weights(config, job.training.attention, share.dtype)
        found = weight_files(model, paths, str(place)) if paths else WeightFiles({}, ())
        _Filling(job, model, share, found, is_drawn=not resumes).fill()
        return model
    except (ValueError, TypeError, KeyError, AttributeError, OSError, ZeroDivisionError) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, _NOT_THERE):
            detail = f"The weights at {place} could not be read ({one_line(error)})."
            raise TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail), retry_after_s=60) from error
        shown = place or dict(job.model.config or {"path": job.model.path})
        allowed = f"no causal language model can be made of it ({one_line(error)})"
        raise BadInputError("model", shown, allowed) from error


def model_without_weights(config: Any, attention: str, dtype: torch.dtype) -> Any:
    """The causal language model of ``config``: parameters on the meta device, buffers made and whole.

    dtype: of the parameters; buffers have what the family's code gives them, RoPE's frequencies fp32.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with _parameters_on_meta(), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    model.tie_weights()
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """While it lasts, a parameter loses its memory as soon as a module takes it; buffers keep theirs."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = without_memory  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


class _Filling:
    """One model being filled. Tied parameters are one and go to all their owners."""

    def __init__(self, job: TrainingJob, model: Any, share: RankShare, found: WeightFiles, *, is_drawn: bool) -> None:
        self._job, self._model, self._share, self._found, self._is_drawn = job, model, share, found, is_drawn
        # Made in any case: it gives buffers the values that the family's code has for them, too.
        self._drawn = SeededWeights(model, job.training.seed)
        self._owners, self._names = _owners(model), _names(model)
        lora = job.training.lora
        quantises = lora is not None and lora.quantization == "nf4"
        self._to_quantise = four_bit.linear_maps(model) if quantises else {}
        self._to_pack = four_bit_experts.expert_maps(model) if quantises else {}

    def fill(self) -> None:
        merged = set()
        for name, values in self._found.merged(self._model):
            self._put(self._model.get_parameter(name), values)
            merged.add(name)
        if self._found.place is not None:
            stored = merged | self._found.plain.keys()
            lacking = [names[0] for names in self._names.values() if stored.isdisjoint(names)]
            _check_names(self._job, self._model, lacking, self._found.unexpected, self._found.place)
        for name, buffer in self._model.named_buffers():
            if name in self._found.plain:
                self._found.plain[name].read_into(buffer.view(-1))
        for module in list(self._model.modules()):
            for each in [each for each in module._parameters.values() if each is not None and each.is_meta]:
                self._put(each, self._values(each))
            if module in self._to_quantise:
                self._quantise(module, *self._to_quantise[module])

    def _values(self, parameter: torch.nn.Parameter) -> Values | None:
        names = self._names[id(parameter)]
        stored = next((self._found.plain[each] for each in names if each in self._found.plain), None)
        if stored is not None:
            return stored
        return HeldValues(self._drawn.draw(parameter, names[0])) if self._is_drawn else None

    def _put(self, old: torch.nn.Parameter, values: Values | None) -> None:
        owners = self._owners[id(old)]
        if id(old) in self._to_pack:
            new = self._packed(old, values)
        else:
            is_whole = any(module in self._to_quantise for module, _ in owners)
            new = (WholeWeights(self._share.dtype) if is_whole else self._share).keep(old, values)
        for module, key in owners:
            module._parameters[key] = new
        beat("loading the weights")

    def _packed(self, experts: torch.nn.Parameter, values: Values | None) -> torch.nn.Parameter:
        """Quantised on the rank's own device: of all experts of a layer, a host may have no room for each rank's."""
        lora, share = self._job.training.lora, self._share
        assert lora is not None
        whole = WholeWeights(share.dtype, share.device).keep(experts, values)
        made = four_bit.packed(whole.data, twice=lora.double_quantization, device=share.device)
        share.keep_rest([made])
        return made

    def _quantise(self, linear: Any, parent: Any, name: str) -> None:
        lora, dtype = self._job.training.lora, _COMPUTE_DTYPES[self._job.training.precision]
        assert lora is not None
        made = four_bit.quantised(linear, dtype, twice=lora.double_quantization, device=self._share.device)
        self._share.keep_rest(made.parameters())
        setattr(parent, name, made)


def _owners(model: Any) -> dict[int, list[tuple[torch.nn.Module, str]]]:
    """By a parameter's id: the modules that have it, and what they call it."""
    found: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for module in model.modules():
        for key, each in module._parameters.items():
            if each is not None:
                found.setdefault(id(each), []).append((module, key))
    return found


def _names(model: Any) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(each), []).append(name)
    return found


def _read_whole(job: TrainingJob, config: Any, share: RankShare, place: str) -> Any:
    """Weights in pickles of torch, by transformers, through a whole model."""
    from transformers import AutoModelForCausalLM

    attention, lora = job.training.attention, job.training.lora
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        place, config=config, attn_implementation=attention, dtype=share.dtype, output_loading_info=True
    )
    model, info = loaded
    _check_names(job, model, info["missing_keys"], info["unexpected_keys"], place)
    if lora is not None and lora.quantization == "nf4":
        dtype, twice = _COMPUTE_DTYPES[job.training.precision], lora.double_quantization
        four_bit.quantise_linear_maps(model, dtype, twice=twice, device=share.device)
        four_bit_experts.quantise_experts(model, twice=twice, device=share.device)
    return model


def _check_names(job: TrainingJob, model: Any, lacking: Iterable[str], beside: Iterable[str], place: str) -> None:
    # Adapters leave a head as it is: a random one would stay random.
    check_names(model, lacking, beside, place, new_head=job.training.lora is None)


def _weights_place(job: TrainingJob, run_root: str, scratch: Path | None) -> str | None:
    """Where the first weights come from; None for random ones."""
    if job.checkpoint.warm_start is not None:
        return warm_start_folder(job.checkpoint.warm_start, run_root, scratch or Path(tempfile.mkdtemp()))
    if job.model.path is not None and _has_weights(job.model.path):
        return job.model.path
    return None


def warm_start_folder(given: str, run_root: str, scratch: Path) -> str:
    """The local folder of the weights to start from, fetched once to a folder of ``scratch`` that is theirs alone.

    Raises BadInputError.
    """
    for place in (given, f"{given}/model", f"{run_root}/{given}/model"):
        if files.exists(f"{place}/config.json"):
            return str(_fetched(place, scratch))
    allowed = "give a folder with config.json and weights, or the key of a finished run"
    raise BadInputError("checkpoint.warm_start", given, allowed)


def _fetched(place: str, scratch: Path) -> Path:
    target = scratch / f"warm-start-{short_hash(place)}"
    if not target.exists():
        check_room(scratch, files.folder_bytes(place), field="checkpoint.warm_start", value=place)
        # What was fetched in part has another name.
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        found = files.fetch_folder(place, part, counting("fetching the weights to start from: bytes"))
        if found != part:
            return found
        part.replace(target)
    return target


def _has_weights(folder: str) -> bool:
    return any(Path(folder).glob("*.safetensors")) or any(Path(folder).glob("pytorch_model*.bin"))


def _with_adapters(model: Any, job: TrainingJob) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = job.training.lora
    assert lora is not None
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft divides it by the rank: a float will do
        lora_dropout=lora.dropout,
        target_modules=list(adapter_targets(model.config.model_type, lora)),
        task_type="CAUSAL_LM",
        # GPT-2's own layers store the transposed weight; 4-bit ones do not.
        fan_in_fan_out=model.config.model_type == "gpt2" and lora.quantization == "none",
    )
    owners = _owners(model)
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as error:
        raise _bad_targets(job, model, one_line(error)) from error
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        if module.lora_embedding_A:
            raise _bad_targets(job, model, f"{name} is an embedding; adapt linear maps")
        if len(owners[id(module.get_base_layer().weight)]) > 1:
            allowed = f"the weight of {name} is another module's too, so no export can have its change; leave it out"
            raise _bad_targets(job, model, allowed)
    return adapted


def _bad_targets(job: TrainingJob, model: Any, allowed: str) -> BadInputError:
    assert job.training.lora is not None
    names = list(adapter_targets(model.config.model_type, job.training.lora))
    return BadInputError("training.lora.target_modules", names, allowed)
