"""Progress of a DAG run in the terminal: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from frenzy.cli.commands.follow import StatusSnapshot
from frenzy.cli.render.console import as_typed
from frenzy.cli.render.tables import local_time, loss_text, off_by, preparation_text, size, state_text, step_text
from frenzy.core.lifecycle.why import slow_steps
from frenzy.core.runs.ledger import FINAL_STATES, Attempt, Event
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.steps import steps_are_estimated
from frenzy.core.values.units import format_duration

_BAR_CELLS: Final = 40
_LEAST_PAUSE_S: Final = 3.0
# A look and the wait for an answer come on top.
_LONGEST_SILENCE_S: Final = 3.5


class ProgressView:
    """Shows snapshots. Events scroll by; the newest step stands below them (on a terminal)."""

    def __init__(self, console: Console, now_s: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now_s = console, now_s
        self._spoke_s = now_s()
        self._phase, self._phase_since_s = "", now_s()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._shown: dict[str, tuple[str, float]] = {}
        self._slow: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: StatusSnapshot) -> None:
        """Print what is new, and renew the panel."""
        if snapshot.phase != self._phase:
            self._phase, self._phase_since_s = snapshot.phase, self._now_s()
        for event in snapshot.new_events:
            self._say(event_line(event))
        for attempt in (view.attempts[-1] for view in snapshot.views if view.attempts):
            self._say_slow(attempt)
        if self._live is not None:
            self._live.update(_panel(snapshot, self._phase_line()))
            return
        self._say_progress(snapshot)
        if self._phase and not snapshot.is_last and self._now_s() - self._spoke_s >= _LONGEST_SILENCE_S:
            self._say(self._phase_line())

    def _say(self, line: Text) -> None:
        self._spoke_s = self._now_s()
        self._console.print(line)

    def _say_slow(self, attempt: Attempt) -> None:
        """Once for each attempt: it may well get slower."""
        key, slow = (attempt.run_key, attempt.attempt), slow_steps(attempt)
        if slow is not None and key not in self._slow:
            self._slow.add(key)
            self._say(Text(f"  {slow}", style="yellow"))

    def _phase_line(self) -> Text:
        since_s = self._now_s() - self._phase_since_s
        how_long = f", for {format_duration(since_s)}" if since_s >= 1.0 else ""
        return Text(f"  {self._phase}{how_long}", style="dim")

    def _say_progress(self, snapshot: StatusSnapshot) -> None:
        for view in snapshot.views:
            line = progress_line(view)
            before, shown_s = self._shown.get(view.run.run_key, ("", 0.0))
            now_s = self._now_s()
            if line.plain != before and (now_s - shown_s >= _LEAST_PAUSE_S or view.run.state in FINAL_STATES):
                self._shown[view.run.run_key] = (line.plain, now_s)
                self._say(line)


def event_line(event: Event) -> Text:
    """One line of a run's history."""
    attempt = f"attempt {event.attempt} " if event.attempt is not None else ""
    return Text.assemble((local_time(event.time_s), "dim"), "  ", (f"{attempt}{event.kind}: ", "bold"), event.text)


def progress_line(view: RunView) -> Text:
    """Stage, attempt, step, loss, and memory: measured of predicted of capacity."""
    last = view.attempts[-1] if view.attempts else None
    parts: list[str | Text] = ["  ", state_text(view.run.state)]
    if view.queue_entry is not None and view.queue_entry.hold is not None:
        parts.append(f"  {view.queue_entry.hold.sentence}")
    parts.append(f"  {preparation_text(view.preparation) or ''}".rstrip())
    if last is not None:
        step = step_text(last, view.run.total_steps, is_estimate=steps_are_estimated(view.run))
        parts.append(f"  attempt {last.attempt} on {last.plan.plan_id}  step {step}")
        parts.append(f"  loss {loss_text(last)}  {_memory_words(last)}")
    return Text.assemble(*parts)


def _memory_words(attempt: Attempt) -> str:
    predicted = attempt.plan.memory.peak_allocated_bytes
    words = (
        f"memory {size(attempt.measured_peak_bytes)}, predicted {size(predicted)}, "
        f"card {size(attempt.plan.gpu_memory_bytes)}"
    )
    if attempt.growth_step is not None:
        return f"{words}, growing since step {attempt.growth_step}"
    error = off_by(attempt)
    return words if error == "-" else f"{words} ({error})"


def _panel(snapshot: StatusSnapshot, phase: Text) -> RenderableType:
    lines: list[RenderableType] = [Text(f"DAG run {snapshot.dag_state}", style="dim"), phase]
    for view in snapshot.views:
        lines.append(progress_line(view))
        lines += _bars(view)
    return Group(*map(as_typed, lines))  # which the console does not print itself


def _bars(view: RunView) -> list[RenderableType]:
    if not view.attempts:
        return []
    last = view.attempts[-1]
    done = last.reached_step / view.run.total_steps if view.run.total_steps else 0.0
    full = (last.measured_peak_bytes or 0) / last.plan.gpu_memory_bytes
    mark = last.plan.memory.peak_allocated_bytes / last.plan.gpu_memory_bytes
    return [_bar("  steps  ", done, None, "cyan"), _bar("  memory ", full, mark, "yellow" if full > 0.9 else "green")]


def _bar(label: str, share: float, mark: float | None, style: str) -> Text:
    filled = round(min(1.0, max(0.0, share)) * _BAR_CELLS)
    cells = ["#" if index < filled else "." for index in range(_BAR_CELLS)]
    if mark is not None:
        cells[min(_BAR_CELLS - 1, round(mark * _BAR_CELLS))] = "|"
    return Text.assemble((label, "dim"), ("".join(cells), style), f" {100 * share:.0f} %")
