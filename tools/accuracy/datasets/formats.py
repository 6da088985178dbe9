"""Every kind of file in ``tests/data/memory``: the product's own, and those of the published data sets."""

from __future__ import annotations

from typing import Final

from frenzy.evaluation.datasets import FORMATS, DatasetFormat
from tools.accuracy.datasets import read_foundry, read_litgpt, read_nanotron, read_others

ALL_FORMATS: Final = (
    *FORMATS,
    DatasetFormat("llm-foundry", read_foundry.COLUMNS, read_foundry.read_row),
    DatasetFormat("nanotron", read_nanotron.COLUMNS, read_nanotron.read_row),
    DatasetFormat("litgpt-hub", read_litgpt.HUB_COLUMNS, read_litgpt.read_hub_row),
    DatasetFormat("litgpt-tables", read_litgpt.TABLE_COLUMNS, read_litgpt.read_table_row),
    DatasetFormat("torchtune", read_others.TORCHTUNE_COLUMNS, read_others.read_torchtune_row),
    DatasetFormat("peft", read_others.PEFT_COLUMNS, read_others.read_peft_row),
    DatasetFormat("ms-swift", read_others.SWIFT_COLUMNS, read_others.read_swift_row),
    DatasetFormat("qwen", read_others.QWEN_COLUMNS, read_others.read_qwen_row),
)
