"""The machine of the proof, what it tries, what it packs, and the page that shows its figures."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.script_files import load_script

from frenzy.core.values.errors import PermanentError
from frenzy.core.values.units import GIB
from frenzy.trainer.measure.bench import CardFacts
from tools.gpu_proof.figure_lines import Figure
from tools.gpu_proof.figures_page import PAGE, figures_page, goals, kept_figures
from tools.gpu_proof.parts import PARTS
from tools.gpu_proof.parts.long_sequence import options
from tools.gpu_proof.parts.matrix import PRECISIONS, STAGES, VARIANTS, Cell, spread
from tools.gpu_proof.this_machine import known_gpu
from tools.gpu_proof.wheel_pack import LOCK, PRESENT, TRACKERS, lacking, pins

CHECKOUT = Path(__file__).parents[3]


def card(name: str, gib: float) -> CardFacts:
    return CardFacts(name=name, num_gpus=1, memory_bytes=round(gib * GIB), driver=None)


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, "h100"),
        ("NVIDIA H100 PCIe", 79.1, "h100-pcie"),
        ("NVIDIA H100 NVL", 93.1, "h100-nvl"),
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40"),
        ("NVIDIA A100 80GB PCIe", 79.2, "a100-80-pcie"),
        ("NVIDIA GeForce RTX 4090", 23.6, "rtx-4090"),
        ("NVIDIA GeForce RTX 3090 Ti", 23.6, "rtx-3090-ti"),
        ("NVIDIA RTX 6000 Ada Generation", 47.5, "rtx-6000-ada"),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32"),
        ("Tesla T4", 14.6, "t4"),
    ],
)
def test_card_is_found_in_the_catalogue_by_the_name_that_the_driver_gives(name: str, gib: float, expected: str) -> None:
    found = known_gpu(card(name, gib))
    assert found.name == expected
    assert found.memory_bytes == round(gib * GIB)


def test_card_that_the_catalogue_lacks_is_refused_by_its_name() -> None:
    with pytest.raises(PermanentError, match="Graphics of 2031"):
        known_gpu(card("Graphics of 2031", 500.0))


def test_parts_share_the_whole_time() -> None:
    assert sum(each.share for each in PARTS) == pytest.approx(1.0)
    assert all(each.case_s < 9 * 60 for each in PARTS)


def test_first_cases_of_the_matrix_show_every_pair_of_its_values() -> None:
    cells = list(itertools.starmap(Cell, itertools.product(STAGES, PRECISIONS, VARIANTS)))
    ordered = spread(cells)
    assert sorted(ordered) == sorted(cells)
    first = ordered[:14]
    for stage, variant in itertools.product(STAGES, VARIANTS):
        assert any((each.stage, each.variant) == (stage, variant) for each in first)
    for precision, variant in itertools.product(PRECISIONS, VARIANTS):
        assert any((each.precision, each.variant) == (precision, variant) for each in first)


def test_every_option_that_keeps_the_mathematics_is_tried_and_no_other() -> None:
    tried = dict(options())
    assert {"loss fused", "attention eager", "gradient_checkpointing on"} <= tried.keys()
    changed = {field for training in tried.values() for field in training}
    assert not changed & {"optimizer", "precision", "lr_schedule", "seed"}


def test_pack_is_what_the_trainer_needs_and_the_machine_lacks() -> None:
    locked, present = pins(LOCK.read_text()), pins(PRESENT.read_text())
    assert present.keys() <= locked.keys()
    assert not {"torch", "transformers", "huggingface-hub", "tokenizers"} - present.keys()
    trackers = pins(TRACKERS.read_text())
    packed = lacking(locked, present | trackers)
    assert {f"{name}=={locked[name]}" for name in ("deepspeed", "pydantic", "bitsandbytes")} <= set(packed)
    assert {each.partition("==")[0] for each in packed} | present.keys() | trackers.keys() == locked.keys()


def test_packages_of_trackers_are_those_that_nothing_else_needs() -> None:
    """With them the pack is twice as large as it may be."""
    locks = load_script(CHECKOUT / "scripts/image_locks.py")
    named = pins("wandb\nmlflow-skinny\ntensorboard\n")
    others = [each for each in locks.trainer_roots() if not pins(each.name).keys() & named.keys()]
    needed = locks._closure(others, locks.locked_pins(CHECKOUT / "requirements.lock"))
    assert pins(TRACKERS.read_text()).keys() == pins(LOCK.read_text()).keys() - needed


def test_versions_in_a_list_of_what_is_there_are_read_past() -> None:
    assert pins("# a list\nHuggingFace_Hub==1.33.0\n\ntorch\n") == {"huggingface-hub": "1.33.0", "torch": ""}


def figure(name: str, value: float | None, prediction: float | None = None) -> Figure:
    return Figure(
        part="p", case="c", name=name, value=value, unit="", prediction=prediction, machine="H", date="2026-11-23"
    )


def test_goals_are_those_of_the_worst_figure() -> None:
    found = [
        figure("MFU", 41.0),
        figure("MFU", 47.5),
        figure("peak of tensors", 10.0, 10.2),
        figure("peak of tensors", 10.0, 9.5),
        figure("forecast ahead", 4.0),
        figure("named rightly", 1.0),
        figure("named rightly", 0.0),
    ]
    told = {each.what: (each.found, each.is_met) for each in goals(found)}
    assert told == {
        "MFU of the fastest run": ("47.5 %", True),
        "worst error of a peak": ("5.0 %", False),
        "forecast before out of memory": ("4", True),
        "failures named rightly": ("0", False),
    }
    assert [each.is_met for each in goals([])] == [None] * 4


def test_forecast_that_never_came_misses_its_goal() -> None:
    assert next(each for each in goals([figure("forecast ahead", None)]) if "forecast" in each.what).is_met is False


def test_page_shows_the_lines_that_are_kept() -> None:
    figures = kept_figures(CHECKOUT)
    assert figures
    assert (CHECKOUT / PAGE).read_text() == figures_page(figures, PARTS), "run: python scripts/gpu_proof.py --docs"


def test_page_says_that_no_card_was_there_until_one_was() -> None:
    told = "No figures from a card are there yet"
    assert told in figures_page([], PARTS)
    assert told not in figures_page([figure("MFU", 50.0)], PARTS)
