"""On a real card the proof is not empty: MARP has plans there for what it tries, and its disk is enough."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.units import GIB
from frenzy.trainer.measure.case import prediction_of, refusal_of
from frenzy.trainer.measure.case_grid import grid_cases
from tools.gpu_proof.attempts import Bench
from tools.gpu_proof.parts.matrix import PRECISIONS, STAGES, VARIANTS
from tools.gpu_proof.scale import FULL
from tools.gpu_proof.this_machine import Machine

QLORA = {"lora": {"rank": 16, "quantization": "nf4"}}


def bench(card: str) -> Bench:
    """A machine with one ``card``, 128 GiB and 16 cores."""
    machine = Machine(name=card, gpu=CATALOGUE[card].gpu, host_bytes=128 * GIB, num_cpus=16)
    nowhere = Path("nowhere")
    calibration = default_calibration()
    return Bench(
        machine=machine, scale=FULL, calibration=calibration, folder=nowhere, output=nowhere, text=nowhere / "text"
    )


def test_matrix_has_a_plan_for_all_but_4_bit_weights_at_stage_3() -> None:
    on_h100, refused = bench("h100"), set()
    for stage, precision, variant in itertools.product(STAGES, PRECISIONS, VARIANTS):
        job = on_h100.job(
            {"config": FULL.base}, steps=5, sequence_length=1024, precision=precision, **VARIANTS[variant]
        )
        try:
            plan = on_h100.plan_at(job, FULL.base, zero_stage=stage, offload=variant == "offload")
        except PermanentError:
            refused.add((stage, variant))
        else:
            assert plan.memory.required_bytes < 24 * GIB
    assert refused == {(3, "nf4")}


def test_1b_at_its_sequence_length_fits_one_h100() -> None:
    job = bench("h100").job({"config": FULL.one}, steps=8, sequence_length=FULL.long_sequence_length)
    assert bench("h100").best_plan(job, FULL.one).num_gpus == 1


@pytest.mark.parametrize(
    ("card", "training"), [("h100", QLORA), ("h200", QLORA), ("h200", {"optimizer": "adamw-8bit"})], ids=str
)
def test_8b_fits(card: str, training: dict[str, object]) -> None:
    job = bench(card).job({"path": "weights"}, steps=8, sequence_length=FULL.sequence_length, **training)
    assert bench(card).best_plan(job, FULL.eight).num_gpus == 1


def test_8b_with_8_bit_states_is_refused_with_a_remedy_on_a_card_that_is_too_small() -> None:
    job = bench("h100").job({"path": "weights"}, steps=8, sequence_length=FULL.sequence_length, optimizer="adamw-8bit")
    with pytest.raises(PermanentError, match="No plan fits"):
        bench("h100").best_plan(job, FULL.eight)


def test_most_cases_of_the_grid_are_offered_and_predicted_on_a_card() -> None:
    on_h100 = bench("h100")
    cases = grid_cases(FULL.grid, name="grid", seed=0)[: FULL.grid_cases]
    offered = [each for each in cases if refusal_of(each, DeviceKind.CUDA) is None]
    assert len(offered) > 0.8 * len(cases)
    predictions = [prediction_of(each, on_h100.calibration, DeviceKind.CUDA) for each in offered]
    fitting = [
        each for each in predictions if each is not None and each.required_bytes < on_h100.machine.gpu.memory_bytes
    ]
    assert len(fitting) == len(offered)
