"""What the page *New job* asks: specifications to begin with, and what would become of the one being written."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml, job_to_document, job_to_yaml, shown_yaml
from frenzy.adapters.spec.schedule import next_starts
from frenzy.app.drafts import check_changes, check_draft, check_what_if, draft, memory_to_spare, tuned, unplanned
from frenzy.app.services import Services, require_run
from frenzy.core.memory.model_trace import trace_in
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import RunRecord
from frenzy.core.runs.masking import masked_at, without_masked
from frenzy.core.runs.protocol import JobDraft, WhatIf
from frenzy.core.runs.views import DraftView, Preset, WhatIfView
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, TemporaryError
from frenzy.core.values.job import TrainingJob
from frenzy.settings import CHECKOUT
from frenzy.web.model_reader import ModelReader

FOLDER: Final = CHECKOUT / "include/presets"
# Of a job.
_LONGEST_NAME: Final = 63
_NAMES: Final = ("tiny", "1b-from-scratch", "8b-lora", "8b-full", "70b-qlora")
# Of scripts with Hugging Face's trainers: include/recipes.
_RECIPES: Final = ("chat-lora", "chat-full", "preferences", "classification", "continued-pretraining")
# Of the places of the turnstile: a plan may take seconds, and whoever types is in no hurry.
_NUM_AT_ONCE: Final = 2
_AGAIN_S: Final = 1.0
# Of a schedule, as many as tell whether it is the one that was meant.
_NUM_STARTS: Final = 3


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
                changes: tuple[str, ...] = ()
                if message.tune:
                    job, changes = tuned(services, job, config)
                view = draft(services, job, config, shown=shown_yaml(job))
                view = replace(view, tuned=changes, tuned_yaml=job_to_yaml(job) if changes else None)
        starts_s = next_starts(job.trigger, services.clock.now_s(), _NUM_STARTS)
        return replace(view, replaces=replaces, trigger=job.trigger, next_starts_s=starts_s)

    def what_if(self, services: Services, run_key: str, message: WhatIf, caller: Caller) -> WhatIfView:
        """The draft of a run's job with other values; raises as ``view``."""
        check_changes(message)
        with services.ledger.reading() as tx:
            run = require_run(tx, run_key)
        with self._place():
            try:
                job = job_from_document(_with_changes(job_to_document(run.job), message.changes))
                check_what_if(services, job, message, caller)
            except SpecError as error:
                raise SpecError(without_masked(error.violations, run)) from None
            changes: tuple[str, ...] = ()
            config, extra = self._config_of(services, run, job), 0
            if message.tune:
                extra = memory_to_spare(services, run_key)
                job, changes = tuned(services, job, config, data_facts=run.data_facts, extra_bytes_per_gpu=extra)
            masked = masked_at(job, run.masked)
            view = draft(
                services,
                job,
                config,
                shown=shown_yaml(masked),
                data_facts=run.data_facts,
                micro_batch_size=message.micro_batch_size,
                extra_bytes_per_gpu=extra,
            )
        return without_masked(WhatIfView(draft=replace(view, tuned=changes), yaml_text=job_to_yaml(masked)), run)

    def _config_of(self, services: Services, run: RunRecord, job: TrainingJob) -> Mapping[str, Any]:
        """The run's config; traced anew where the run's trace was made for another precision or attention."""
        config, before = run.model_config or {}, run.job.training
        same = (before.precision, before.attention) == (job.training.precision, job.training.attention)
        if same or trace_in(config) is None:
            return config
        with suppress(PermanentError):  # without it, the refusal says what was traced
            return self._models.config_of(job, services.sources)
        return config

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            reason = Reason(code=ReasonCode.LEDGER_BUSY, detail="Other jobs are being planned.")
            raise TemporaryError(reason, retry_after_s=_AGAIN_S)
        try:
            yield
        finally:
            self._places.release()


def _with_changes(document: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` with each value at its dotted path; a null takes away what is there."""
    for path, value in changes.items():
        section, _, rest = path.partition(".")
        if rest:
            inner = document.get(section)
            value = _with_changes(dict(inner) if isinstance(inner, Mapping) else {}, {rest: value})
        document = {**document, section: value}
        if value is None:
            del document[section]
    return document


def presets(user: str = "") -> tuple[Preset, ...]:
    """The shipped specifications, smallest first, then those of recipes; the title is the comment in the first line.

    The name of each begins with ``user``: jobs of two users that begin with the same preset are two jobs.
    """
    owner = re.sub("[^a-z0-9]+", "-", user.partition("@")[0].lower()).strip("-")
    texts = {name: (FOLDER / f"{name}.yaml").read_text(encoding="utf-8") for name in (*_NAMES, *_RECIPES)}
    return tuple(
        Preset(name=name, title=text.partition("\n")[0].removeprefix("# "), yaml_text=_named(text, owner, name))
        for name, text in texts.items()
    )


def _named(text: str, owner: str, preset: str) -> str:
    """``text`` with the name of a job of ``owner``; as it is where that has no letter or digit."""
    name = f"{owner[: _LONGEST_NAME - len(preset) - 1]}-{preset}"
    return re.sub("^name: .*$", f"name: {name}", text, count=1, flags=re.MULTILINE) if owner else text
