"""What the page *New job* asks: specifications to begin with, and what would become of the one being written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from frenzy.adapters.spec.job_spec import job_from_yaml, shown_yaml
from frenzy.app.drafts import check_draft, draft, unplanned
from frenzy.app.services import Services
from frenzy.core.runs.access import Caller
from frenzy.core.runs.protocol import JobDraft
from frenzy.core.runs.views import DraftView, Preset
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, TemporaryError
from frenzy.settings import CHECKOUT
from frenzy.web.model_reader import ModelReader

FOLDER: Final = CHECKOUT / "include/presets"
_NAMES: Final = ("tiny", "1b-from-scratch", "8b-lora", "8b-full", "70b-qlora")
# Of scripts with Hugging Face's trainers: include/recipes.
_RECIPES: Final = ("chat-lora", "chat-full", "preferences", "classification", "continued-pretraining")
# Of the places of the turnstile: a plan may take seconds, and whoever types is in no hurry.
_NUM_AT_ONCE: Final = 2
_AGAIN_S: Final = 1.0


class Drafter:
    """Answers for jobs that are being written, a few at a time."""

    def __init__(self, models: ModelReader) -> None:
        self._models = models
        self._places = threading.BoundedSemaphore(_NUM_AT_ONCE)

    def view(self, services: Services, message: JobDraft, caller: Caller) -> DraftView:
        """Raises SpecError and Forbidden as a submission would, TemporaryError while others are answered."""
        job = job_from_yaml(message.yaml_text)
        shown = shown_yaml(job)
        replaces = check_draft(services, job, caller)
        with self._place():
            try:
                config = self._models.config_of(job, services.sources)
            except SpecError:
                raise
            except PermanentError as error:
                note = f"Its plans are made when the run begins: the model cannot be read here. {error.reason.sentence}"
                view = unplanned(job, shown=shown, note=note)
            else:
                view = draft(services, job, config, shown=shown)
        return replace(view, replaces=replaces)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            reason = Reason(code=ReasonCode.LEDGER_BUSY, detail="Other jobs are being planned.")
            raise TemporaryError(reason, retry_after_s=_AGAIN_S)
        try:
            yield
        finally:
            self._places.release()


def presets() -> tuple[Preset, ...]:
    """The shipped specifications, smallest first, then those of recipes; the title is the comment in the first line."""
    texts = {name: (FOLDER / f"{name}.yaml").read_text(encoding="utf-8") for name in (*_NAMES, *_RECIPES)}
    return tuple(
        Preset(name=name, title=text.partition("\n")[0].removeprefix("# "), yaml_text=text)
        for name, text in texts.items()
    )
