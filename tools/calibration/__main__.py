"""Generates the calibration of the memory model.

    python -m tools.calibration OUTPUT                     coefficients of activations
    frenzy marp measure --output DATA ...                  real peaks of a grid of jobs
    python -m tools.calibration OUTPUT --measured DATA     memory outside tensors (--measured may be repeated)

Coefficients hold for the releases of torch and transformers they were traced with. To calibrate
another release, install it beside (torch, transformers, numpy, annotated-types; peft for adapters)
and run the first command there, in a checkout with PYTHONPATH=plugins.

A family the project does not know is added by ``--template FILE``: JSON with its model_type and the
names of its config's fields, such as {"model_type": "stablelm", "grouped": true}.

Each family is traced on a few dozen tiny models of random widths; see ``solve``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, Attention
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from tools.calibration.cases import cases
from tools.calibration.families import FAMILIES, Family
from tools.calibration.solve import Case, solve


def main() -> None:
    """Trace the families and write the calibration; other parts of an existing file are kept."""
    arguments = _arguments()
    if arguments.measured is not None:
        from tools.calibration.outside import with_outside

        _write(arguments.output, with_outside(_read(arguments.output), arguments.measured))
        return
    torch.set_num_threads(1)
    _quiet()
    for family in _families(arguments):
        if arguments.family is None or family.model_type in arguments.family:
            began_s = time.monotonic()
            chosen = [case for case in cases([family]) if _is_asked(case, arguments)]
            _update(arguments.output, [solve(case) for case in chosen])
            sys.stderr.write(f"{family.model_type}: {len(chosen)} sets in {time.monotonic() - began_s:.0f} s\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="JSON file of the calibration")
    names = [each.model_type for each in FAMILIES]
    again = "(may be repeated)"
    template_help = "JSON of a family that is not among these: the fields of tools.calibration.families.Family"
    parser.add_argument("--template", type=Path, help=template_help)
    parser.add_argument("--family", action="append", choices=names, help=f"trace only this family {again}")
    parser.add_argument("--kind", action="append", type=DeviceKind, help=f"only this kind of device {again}")
    parser.add_argument("--attention", action="append", type=Attention, help=f"only this attention {again}")
    parser.add_argument("--precision", action="append", type=Precision, help=f"only this precision {again}")
    parser.add_argument("--part", choices=("full", "adapters"), help="only full training, or only adapters")
    measured_help = "trace nothing; find the memory outside tensors from these measurements"
    parser.add_argument("--measured", type=Path, action="append", help=measured_help)
    return parser.parse_args()


def _families(arguments: argparse.Namespace) -> tuple[Family, ...]:
    """The project's own, or the one a template describes."""
    if arguments.template is None:
        return FAMILIES
    return (codec.loads(Family, arguments.template.read_text(encoding="utf-8")),)


def _is_asked(case: Case, arguments: argparse.Namespace) -> bool:
    setting = case.setting
    part = "full" if setting.adapters is None else "adapters"
    return (
        (arguments.kind is None or setting.kind in arguments.kind)
        and (arguments.attention is None or setting.attention in arguments.attention)
        and (arguments.precision is None or setting.precision in arguments.precision)
        and arguments.part in (None, part)
    )


def _quiet() -> None:
    """Libraries warn about toy configs on every one of thousands."""
    warnings.simplefilter("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()


def _read(file: Path) -> Calibration:
    return codec.loads(Calibration, file.read_text(encoding="utf-8")) if file.exists() else Calibration()


def _update(output: Path, traced: list[ActivationCoefficients]) -> None:
    """Replace these coefficients in the file; everything else in it stays."""
    before = _read(output)
    renewed = {each.order for each in traced}
    kept = [each for each in before.activations if each.order not in renewed]
    after = replace(
        before,
        activations=tuple(sorted([*kept, *traced], key=lambda each: each.order)),
        versions={**before.versions, **_versions()},
        measured_on=datetime.now(tz=UTC).date().isoformat(),
    )
    _write(output, after)


def _write(output: Path, calibration: Calibration) -> None:
    """One line for each set of coefficients, without what is zero or left at its default."""
    document = json.loads(codec.dumps(calibration))
    sets = [json.dumps(_sparse(each), separators=(",", ":")) for each in document.pop("activations")]
    rest = json.dumps(document, indent=1).removesuffix("\n}")
    activations = ",\n".join(sets)
    output.write_text(f'{rest},\n "activations": [\n{activations}\n ]\n}}\n', encoding="utf-8")


_DEFAULTS: Mapping[str, Any] = {
    "kind": "virtual",
    "attention": "sdpa",
    "loss": "torch",
    "adapters": None,
    "weight_copies": 0.0,
    "head_copies": 0.0,
}


def _sparse(document: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in document.items() if name not in _DEFAULTS or _DEFAULTS[name] != value}
    for name in ("layer", "outside"):
        kept[name] = _not_zero(kept[name])
    for name in ("in_loss", "in_backward"):
        kept[name] = [_not_zero(each) for each in kept[name]]
    return kept


def _not_zero(widths: Mapping[str, float]) -> dict[str, float]:
    return {name: int(value) if value == int(value) else value for name, value in widths.items() if value}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "deepspeed", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
