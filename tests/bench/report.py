"""The form of every benchmark's result: printed, and written to ``build/bench/<name>.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[2] / "build" / "bench"


def figure(name: str, value: float, unit: str, goal: float | None = None) -> dict[str, Any]:
    """One row; a goal is an upper bound, a figure without one is for information."""
    return {"name": name, "value": value, "unit": unit, "goal": goal, "ok": goal is None or value <= goal}


def publish(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print ``rows`` and write them to the benchmark's file."""
    for row in rows:
        goal = "" if row["goal"] is None else f"   goal <= {row['goal']:g}   {'ok' if row['ok'] else 'MISSED'}"
        print(f"{row['name']:<60} {row['value']:>10.4g} {row['unit']}{goal}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows
