"""What is shown while a model of a family without a closed form is traced."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final

from frenzy.cli.render.console import err
from frenzy.core.planning.launchable import refusal_whatever_is_traced

if TYPE_CHECKING:
    from rich.progress import Progress

    from frenzy.core.values.job import TrainingJob

_WORDS: Final = "No closed form covers this model: its own module is traced, once for this config."
_SHOWS_MORE: Final = "The trace shows what else would have to change."


class TraceProgress:
    """A sentence and a bar on stderr as soon as there is something to wait for; the bar is gone in the end."""

    def __init__(self, job: TrainingJob) -> None:
        self._refusal = refusal_whatever_is_traced(job)
        self._shown: Progress | None = None

    def __enter__(self) -> TraceProgress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._shown is not None:
            self._shown.stop()

    def told(self, done: int, of: int) -> None:
        """Show that so many of its parts are done."""
        from rich.progress import Progress

        if self._shown is None:
            err().print(_WORDS, soft_wrap=True)
            if self._refusal is not None:
                err().print(f"{self._refusal.detail} {self._refusal.remedy} {_SHOWS_MORE}", soft_wrap=True)
            self._shown = Progress(console=err(), transient=True)
            self._shown.add_task("Tracing")
            self._shown.start()
        self._shown.update(self._shown.task_ids[0], completed=done, total=of)
