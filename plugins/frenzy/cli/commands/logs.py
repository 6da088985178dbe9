"""``frenzy logs``: what workers wrote, as it is written, of any rank and attempt."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Final

import typer

from frenzy.adapters import airflow_calls as calls
from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import err
from frenzy.core.runs.ledger import FINAL_STATES
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

_POLL_S: Final = 1.0
# Each rank is a request at every look.
_RANKS_A_SECOND: Final = 16
_SILENCE_S: Final = 5.0


def logs(
    run: Annotated[str, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")],
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt; the newest by default.")] = None,
    all_attempts: Annotated[bool, typer.Option("--all-attempts", help="Past attempts, too, oldest first.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Which worker.")] = 0,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="All workers of the attempt.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    search: Annotated[str | None, typer.Option(help="Only lines with this text, of the whole log.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as a JSON value of its own.")] = False,
) -> int:
    """The end of a worker's log; with --follow what comes after, with --search the lines that have a text."""
    whole = all_attempts or search is not None
    with connect() as api:
        view = find_run(api, run)
        if not view.attempts and view.run.state in FINAL_STATES:
            raise _without_workers(api, view)
        newest = view.attempts[-1].attempt if view.attempts else 1
        first = attempt if attempt is not None else 1 if all_attempts else newest
        chosen = Chosen(
            ranks=None if all_ranks else (rank,),
            first=first,
            last=first if attempt is not None else None,
            offset=0 if whole else None,
        )
        reading = Reading(api, view.run.run_key, chosen)
        show = _shown(named=all_attempts or all_ranks or follow, as_json=as_json)
        for line in reading.followed() if follow else reading.now(view):
            if search is None or search in line.line:
                show(line)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of one rank of one attempt."""

    attempt: int
    rank: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is asked for. ranks: None for all; last: None for every attempt from the first on; offset: None, the end."""

    ranks: tuple[int, ...] | None
    first: int
    last: int | None
    offset: int | None


@dataclass(slots=True)
class Reading:
    """The logs of a run, and how far each has been read."""

    api: Api
    run_key: str
    chosen: Chosen
    _offsets: dict[tuple[int, int], int | None] = field(default_factory=dict)
    _over: set[tuple[int, int]] = field(default_factory=set)

    def now(self, view: RunView) -> Iterator[LogLine]:
        """All there is now, rank by rank. Raises PermanentError where there is no such attempt or rank."""
        sources = self._sources(view) or [(self.chosen.first, (self.chosen.ranks or (0,))[0])]
        for source in sources:
            yield from self._read(source)

    def followed(self, poll_s: float = _POLL_S) -> Iterator[LogLine]:
        """What is there, and what comes, until the run (or the one attempt that is asked for) has ended."""
        told_s = time.monotonic()
        while True:
            view = self.api.ask(endpoints.run_view(self.run_key))
            sources = [each for each in self._sources(view) if each not in self._over]
            for source in sources:
                for line in self._read(source):
                    told_s = time.monotonic()
                    yield line
            if self._is_last(view):
                return
            if not view.attempts and time.monotonic() - told_s >= _SILENCE_S:
                told_s = time.monotonic()
                err().print(_why_nothing(view))
            time.sleep(max(poll_s, len(sources) / _RANKS_A_SECOND))

    def _is_last(self, view: RunView) -> bool:
        if any(each not in self._over for each in self._sources(view)):
            return False
        only = self.chosen.last
        wanted_is_over = only is not None and any(each.attempt == only and not each.is_live for each in view.attempts)
        return wanted_is_over or view.run.state in FINAL_STATES

    def _sources(self, view: RunView) -> list[tuple[int, int]]:
        first, last = self.chosen.first, self.chosen.last
        wanted = [each for each in view.attempts if first <= each.attempt and (last is None or each.attempt <= last)]
        return [
            (each.attempt, rank)
            for each in wanted
            for rank in (range(each.plan.num_gpus) if self.chosen.ranks is None else self.chosen.ranks)
        ]

    def _read(self, source: tuple[int, int]) -> Iterator[LogLine]:
        """What the rank has written since it was looked at last."""
        attempt, rank = source
        while source not in self._over:
            before = self._offsets.get(source, self.chosen.offset)
            part = self.api.ask(endpoints.log_part(self.run_key, attempt=attempt, rank=rank, offset=before))
            self._offsets[source] = part.next_offset
            if part.is_over:
                self._over.add(source)
            for line in part.text.removesuffix("\n").split("\n") if part.text else ():
                yield LogLine(attempt=attempt, rank=rank, line=line)
            if before is None or part.next_offset == before:
                return


def _without_workers(api: Api, view: RunView) -> PermanentError:
    """What ended before it had GPUs has logs of Airflow's tasks alone."""
    run, why = view.run, view.run.reason
    page = calls.dag_page(api.base_url, run.identity.dag_id, run.identity.run_id)
    detail = f"The run {run.run_key} of {run.job.name} is {run.state}: no worker of it was started."
    if why is not None:
        detail = f"{detail} {why.code}: {why.detail}".rstrip(": ")
    remedy = f"Its tasks' logs: {page}"
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))


def _why_nothing(view: RunView) -> str:
    hold = view.queue_entry.hold if view.queue_entry is not None else None
    return f"No worker has started yet: the run is {view.run.state}." + (f" {hold.sentence}" if hold else "")


def _shown(*, named: bool, as_json: bool) -> Callable[[LogLine], None]:
    """Writes a line; where there may be several logs, with whose it is."""

    def show(line: LogLine) -> None:
        whose = f"{line.attempt}.{line.rank}  " if named else ""
        text = json.dumps(asdict(line)) if as_json else f"{whose}{line.line}"
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    return show
