"""The documentation page of the accuracy report, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from frenzy.core.memory.cuda_memory import OUTSIDE_ON_SEVERAL_CARDS_BYTES
from frenzy.core.values.units import GIB
from frenzy.evaluation.accuracy import Bar
from frenzy.evaluation.score import Coverage, DatasetScore, Errors, ScoredRow
from tools.accuracy.public_reports import JudgedReport, Verdict
from tools.accuracy.report import PublishedReport
from tools.accuracy.thread_remedies import ThreadRemedy


def accuracy_page(report: PublishedReport, *, dated: str) -> str:
    """The page's text. dated: when and where the report was made."""
    sections: tuple[Callable[[PublishedReport], str], ...] = (
        _bars,
        _errors,
        _on_own_card,
        _history,
        _experts,
        _fits,
        _reserved,
        _reports,
        _peers,
        _learning,
        _speed,
        _worst,
        _left_out,
        _own,
    )
    return "\n".join([_HEAD.format(dated=dated, rows=report.deepspeed_gpu_rows), *(each(report) for each in sections)])


_HEAD = """# Accuracy of the memory model

<!-- Written by `make accuracy ARGS=--docs`; edit the code, not this page. -->

`make accuracy` predicts every row of the [published data sets](../tests/data/memory/SOURCES.md) and compares.
Made {dated}.

**What this shows, and what it does not.** Most rows were run by Hugging Face's Trainer, FSDP, Composer, LitGPT and
nanotron on A100, H100 and A10G. Rows that DeepSpeed ran on a GPU and that are predicted: **{rows}**. Activations and
weights are the same whatever moves the gradients, so the other rows hold the coefficients to reality; what ZeRO adds is
read from DeepSpeed's source and measured on [virtual GPUs](memory.md#held-to-measurements).

**Two halves.** Rows with an even number are for fitting, rows with an odd number for scoring; the rule was there before
any row of the newer sets was predicted. Every goal, and the errors of the predicted peak, count the scored half alone;
the comparison with other estimates and the learning from runs count both halves. From the fitting half come the margin
of the requirement and the bound on the load of experts. Coefficients come from neither: they are traced from the
libraries' own modules. What was changed after a look at rows of either half is told below.

**Settings are the publisher's.** Release, optimizer, loss and framework of a row are read from its file or from the
requirements and scenarios published with it, never chosen by agreement. An unknown setting refuses the row, with the
setting's name.

![Predicted against measured peaks](images/marp-accuracy.png)
"""


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in headings) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _percent(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def _bars(report: PublishedReport) -> str:
    def verdict(bar: Bar) -> str:
        return "no rows" if bar.is_met is None else "met" if bar.is_met else "**missed**"

    def value(bar: Bar, number: float | None) -> str:
        return _percent(number) if bar.unit == "share" else "" if number is None else f"{number:g} {bar.unit}"

    rows = [(bar.name, value(bar, bar.value), value(bar, bar.goal), verdict(bar)) for bar in report.bars]
    text = (
        "\nWhat these do not show: llm-foundry publishes only runs that ran, so its half of *no fit and ran* says that "
        "the model is not too careful, not that it is careful enough. The coverage is a share of few rows; its "
        "interval is under *Fit or no fit*. DeepSpeed's goals on GPUs are judged on the few scored rows whose tensors' "
        "peak is known; what was reserved, or shown by the driver, is no goal. One of these rows (row 7) was seen "
        "while a term was mended, so its error is not that of an unseen row.\n"
    )
    return "## Goals\n\n" + _table(("what", "found", "goal", ""), rows) + text


def _on_own_card(report: PublishedReport) -> str:
    text = (
        f"DeepSpeed's own steps on one H100, with ranks imagined: {len(report.own)} cases of six families, drawn at "
        "random before any was predicted ([how they were run](../tests/data/memory/README.md)). What was said of them "
        f"before they ran: {_summed_up([each.before for each in report.own])}. That is their score. All of them were "
        "then seen while [the terms of reductions](decisions/how-buckets-are-reduced.md) were mended, so what is said "
        "today "
        f"({_summed_up([each.today for each in report.own])}) is none.\n\n"
        "What is still off: experts get less than the bound on their load; fp32 attention and eager attention with "
        "adapters, and 4-bit weights under autocast, are predicted too high. "
        "Only rank 0 ran, and no model has a tensor larger than a bucket.\n\n"
    )
    rows = (
        (each.label, f"{each.measured_bytes / GIB:.2f} GiB", _percent(each.before), _percent(each.today), each.at)
        for each in report.own
    )
    return (
        "## Measured on a card of our own\n\n" + text + _table(("case", "measured", "before", "today", "peak at"), rows)
    )


def _summed_up(errors: Sequence[float]) -> str:
    median = statistics.median(map(abs, errors))
    return f"median error {_percent(median)}, worst {_percent(max(map(abs, errors)))}, lowest {_percent(min(errors))}"


def _errors_cells(errors: Errors) -> tuple[str, ...]:
    values = (errors.median, errors.p95, errors.worst)
    return (str(errors.count), *(_percent(each) for each in values), _percent(errors.signed))


def _errors(report: PublishedReport) -> str:
    headings = (
        "data set",
        "grade",
        "compared with",
        "rows",
        "scored",
        "median",
        "95th",
        "worst",
        "signed median",
        "fitting half: median, worst",
    )
    rows = [
        (each.name, each.grade, each.measured, str(each.rows), *_errors_cells(each.errors), _fitting_half(each.fitted))
        for each in report.memory.datasets
    ]
    releases = [f"- **{each.name}**: transformers {each.release}." for each in report.memory.datasets if each.release]
    text = (
        "## Errors of the predicted peak\n\nAbsolute relative errors of the scored half; the signed one is "
        "positive when too high. Where a setting is not recorded the prediction is a range of at most 15 %, and the "
        "error is the distance to it. What was *reserved* has the allocator's cache in it, which is not recorded: the "
        "range ends at the requirement. With the peak as a point, the median of deepspeed-reserved is "
        f"{_percent(report.reserved_as_peak.median)}.\n\n"
    )
    return text + _table(headings, rows) + "\nReleases:\n\n" + "\n".join(releases) + "\n"


def _fitting_half(errors: Errors) -> str:
    return f"{_percent(errors.median)}, {_percent(errors.worst)}" if errors.count else ""


def _history(_: PublishedReport) -> str:
    return _written("history.md")


def _experts(report: PublishedReport) -> str:
    implied, costs = report.experts.implied, report.experts.costs
    if not implied:
        return ""
    rows = [(f"{load:g}", *_errors_cells(errors)) for load, errors in costs]
    text = (
        "## Experts\n\nHow many tokens the busiest expert got is not recorded. In the fitting half the load at which "
        f"prediction and measurement meet is {implied[0]:.2f} to {implied[-1]:.3f} times the balanced share (median "
        f"{implied[len(implied) // 2]:.2f}, {len(implied)} rows; below 1 other terms are too high). 1.25 bounds them. "
        "The scored half, with each bound:\n\n"
    )
    return text + _table(("load", "rows", "median", "95th", "worst", "signed median"), rows)


def _own(_: PublishedReport) -> str:
    return _written("own_runs.md")


def _written(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _left_out(report: PublishedReport) -> str:
    rows = [
        (each.name, str(count), reason.replace("|", "/"))
        for each in report.memory.datasets
        for reason, count in each.refused.items()
    ]
    return "## Rows left out\n\n" + _table(("data set", "rows", "reason"), rows)


def _coverage(coverage: Coverage) -> str:
    if coverage.share is None:
        return ""
    return f"{coverage.covered} of {coverage.count} ({_percent(coverage.low, 1)} to {_percent(coverage.high, 1)})"


def _fits(report: PublishedReport) -> str:
    headings = (
        "data set",
        "fit, **failed**",
        "fit, ran",
        "no fit, **ran**",
        "no fit, failed",
        "requirement covers need",
        "covers what was reserved",
    )
    rows = [_fit_row(each) for each in report.memory.datasets if each.errors.count or _any_fit(each)]
    for name, cells in (("all, fitted part", report.memory.fitted), ("all, scored part", report.memory.scored)):
        counts = (cells.fit_and_failed, cells.fit_and_ran, cells.no_fit_and_ran, cells.no_fit_and_failed)
        rows.append((name, *(str(each) for each in counts), "", ""))
    margin = report.memory.margin
    text = (
        "## Fit or no fit\n\n"
        f"Required: the peak, {_percent(margin.peak_share, 0)} of it, {margin.context_bytes / GIB:.2f} GiB for CUDA's "
        f"context, on several cards {OUTSIDE_ON_SEVERAL_CARDS_BYTES / GIB:.2f} GiB instead, the most that "
        "[logs](../tests/data/memory/SOURCES.md) have outside of torch's allocator, and "
        f"{_percent(margin.hooked_share, 0)} of the activations that FSDP's hooks keep to the end of a "
        f"backward pass with frozen parameters (refitted on the fitting half: "
        f"{_percent(report.hooked_share, 0)}). *Need* is what tensors and the context took; *reserved* is what the "
        "driver's tool showed, which includes memory that the allocator kept because nobody else wanted it. Intervals "
        "are Clopper and Pearson's, 95 %.\n\n"
    )
    return text + _table(headings, rows)


def _reserved(report: PublishedReport) -> str:
    """The played allocator beside what the driver showed, and what it loses."""
    rows = [
        (
            each.label,
            *(f"{value / GIB:.2f}" for value in (each.peak_bytes, each.played_bytes, each.measured_bytes)),
            f"{(each.measured_bytes - each.played_bytes) / GIB:.2f}",
            _percent(each.error),
        )
        for each in report.played
    ]
    errors = Errors.of([each.error for each in report.played])
    text = (
        "## Reserved memory\n\nThe tensors of traced steps are played in torch's allocator with its default settings "
        "(`python -m tools.accuracy.trace_rows`), on a card of the row's size, and CUDA's context is added. These are "
        "the rows of fms that can be traced: all of the scored half, and nothing was settled by them. The median error "
        f"is {_percent(errors.median)}, the worst {_percent(errors.worst)}. GiB:\n\n"
    )
    return (
        text + _table(("run", "peak of tensors", "played", "measured", "less by", "error"), rows) + _written("holes.md")
    )


def _reports(report: PublishedReport) -> str:
    judged = [each for each in report.reports if each.is_judged]
    wrong = [each for each in judged if not each.agrees]
    rows = [
        (
            _thread(each),
            f"{each.required_bytes[0] / GIB:.1f} to {each.required_bytes[1] / GIB:.1f}",
            f"{each.capacity_bytes / GIB:.1f}",
            each.outcome,
            each.explanation,
        )
        for each in wrong
    ]
    open_ones = [(_thread(each), each.outcome, _why_open(each)) for each in report.reports if not each.is_judged]
    agree, dangerous = len(judged) - len(wrong), sum(each.is_dangerous for each in wrong)
    text = (
        f"## Public reports\n\n{len(report.reports)} runs of issue trackers; {len(judged)} can be judged. "
        f"**{agree} agree ({_percent(agree / max(1, len(judged)), 0)}; wished for: 90 %), "
        f"and {dangerous} that ran out of memory are predicted to fit (wished for: none).** "
        "Nothing is fitted to them, and they are no goal that "
        "fails `make accuracy`: a thread seldom says which step failed, what else was on the card, or whether the "
        "named length was reached. Where a tool pads each batch to its longest sequence, the requirement has what the "
        "[allocator may lose](#reserved-memory). It answers for loading the model, for steps, and for saving where "
        "FSDP gathers the whole model on each card to save it; not for evaluation. A run that ran is judged by its "
        "steps, one that failed by the phase that its thread tells, or by all of them. "
        "Those that do not agree, GiB:\n\n"
    )
    return (
        text
        + _table(("run", "required", "card", "outcome", "what is known"), rows)
        + "\nThose that are not judged:\n\n"
        + _table(("run", "outcome", "why"), open_ones)
        + _wider(report)
        + _remedies(report)
    )


def _wider(report: PublishedReport) -> str:
    """Whether a wider margin would refuse those that ran out of memory."""
    rows = [
        (
            _percent(each.more, 0),
            str(each.dangerous),
            str(each.reports_refused),
            f"{each.rows_refused} of {each.rows_that_ran}",
        )
        for each in report.wider
    ]
    headings = ("more", "reports: fit, **failed**", "reports: no fit, **ran**", "data sets, scored: no fit, **ran**")
    return (
        "\nWhat it would buy to require more than the requirement, and whom it would refuse, on all reports that do "
        "not contradict each other:\n\n" + _table(headings, rows)
    )


_FIRST: Final = 3


def _remedies(report: PublishedReport) -> str:
    """What threads ended up doing, and what the planner answers: to the plan that failed, and to a new job."""
    threads = [each.source.replace("github.com/", "") for each in report.remedies]
    of_plan = [
        (
            thread,
            each.ended_with,
            each.failed,
            "; ".join(each.alone),
            "no" if each.place is None else f"{each.place} of {len(each.alone)}",
        )
        for thread, each in zip(threads, report.remedies, strict=True)
    ]
    of_job = [
        (thread, each.ended_with, each.answer, "yes" if each.does_the_same else "no")
        for thread, each in zip(threads, report.remedies, strict=True)
    ]
    places = [each.place for each in report.remedies if each.place is not None]
    same = sum(each.does_the_same for each in report.remedies)
    at_first = [each for each in report.remedies if not each.is_of_length]
    later = [each for each in report.remedies if each.is_of_length]
    counts = [
        (label, *(_named_of(each for each in some if each.is_advised == advised) for advised in (False, True)))
        for label, some in (("compared at first", at_first), ("of sequence lengths, compared later", later))
    ]
    return (
        f"\nOf {len(of_plan)} runs that ran out of memory the thread tells what ended that. **{len(places)} answers "
        "name what the thread did**, or go further in the same setting:\n\n"
        + _table(("threads", "done", "only advised"), counts)
        + "\nThe planner was asked as by "
        "`frenzy plan --fit PLAN`: the plan has the report's cards (with twice their memory on the host), stage "
        "(FSDP's is 3, replicas have 1), micro-batch, checkpointing, offload and attention. The answer is every single "
        "change that mends it, by its effect on the result, then by predicted time. What the thread did is the first "
        f"in {sum(place == 1 for place in places)} answers, among the first three in "
        f"{sum(place <= _FIRST for place in places)}.\n\n"
        + _table(("run", "the thread ended with", "the plan that failed", "any one mends it", "named"), of_plan)
        + "\nAsked for a new job, of which stage, micro-batch, checkpointing and offload are the planner's own choice, "
        f"{same} of the first answers do what the thread did; until 2026-11-28 that was the only measure. The others "
        "are other plans that it predicts to fit: the product sizes ZeRO's buffers by the plan and updates in place. "
        "Nobody ran them.\n\n"
        + _table(("run", "the thread ended with", "the planner's first answer", "the same"), of_job)
    )


def _named_of(some: Iterable[ThreadRemedy]) -> str:
    places = [each.place for each in some]
    return f"{sum(place is not None for place in places)} of {len(places)}" if places else "-"


def _thread(each: JudgedReport) -> str:
    return f"{each.source.replace('github.com/', '')}: {each.label.replace('|', ' or ')}"


def _why_open(each: JudgedReport) -> str:
    least, most = (f"{value / GIB:.1f}" for value in each.required_bytes)
    reasons = {
        Verdict.UNDECIDED: f"{least} to {most} of {each.capacity_bytes / GIB:.1f} GiB: what is not recorded decides",
        Verdict.CONTRADICTED: "another report of the same settings ended otherwise",
    }
    return reasons.get(each.verdict, each.why)


def _any_fit(score: DatasetScore) -> bool:
    return bool(score.fits.fit_and_ran or score.fits.no_fit_and_ran)


def _fit_row(score: DatasetScore) -> tuple[str, ...]:
    cells = score.fits
    counts = (cells.fit_and_failed, cells.fit_and_ran, cells.no_fit_and_ran, cells.no_fit_and_failed)
    return (score.name, *(str(each) for each in counts), _coverage(score.needed), _coverage(score.reserved))


def _peers(report: PublishedReport) -> str:
    rows = [
        (dataset, name, *_errors_cells(errors)) for dataset, own in report.peers.items() for name, errors in own.items()
    ]
    text = "## Beside other estimates\n\nThe others estimate full training only; rows without adapters.\n\n"
    return text + _table(("data set", "estimate", "rows", "median", "95th", "worst", "signed median"), rows)


def _worst(report: PublishedReport) -> str:
    rows = [_worst_row(score, each) for score in report.memory.datasets for each in score.worst[:3]]
    table = _table(("data set", "row", "run", "predicted", "measured", "error", "peak at"), rows)
    reasons = [f"- **{each.dataset}**: {each.text} *{each.source}*" for each in report.explanations]
    return "## Worst rows\n\n" + table + "\nWhy, and where it stands:\n\n" + "\n".join(reasons) + "\n"


def _worst_row(score: DatasetScore, each: ScoredRow) -> tuple[str, ...]:
    return (
        score.name,
        str(each.row.number),
        each.row.label.replace("|", " or "),
        f"{each.prediction.peak_allocated_bytes / GIB:.2f} GiB",
        f"{(each.measured_bytes or 0) / GIB:.2f} GiB",
        _percent(each.error),
        each.prediction.at,
    )


def _learning(report: PublishedReport) -> str:
    curve = report.learning
    if curve is None:
        return ""
    rows = [
        (str(each.num_learned), _percent(each.median_error), _percent(each.p90_error), _percent(each.share_above_bound))
        for each in curve.points
    ]
    text = (
        "## Learning from runs\n\n"
        f"The residuals of the first runs of each of {curve.num_groups} groups correct the predictions of its "
        f"{curve.num_others} other runs ([how](learning.md)).\n\n"
    )
    return text + _table(("runs learned from", "median error", "90th", "above the bound"), rows)


_SPEED_NOTES: Final = """
Wished for: a median of 10 %, nine rows in ten within 25 %, and a first choice within 5 % in nine questions of ten. The
first two are met by every set, the last by all sets together. Nanotron's two misses are runs that were slower than
their like: 3B on 64 nodes, where the network was six times slower without ZeRO than with it, and 1B on 8 nodes (18 %),
where one run without ZeRO is predicted 17 % too fast. A fitted run of the same model and nodes without ZeRO took twice
as long as its like. One choice in twenty is five points, so nine in ten is met by a hair.

What was done after a look at rows: speeds of fms-liger and training_speed were added on 2026-11-25, and were in the
tree before a prediction was made of the latter. Five forms of the model were fitted to the fitted part; its errors
chose among them, and those of the scored part were printed beside. The share of attention of Hugging Face's models is
held at 2.1 times that of the older kernels, which is what FlashAttention 2 reaches on an A100 at most: a free fit goes
beyond. The first choice was near in 16 of 20 questions, and all scored questions were seen, before the terms for hops,
hidden communication and split hidden states were written; the fitted part chose among their forms, and the scored part
was printed once, for the form that was kept ([what was tried](time-model.md#checked-on-published-runs)). No fitted row
has its optimizer on the host: the two scored ones take 1.4 times as long as predicted.
All rows of trainer_h100 were seen before the terms that they led to
([what was seen](time-model.md#checked-on-published-runs)).
"""


def _speed(report: PublishedReport) -> str:
    headings = (
        "data set",
        "scored",
        "median",
        "90th",
        "worst",
        "fitted part, median",
        "first choice within 5 %",
        "median regret",
    )
    rows = []
    for each in report.speed.datasets:
        errors, ranking = each.scored, each.ranking
        rows.append(
            (
                each.dataset,
                str(errors.num_runs) if errors else "0",
                *((_percent(errors.median), _percent(errors.p90), _percent(errors.worst)) if errors else ("", "", "")),
                _percent(each.fitted.median) if each.fitted else "",
                f"{ranking.num_near} of {ranking.num_questions}" if ranking else "",
                _percent(ranking.median_regret) if ranking else "",
            )
        )
    text = (
        "## Step time\n\nErrors of the predicted step time on the scored part "
        f"({report.speed.split}); the other part gave the shares of the cards' rates ([how](time-model.md)). "
        "Regret: time lost by running the plan that was predicted fastest, against the fastest published one.\n\n"
    )
    return text + _table(headings, rows) + _SPEED_NOTES
