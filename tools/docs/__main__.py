"""``python -m tools.docs``: writes the reference pages that the code itself dictates.

The pages are checked in; a test holds them equal to what this makes. ``make docs`` runs it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.calibration_file import calibrated_releases, default_calibration, load_calibration
from frenzy.adapters.k8s.torch_builds import LOCKED, NEEDS
from frenzy.adapters.spec.fields import Schema, job_schema, kind_of
from frenzy.core.memory.calibration import ActivationCoefficients, Calibration, Loss
from frenzy.core.memory.closed_form import Workload, predict_memory
from frenzy.core.models.shape import SUPPORTED_FAMILIES, model_shape
from frenzy.core.models.trainable import trained_part
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.gpu_catalogue import CATALOGUE, CatalogueEntry
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.units import format_bytes
from frenzy.core.values.zero_buckets import bucket_elements_for
from frenzy.settings import CHECKOUT

DOCS: Final = CHECKOUT / "docs"
_EXAMPLE_CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "gpt2",
    "vocab_size": 512,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": None,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "tie_word_embeddings": True,
}
_NOTE: Final = "<!-- Written by `make docs` from the code; edit the code, not this page. -->"
_TYPE_WORDS: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "mapping",
}
_LIMIT_WORDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "maxLength": "at most {} characters",
}


def pages() -> dict[str, str]:
    """Every generated file: name below ``docs/`` to its text."""
    return {
        "spec.md": spec_page(),
        "job.schema.json": json.dumps(job_schema(), indent=2) + "\n",
        "reason-codes.md": reason_page(),
        "models.md": models_page(default_calibration()),
        "memory-terms.md": terms_page(default_calibration()),
        "gpu-catalogue.md": catalogue_page(),
    }


def write_pages(folder: Path) -> tuple[str, ...]:
    """Write the pages whose text differs from what is in ``folder``; their names."""
    changed = {name: text for name, text in pages().items() if _text_at(folder / name) != text}
    for name, text in changed.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(changed)


def _text_at(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


# the specification


def spec_page() -> str:
    """Every field of the job specification: type, default, help."""
    parts = [
        "# The job specification, field by field",
        _NOTE,
        "One definition serves YAML, the form in Airflow, Python and the API. A field that is left out has its "
        "default. A key that is not listed here, a value of another type and a value outside its limits are "
        "refused, all at once, each with its path. [Writing a job](jobs.md) is the guide to this page; "
        "[job.schema.json](job.schema.json) is the same as a JSON schema, for editors.",
        "## The job",
        *_section(job_schema(), ""),
    ]
    return "\n\n".join(parts) + "\n"


def _section(section: Schema, path: str) -> Iterator[str]:
    """The table of one section's fields, then the sections inside it."""
    fields = section["properties"]
    required = section.get("required", ())
    rows = (_field_row(f"{path}{name}", each, name in required) for name, each in fields.items())
    yield _table(("field", "type and limits", "default", "meaning"), rows)
    for name, field in fields.items():
        inner = field.get("items", field)
        if "properties" in inner:
            place = f"{path}{name}" + ("[]" if "items" in field else "")
            yield f"## `{place}`"
            yield _prose(inner["description"])
            yield from _section(inner, f"{place}.")


def _field_row(path: str, field: Schema, required: bool) -> tuple[str, ...]:
    return f"`{path}`", _type_text(field), "**required**" if required else _default_text(field), _meaning(field)


def _type_text(field: Schema) -> str:
    words = [text.format(_number(field[key])) for key, text in _LIMIT_WORDS.items() if key in field]
    return f"{_kind_text(field)}{', ' if words else ''}{' and '.join(words)}"


def _kind_text(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{str(each).lower() if isinstance(each, bool) else each}`" for each in field["enum"])
    if "items" in field:
        return "list of text" if field["items"]["type"] == "string" else "list of mappings, see below"
    return "mapping, see below" if "properties" in field else _TYPE_WORDS[kind_of(field)]


def _number(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) and value >= 10_000 else f"{value:g}"


def _default_text(field: Schema) -> str:
    value = field["default"]
    if "title" in field:
        return "see below"
    if value in (None, "", [], {}):
        return "none"
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


def _meaning(field: Schema) -> str:
    examples = ", ".join(f"`{each}`" for each in field.get("examples", ()))
    return _prose(field["description"]) + (f" For example {examples}." if examples else "")


def _prose(text: str | None) -> str:
    """A docstring or help as Markdown, with a full stop."""
    plain = " ".join((text or "").replace("``", "`").split())
    return plain if plain.endswith((".", "!", "?")) or not plain else f"{plain}."


# reason codes


def reason_page() -> str:
    """Every reason code with its general sentence."""
    rows = ((f"[`{code}`](runbook.md#{code.lower()})", code.sentence) for code in ReasonCode)
    parts = [
        "# Reason codes",
        _NOTE,
        "The closed list of reasons. A code is the same in a log line, an XCom, a page, the API and the "
        "[runbook](runbook.md), which says what to look at and what to do. A particular case comes with a sentence "
        "of its own, with names and numbers, and with the smallest remedy where one is known.",
        _table(("code", "what it says"), rows),
    ]
    return "\n\n".join(parts) + "\n"


# what the memory model covers


def models_page(calibration: Calibration) -> str:
    """Families, precisions and settings that the memory model has coefficients for."""
    traced = {each.family for each in calibration.activations}
    rest = [f"`{each}`" for each in SUPPORTED_FAMILIES if each not in traced]
    parts = [
        "# Models the planner covers",
        _NOTE,
        "A family is a Hugging Face `model_type`. The closed form of memory needs coefficients that were traced on "
        "the family's own module with the releases below. A model of any other family is "
        "[traced by itself](memory.md#families-without-a-closed-form); nothing is planned on a guess. A precision, "
        "dropout or loss outside a family's row is refused with "
        "[`MODEL_NOT_SUPPORTED`](runbook.md#model_not_supported). What of it the trainer runs is another question: "
        "[what a test trained](decisions/launchable-is-what-a-test-trained.md).",
        f"Traced with {_versions_text(calibration)}.",
        _table(_MODEL_HEADINGS, _model_rows(calibration.activations)),
        "Every row holds with and without activation checkpointing. `fp16` uses the coefficients of `bf16`, which has "
        "the same width. On a card, `flash_attention_2` takes the kernel that `sdpa` takes in 16 bits. Dropout: which "
        "of attention and hidden dropout may be above 0; more than there is stands in for less. Adapters: the linear "
        "maps they were traced on; adapters on some of them are taken for adapters on all, and adapters anywhere else "
        "for training all weights.",
    ]
    if rest:
        parts.append(f"Parameters can be counted, but nothing is traced yet, so jobs are refused: {', '.join(rest)}.")
    parts += [
        "Any other causal model is read by the parameters that its module registers. They must be embeddings, layers "
        "that are equal or come again in the same order (up to eight first ones may differ), and a head. It is planned "
        "from a trace, or by a closed form of its family once `python -m tools.calibration OUTPUT --template FILE`, in "
        "a checkout, has made one.",
        "## Other releases",
        "Published measurements were made with older libraries, which keep other tensors. Coefficients of these score "
        "them, and plan scripts whose agent reports such a release, or whose `packages` name it. "
        "Those of 4.41 hold for 4.41 to 4.44: they were "
        "traced with 4.44.2, which keeps as much as 4.41.2 or, under autocast, more (both were traced, 2026-11-25). "
        "Those of 4.48 hold for 4.46 and 4.47, too: logits stay beside the loss's copies from 4.46 on.",
        _table(("release", "families"), (_release_row(each) for each in calibrated_releases())),
    ]
    return "\n\n".join(parts) + "\n"


_MODEL_HEADINGS: Final = (
    "family",
    "attention on a CPU",
    "attention on a card",
    "precision",
    "dropout",
    "fused loss",
    "adapters on",
)


def _versions_text(calibration: Calibration) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(calibration.versions.items()))
    return f"{versions or 'no release recorded'}, on {calibration.measured_on or 'no recorded date'}"


def _release_row(release: str) -> tuple[str, str]:
    calibration = load_calibration(release)
    families = sorted({each.family for each in calibration.activations})
    return f"{release} ({_versions_text(calibration)})", ", ".join(f"`{each}`" for each in families)


def _model_rows(known: Sequence[ActivationCoefficients]) -> Iterator[tuple[str, ...]]:
    for family in sorted({each.family for each in known}):
        own = [each for each in known if each.family == family]
        yield (
            f"`{family}`",
            *(_codes(each.attention for each in own if each.kind is kind) for kind in reversed(DeviceKind)),
            _codes(each.precision for each in own),
            _dropout_text(own),
            "yes" if any(each.loss is Loss.FUSED for each in own) else "no",
            "; ".join(sorted({_codes(each.adapters.targets) for each in own if each.adapters})) or "none",
        )


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in sorted(set(names))) or "none"


def _dropout_text(known: Iterable[ActivationCoefficients]) -> str:
    names = {(False, False): "none", (True, False): "attention", (False, True): "hidden", (True, True): "both"}
    found = {(each.attention_dropout, each.hidden_dropout) for each in known}
    return ", ".join(text for key, text in names.items() if key in found)


# the terms of the memory model


def terms_page(calibration: Calibration) -> str:
    """Every point in time of the closed form with its terms and their equations."""
    moments = _moments(calibration)
    shared = _terms_of_nearly_all(moments)
    parts = [
        "# The terms of the memory model",
        _NOTE,
        "At each point in time the memory of a GPU is a sum of terms; the highest sum is the predicted peak. "
        "[The memory model](memory.md) explains the symbols.",
        "## At all times, or all but one",
        _terms_table(shared),
    ]
    for moment in moments:
        own = [each for each in moment.terms if each not in shared]
        parts += [f"## {moment.name[:1].upper()}{moment.name[1:]}", _terms_table(own)]
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _NamedMoment:
    """A point in time; its terms are (name, equation) pairs."""

    name: str
    terms: tuple[tuple[str, str], ...]


def _moments(calibration: Calibration) -> tuple[_NamedMoment, ...]:
    """The model's points in time, from the prediction of a small example."""
    shape = model_shape(_EXAMPLE_CONFIG)
    workload = Workload(
        shape=shape,
        trained=trained_part(shape, None),
        precision=Precision.FP32,
        optimizer="adamw",
        sequence_length=64,
        kind=DeviceKind.VIRTUAL,
        bucket_elements=bucket_elements_for(shape.num_parameters, virtual=True),
    )
    table = predict_memory(workload, grid_of([(2, 1, 1, 1, 2, False)]), calibration)
    found = () if table is None else table.moments
    return tuple(_NamedMoment(each.name, tuple((one.name, one.equation) for one in each.terms)) for each in found)


def _terms_of_nearly_all(moments: Sequence[_NamedMoment]) -> list[tuple[str, str]]:
    """Terms of all points in time, or of all but one."""
    counts = Counter(term for moment in moments for term in moment.terms)
    return [term for term, count in counts.items() if count >= len(moments) - 1]


def _terms_table(terms: Iterable[tuple[str, str]]) -> str:
    return _table(("term", "equation"), ((name, f"`{equation}`") for name, equation in terms))


# the GPU catalogue


def catalogue_page() -> str:
    """The cards a cluster file may name without describing them."""
    parts = [
        "# GPU catalogue",
        _NOTE,
        "Cards that a [cluster file](clusters.md) may name without describing them. Memory is what the driver "
        "reports, which is below the printed size. Rates are dense peaks with fp32 accumulation. Links are per "
        "direction. Power is the board's limit. Prices are the cluster's own.",
        _kernels(),
        _table(
            (
                "card",
                "memory",
                "fp16 TFLOP/s",
                "bf16 TFLOP/s",
                "TF32 TFLOP/s",
                "fp32 TFLOP/s",
                "memory GB/s",
                "link",
                "link GB/s",
                "power W",
                "compute capability",
                "source",
            ),
            (_card_row(each) for each in CATALOGUE.values()),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _kernels() -> str:
    needs = NEEDS[LOCKED]
    without = (
        each.gpu.name for each in CATALOGUE.values() if not needs.has_kernels_for(each.gpu.compute_capability or "")
    )
    return (
        f"The locked torch is built for CUDA {needs.cuda}: it needs driver {needs.min_driver} or newer, and has no "
        f"kernels for {', '.join(f'`{each}`' for each in without)}. These need [another image]"
        "(kubernetes.md#what-the-image-can-run-on)."
    )


def _card_row(entry: CatalogueEntry) -> tuple[str, ...]:
    gpu = entry.gpu
    return (
        f"`{gpu.name}`",
        format_bytes(gpu.memory_bytes),
        f"{gpu.flops_per_s / 1e12:g}",
        _tera(gpu.bf16_flops_per_s),
        _tera(gpu.tf32_flops_per_s),
        _tera(gpu.fp32_flops_per_s),
        f"{gpu.memory_bandwidth_bytes_per_s / 1e9:g}",
        entry.link,
        f"{gpu.link_bytes_per_s / 1e9:g}",
        "" if gpu.power_w is None else f"{gpu.power_w:g}",
        gpu.compute_capability or "",
        entry.source,
    )


def _tera(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:g}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(each.replace('|', '&#124;') for each in line)} |" for line in lines)


def main() -> int:
    """Write the pages into ``docs/`` and name those that changed."""
    for name in write_pages(DOCS):
        sys.stdout.write(f"docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
