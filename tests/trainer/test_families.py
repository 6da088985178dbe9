"""Every family that counts as launchable trains, the same on every layout and with every computation of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.families import CONFIGS, config_of
from tests.trainer.launching import Case, LaunchServer, losses
from tests.trainer.reference import train_plainly

from frenzy.core.planning.launchable import TRAINED_FAMILIES
from frenzy.core.values.run_files import ExitCode

pytestmark = pytest.mark.thorough

TOLERANCE = 2e-5


def trained(server: LaunchServer, text: str, run_dir: Path, family: str, **choices: Any) -> list[float]:
    """Losses of three steps of the family's tiny model."""
    attention = "sdpa" if TRAINED_FAMILIES[family].sdpa else "eager"
    training = {"attention": attention, **choices.pop("training", {})}
    case = Case(run_dir=str(run_dir), data=text, model=config_of(family), num_steps=3, training=training, **choices)
    result = server.run(case)
    assert result.exit_code == ExitCode.DONE, result.detail
    return losses(case)


def test_every_family_has_a_tiny_model() -> None:
    assert CONFIGS.keys() == TRAINED_FAMILIES.keys()


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
def test_a_family_trains_the_same_sharded_split_eager_or_with_a_fused_loss(
    server: LaunchServer, text: str, tmp_path: Path, family: str
) -> None:
    known = TRAINED_FAMILIES[family]
    plain = trained(server, text, tmp_path / "plain", family, zero_stage=1)
    assert plain[-1] < plain[0] - 0.05
    computed = {"attention": "eager", "loss": "fused" if known.fused_loss else "torch"}
    sharded = trained(server, text, tmp_path / "sharded", family, zero_stage=3, num_gpus=2, training=computed)
    assert sharded == pytest.approx(plain, abs=TOLERANCE)
    if known.tensor_parallel:
        split = trained(server, text, tmp_path / "split", family, zero_stage=2, num_gpus=2, tp=2)
        assert split == pytest.approx(plain, abs=TOLERANCE)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library asks for it
@pytest.mark.parametrize("family", [name for name, known in TRAINED_FAMILIES.items() if known.nf4])
def test_a_family_trains_adapters_over_weights_in_four_bits(text: str, tmp_path: Path, family: str) -> None:
    lora = {"rank": 4, "alpha": 8, "quantization": "nf4"}
    training = {"lora": lora, "learning_rate": 0.02, "attention": "eager"}
    case = Case(run_dir="", data=text, model=config_of(family), num_steps=3, training=training)
    found, model = train_plainly(case, tmp_path)
    assert found[-1] < found[0] - 0.01
    assert all(("lora" in name) == each.requires_grad for name, each in model.named_parameters())
