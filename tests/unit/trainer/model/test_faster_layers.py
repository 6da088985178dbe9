"""Layers by faster code: what liger-kernel is asked for, and that compiled ones compute the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from frenzy.core.values.job import TrainingSpec
from frenzy.trainer.model.faster_layers import compile_layers, layers_of, use_liger
from frenzy.trainer.model.loading import check_kernels
from frenzy.trainer.outcome import BadInputError

LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "use_cache": False,
}


def llama(**changed: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA | changed)
    return transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


@pytest.fixture
def liger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """liger-kernel's own function, which notes on the model what it is asked for."""
    package = tmp_path / "liger_kernel"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "transformers.py").write_text(
        "def _apply_liger_kernel_to_instance(model, **asked):\n    model.asked = asked\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for each in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.delitem(sys.modules, each, raising=False)


@pytest.mark.usefixtures("liger")
def test_liger_replaces_layers_and_leaves_the_loss_to_training_loss() -> None:
    model = llama()
    use_liger(model)
    assert model.asked == {"cross_entropy": False, "fused_linear_cross_entropy": False}


@pytest.mark.usefixtures("liger")
def test_an_activation_that_liger_would_take_for_silu_is_refused() -> None:
    with pytest.raises(BadInputError, match="the model's activation is gelu, not silu; use torch"):
        use_liger(llama(hidden_act="gelu"))


@pytest.mark.usefixtures("liger")
def test_liger_without_a_gpu_is_refused_even_where_it_is_installed() -> None:
    with pytest.raises(BadInputError, match="liger-kernel and a GPU for it are not there"):
        check_kernels(TrainingSpec(max_steps=1, kernels="liger"))


def test_compiling_needs_a_compiler_on_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match=r"training\.compile: True is refused; torch\.compile needs g\+\+"):
        check_kernels(TrainingSpec(max_steps=1, compile=True))
    check_kernels(TrainingSpec(max_steps=1))


# torch's own, of what it imports to compile.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_layers_keep_their_names() -> None:
    model = llama()
    names = [name for name, _ in model.named_parameters()]
    compile_layers(model)
    assert [name for name, _ in model.named_parameters()] == names
    assert len(layers_of(model)) == 2
