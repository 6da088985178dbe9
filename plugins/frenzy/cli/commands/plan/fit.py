"""``frenzy plan --fit CARDS``: how a job would fit cards that it does not fit, with the text to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frenzy.adapters.spec.job_spec import job_to_document
from frenzy.adapters.spec.yaml_core import dump_yaml
from frenzy.cli.render.console import out
from frenzy.cli.render.plan_tables import candidates_table, memory_breakdown
from frenzy.cli.render.tables import Grid, grid, size
from frenzy.core.planning.remedy_changes import nearest
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.units import format_bytes, format_duration

if TYPE_CHECKING:
    from frenzy.core.planning.single_changes import SingleChange
    from frenzy.core.values.job import TrainingJob
    from frenzy.offline import FitAnswer


def show_fit(asked: TrainingJob, answer: FitAnswer, *, top: int) -> None:
    """What to change, the lines of the job to paste, and the plans that then fit."""
    console = out()
    host = format_bytes(answer.host_memory_bytes)
    fits = [each for each in answer.candidates if each.feasible]
    if answer.in_place_of is not None:
        console.print(_alone(f"Any one of these alone mends {answer.in_place_of}", answer.mends))
        console.print()
    if answer.changes is None:
        _say_why_not(asked, answer)
        console.print(candidates_table("refused", answer.candidates[:top]))
        _say_others(answer)
        return
    if not answer.changes:
        how = "as it is" if answer.in_place_of is None else "as it is, by another plan"
        console.print(f"{asked.name} fits {answer.cards} {how}.")
    else:
        console.print(f"{asked.name} fits {answer.cards} with:")
        for each in answer.changes:
            console.print(f"  {each}", soft_wrap=True)
        console.print("\nIn the job's file:\n")
        console.print(changed_lines(asked, answer.job), markup=False, highlight=False, soft_wrap=True)
    console.print(candidates_table(f"Plans on {answer.cards}, with {host} of host memory a node", fits[:top]))
    if answer.in_place_of is None:
        console.print(memory_breakdown(fits[0].plan))
    _say_others(answer)


def _say_why_not(asked: TrainingJob, answer: FitAnswer) -> None:
    console, refused = out(), nearest(answer.candidates) if answer.candidates else None
    # The nearest: so are all others, which come before it.
    if refused is not None and refused.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE:
        why = refused.reason.detail.removeprefix(f"{refused.plan.plan_id}: ")
        console.print(f"{asked.name} does not run on {answer.cards}: {why}", soft_wrap=True)
        if refused.reason.remedy:
            console.print(f"Remedy: {refused.reason.remedy}", soft_wrap=True)
        console.print(f"No change of the job that was tried makes it fit {answer.cards}.", soft_wrap=True)
        return
    console.print(f"{asked.name} does not fit {answer.cards}: no change of the job was found that makes it fit.")
    if asked.starts_random and asked.training.lora is None:
        console.print(
            "Adapters (training.lora) were not tried: they need trained weights, and model.config starts from "
            "random ones. With model.path or model.hub_id they are tried.",
            soft_wrap=True,
        )


def _say_others(answer: FitAnswer) -> None:
    """Which other changes would do; the first is among those told already, where it is a single one."""
    others = [each for each in answer.alone if each.changes != answer.changes]
    if others:
        out().print()
        out().print(_alone(f"Any one of these alone would do{', too' if answer.changes else ''}", others))


def _alone(title: str, changes: Sequence[SingleChange]) -> Grid:
    rows = [
        (
            " and ".join(map(str, each.changes)),
            each.effect.value.replace("_", " "),
            each.plan.plan_id,
            size(each.plan.memory.required_bytes),
            size(each.plan.gpu_memory_bytes),
            format_duration(each.plan.step_time_s) if each.plan.is_timed else "-",
        )
        for each in changes
    ]
    return grid(title, ("change", "effect", "plan", "required", "card", "step"), rows, right="required card step")


def changed_lines(before: TrainingJob, after: TrainingJob) -> str:
    """The YAML of the fields of ``after`` that differ, under their sections; not which cards and how many."""
    old, new = job_to_document(before, full=True), job_to_document(after, full=True)
    new["constraints"] |= {name: old["constraints"][name] for name in ("gpu_types", "max_gpus")}
    return dump_yaml(_difference(old, new))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in new.items():
        was = old.get(name)
        if isinstance(value, Mapping) and isinstance(was, Mapping) and value != was:
            found[name] = _difference(was, value)
        elif value != was:
            found[name] = value
    return found
