"""The project's values as terminal tables; the pages show the same columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from frenzy.cli.render.console import as_typed
from frenzy.core.runs.ledger import Attempt, JobState, Preparation
from frenzy.core.runs.steps import steps_are_estimated
from frenzy.core.values.errors import Reason
from frenzy.core.values.queue_rules import ANY_OTHER, QuotaRow
from frenzy.core.values.units import format_bytes, format_difference, format_duration

if TYPE_CHECKING:  # `plan` shows no run
    from frenzy.core.runs.protocol import RunView
    from frenzy.core.runs.tracked_run import TrackedRun
    from frenzy.core.runs.views import GpusView, QueueView

# A column up to this wide is never folded; a wider one is, but not within words.
_NARROW: Final = 20
# In a paragraph, longer cells (reasons, equations) have lines of their own.
_SHORT: Final = 30
# Where sentences would be folded to less than this, they stand below the other cells of their row.
_READABLE: Final = 40
# Between two columns.
_GAP: Final = 2
_STYLES = {JobState.SUCCEEDED: "green", JobState.RECOVERING: "yellow", JobState.CANCELLED: "yellow"}


def state_text(state: JobState) -> Text:
    """The state's name in the colour of its meaning."""
    return Text(state, style="red" if state.startswith("FAILED") else _STYLES.get(state, "cyan"))


def reason_text(reason: Reason | None) -> Text:
    """Code, sentence and remedy in one cell."""
    if reason is None:
        return Text("-", style="dim")
    text = Text.assemble((reason.code, "bold"), " ", reason.sentence)
    return text.append(f" -> {reason.remedy}", style="cyan") if reason.remedy else text


def local_time(epoch_s: float | None) -> str:
    """A time of day on this machine."""
    return "-" if epoch_s is None else datetime.fromtimestamp(epoch_s).astimezone().strftime("%H:%M:%S")


def local_date(epoch_s: float) -> str:
    """A day on this machine."""
    return datetime.fromtimestamp(epoch_s).astimezone().strftime("%Y-%m-%d")


def local_moment(epoch_s: float | None) -> str:
    """A day and a time of day on this machine."""
    return "-" if epoch_s is None else f"{local_date(epoch_s)} {local_time(epoch_s)}"


def size(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else format_bytes(num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table; on a terminal too narrow for it, long cells below each row, or a paragraph for each row.

    No name or number is ever cut or folded.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]
    numbers: Collection[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths, aligned = self._widths(options.max_width), self._aligned(options.max_width)
        if widths is not None and (not aligned or not self._is_cramped(widths)):
            yield self._table(widths)
        elif aligned:
            yield from self._with_cells_below(aligned)
        else:
            yield from (Text(self.title, style="bold"),) if self.title else ()
            for index, row in enumerate(self.rows):
                yield from (() if index == 0 else (Text(),))
                yield from self._paragraph(row, options.max_width)

    def _widths(self, max_width: int) -> list[int] | None:
        """Of the columns; None where not even their longest words fit beside each other.

        What there is beyond these goes to the columns by what they lack: rich would take it from one that cannot
        give it, and cut the last.
        """
        cells = self._columns()
        widest = [max(map(cell_len, column)) for column in cells]
        least = [
            max(min(wide, _NARROW), *(cell_len(word) for cell in column for word in cell.split()))
            for wide, column in zip(widest, cells, strict=True)
        ]
        spare = max_width - sum(least) - _GAP * (len(least) - 1)
        if spare < 0:
            return None
        lacking = [wide - few for wide, few in zip(widest, least, strict=True)]
        share = min(1.0, spare / max(1, sum(lacking)))
        return [few + int(share * lacks) for few, lacks in zip(least, lacking, strict=True)]

    def _columns(self) -> list[list[str]]:
        names = [heading.replace("_", " ") for heading in self.headings]
        return [[name, *(row[at].plain for row in self.rows)] for at, name in enumerate(names)]

    def _is_cramped(self, widths: Sequence[int]) -> bool:
        widest = (max(map(cell_len, column)) for column in self._columns())
        return any(width < min(wide, _READABLE) for width, wide in zip(widths, widest, strict=True))

    def _aligned(self, max_width: int) -> dict[int, int]:
        """Width by place of columns without wide cells of several words; none if they do not fit, or all are such."""
        found = {}
        for at, column in enumerate(self._columns()):
            width = max(map(cell_len, column))
            if width <= _NARROW or not any(" " in cell for cell in column[1:]):
                found[at] = width
        fits = sum(found.values()) + _GAP * (len(found) - 1) <= max_width
        return found if fits and len(found) < len(self.headings) else {}

    def _with_cells_below(self, aligned: Mapping[int, int]) -> Iterator[RenderableType]:
        names = [Text(heading.replace("_", " "), style="dim") for heading in self.headings]
        yield from (Text(self.title, style="bold"),) if self.title else ()
        for row in (names, *self.rows):
            cells = [row[at].copy() for at in aligned]
            for cell, (at, width) in zip(cells, aligned.items(), strict=True):
                cell.align("right" if self.headings[at] in self.numbers else "left", width)
            yield Text(" " * _GAP).join(cells)
            below = [] if row is names else [at for at in range(len(row)) if at not in aligned]
            if below:
                text = Text("  ").join(Text(" ").join((names[at], row[at])) for at in below)
                yield Padding(text, (0, 0, 0, 2), expand=False)

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
        )
        for heading, width in zip(self.headings, widths, strict=True):
            table.add_column(
                heading.replace("_", " "),
                justify="right" if heading in self.numbers else "left",
                width=width,
                overflow="fold",
                header_style="dim",
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def _paragraph(self, row: Sequence[Text], width: int) -> Iterator[RenderableType]:
        """Every cell behind its heading: the short ones as many to a line as fit, each long one by itself."""
        line = Text()
        for heading, cell in zip(self.headings, row, strict=True):
            named = Text.assemble((f"{heading.replace('_', ' ')} ", "dim"), cell)
            if line and (cell.cell_len > _SHORT or line.cell_len + 2 + named.cell_len > width):
                yield line
                line = Text()
            if cell.cell_len > _SHORT:
                yield Padding(named, (0, 0, 0, 2), expand=False)
            else:
                line = Text("  ").join((line, named)) if line else named
        if line:
            yield line


def grid(title: str, headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: str = "") -> Grid:
    """A table; ``right`` lists, space separated, the headings whose cells are numbers."""
    texts = [[as_typed(cell if isinstance(cell, Text) else Text(cell)) for cell in row] for row in rows]
    return Grid(title=title, headings=headings, rows=texts, numbers=frozenset(right.split()))


def runs_table(views: Iterable[RunView]) -> Grid:
    """One line for each run, newest first."""
    headings = ("run", "job", "state", "attempts", "moved", "step", "loss", "since", "reason")
    return grid("Runs", headings, map(_run_row, views), right="attempts moved step loss")


def _run_row(view: RunView) -> tuple[str | Text, ...]:
    run = view.run
    last = view.attempts[-1] if view.attempts else None
    hold = view.queue_entry.hold if view.queue_entry is not None else None
    return (
        run.run_key,
        run.job.name,
        state_text(run.state),
        str(run.num_attempts),
        str(run.num_reschedules),
        step_text(last, run.total_steps, is_estimate=steps_are_estimated(run)),
        loss_text(last),
        local_time(run.created_s),
        preparation_text(view.preparation) or reason_text(hold or run.reason),
    )


def step_text(attempt: Attempt | None, total_steps: int | None, *, is_estimate: bool = False) -> str:
    done = attempt.reached_step if attempt is not None else 0
    return f"{done}/{'about ' if is_estimate else ''}{total_steps}" if total_steps else str(done)


def loss_text(attempt: Attempt | None) -> str:
    return "-" if attempt is None or attempt.last_loss is None else f"{attempt.last_loss:.4f}"


def attempts_table(attempts: Iterable[Attempt]) -> Grid:
    """Each attempt: its plan, where it ran, predicted against measured, how it ended."""
    headings = ("attempt", "plan", "nodes", "steps", "predicted", "measured", "off_by", "highest", "card", "outcome")
    numbers = "attempt steps predicted measured off_by highest card"
    return grid("Attempts", headings, map(_attempt_row, attempts), right=numbers)


def _attempt_row(each: Attempt) -> tuple[str | Text, ...]:
    predicted = each.plan.memory.peak_allocated_bytes
    return (
        str(each.attempt),
        each.plan.plan_id,
        placement_text(each),
        steps_text(each),
        size(predicted),
        size(each.explained_peak_bytes),
        off_by(each),
        size(each.measured_peak_bytes),
        size(each.plan.gpu_memory_bytes),
        reason_text(each.outcome) if each.outcome is not None else Text("running", style="cyan"),
    )


def placement_text(attempt: Attempt) -> str:
    return ", ".join(f"{each.num_gpus} on {each.node}" for each in attempt.placement.allocations)


def steps_text(attempt: Attempt) -> str:
    """First and last step that the attempt made."""
    resumed = attempt.result.resumed_from_step if attempt.result is not None else None
    first = (resumed if resumed is not None else attempt.next_attempt.checkpoint_step or 0) + 1
    return f"{first}-{attempt.last_step}" if attempt.last_step >= first else "-"


def off_by(attempt: Attempt) -> str:
    """The measured peak against the predicted one; a rehearsal has the whole card and predicts nothing."""
    memory, measured = attempt.plan.memory, attempt.explained_peak_bytes
    predicted = 0 if memory.is_rehearsal else memory.peak_allocated_bytes
    return format_difference(measured, predicted) if measured and predicted else "-"


def queue_tables(view: QueueView) -> RenderableType:
    """Who waits and why, who runs where."""
    waiting = [
        (
            str(row.position),
            row.run_key,
            row.job_name,
            state_text(row.state),
            format_duration(max(0.0, view.now_s - row.waiting_since_s)),
            row.wanted_plan_id or "-",
            local_time(row.expected_start_s),
            str(row.priority),
            row.queue,
            row.team,
            reason_text(row.reason),
        )
        for row in view.waiting
    ]
    headings = (
        "place",
        "run",
        "job",
        "state",
        "waits",
        "wants",
        "expected_start",
        "priority",
        "queue",
        "team",
        "reason",
    )
    waiting_table = grid("Waiting", headings, waiting, right="place waits expected_start priority")
    parts = [waiting_table if waiting else Text("Nothing waits."), Text(), _running_table(view)]
    if view.preparing:
        parts += [Text(), _preparing_table(view)]
    if view.shares:
        parts += [Text(), _shares_table(view)]
    if view.quotas:
        parts += [Text(), _quotas_table(view)]
    return Group(*parts)


def _preparing_table(view: QueueView) -> Grid:
    since = (format_duration(max(0.0, view.now_s - row.since_s)) for row in view.preparing)
    rows = [
        (row.run_key, row.job_name, age, row.queue, row.team, row.progress)
        for row, age in zip(view.preparing, since, strict=True)
    ]
    return grid("Data being prepared", ("run", "job", "since", "queue", "team", "how far"), rows, right="since")


def tracked_lines(tracked: Iterable[TrackedRun]) -> Iterator[tuple[str, str]]:
    """For each tracker its name, and where the curves are and how far."""
    for each in tracked:
        problem = f"; it gets no more: {each.problem}" if each.problem else ""
        yield each.kind, f"{each.place or 'nothing yet'} to step {each.last_step}{problem}"


def preparation_text(preparation: Preparation | None) -> str | None:
    """How far the data of a run are; None where nothing is known, or they are not being prepared."""
    from frenzy.core.lifecycle.monitor import progress_text

    return progress_text(preparation.progress) if preparation is not None and preparation.progress else None


def _shares_table(view: QueueView) -> RenderableType:
    rows = [
        (
            row.queue,
            f"{row.weight:g}",
            str(row.num_waiting),
            str(row.num_running),
            str(row.num_gpus),
            f"{row.held:.3g} of {row.total:.3g}",
            f"{row.share:.3g}",
        )
        for row in view.shares
    ]
    headings = ("queue", "weight", "waiting", "running", "GPUs", "holds", "share")
    return grid("Queues (holds and share: GPUs counted by speed)", headings, rows, right=" ".join(headings[1:]))


def _quotas_table(view: QueueView) -> RenderableType:
    rows = [(_whose(row), _types_of(row), _held_of(row)) for row in view.quotas]
    return grid("Quotas", ("of", "GPUs", "held"), rows, right="held")


def _whose(row: QuotaRow) -> str:
    return f"each other {row.holder}" if row.name == ANY_OTHER else f"{row.holder} {row.name}"


def _types_of(row: QuotaRow) -> str:
    return f"{row.gpu_type or 'all types'}{', which the cluster does not have' if row.limits_nothing else ''}"


def _held_of(row: QuotaRow) -> str:
    """A rule for everyone who is not named is held to by each alone: those who hold have rows of their own."""
    return f"at most {row.max_gpus}" if row.name == ANY_OTHER else f"{row.held} of {row.max_gpus}"


def _running_table(view: QueueView) -> RenderableType:
    rows = [
        (
            row.run_key,
            row.job_name,
            state_text(row.state),
            str(row.attempt),
            row.plan_id,
            ", ".join(row.nodes),
            row.queue,
            row.team,
            f"{row.last_step}/{row.total_steps}" if row.total_steps else str(row.last_step),
            "-" if row.last_loss is None else f"{row.last_loss:.4f}",
            size(row.predicted_peak_bytes),
            size(row.measured_peak_bytes),
            size(row.capacity_bytes),
            local_time(row.expected_end_s),
        )
        for row in view.running
    ]
    headings = (
        *("run", "job", "state", "attempt", "plan", "nodes", "queue", "team", "step", "loss"),
        *("predicted", "measured", "card", "expected_end"),
    )
    if not rows:
        return Text("Nothing runs.")
    return grid("Running", headings, rows, right="attempt step loss predicted measured card expected_end")


def gpus_tables(view: GpusView) -> RenderableType:
    """Capacity and what is free, by type and by node."""
    types = [
        (
            row.gpu_type,
            row.kind,
            size(row.memory_bytes),
            f"{row.num_free}/{row.num_gpus}",
            str(row.num_suspect),
            f"{row.flops_per_s / 1e12:.3g}",
            row.pool,
        )
        for row in view.types
    ]
    nodes = [
        (
            row.node,
            row.gpu_type,
            row.state,
            f"{row.num_free}/{row.num_gpus}",
            ", ".join(each.run_key for each in row.holders) or "-",
        )
        for row in view.nodes
    ]
    type_headings = ("type", "kind", "memory", "free", "suspect", "TFLOP/s", "pool")
    return Group(
        grid("GPU types", type_headings, types, right="memory free suspect TFLOP/s"),
        Text(),
        grid("Nodes", ("node", "type", "state", "free", "runs"), nodes, right="free"),
    )
