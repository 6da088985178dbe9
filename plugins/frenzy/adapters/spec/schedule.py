"""When a job's own DAG runs by itself: what Airflow would refuse of it, and when that is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from urllib.parse import quote, urlsplit

from frenzy.core.values.errors import Violation
from frenzy.core.values.job import TriggerSpec

# As Airflow reads them.
PRESETS: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
_NUM_FIELDS: Final = 5
_LONGEST_URI: Final = 1500
_KEPT: Final = "/:?#[]@!$&'()*+,;=%~"
# croniter's R and H: another moment at each look.
_BY_CHANCE: Final = re.compile(r"(?i)(?<![a-z])[rh](?![a-z])")
_CRON: Final = f"five fields (minute, hour, day, month, weekday; UTC) that some day meets, or {', '.join(PRESETS)}"
_URI: Final = f"a URI of at most {_LONGEST_URI} characters, e.g. frenzy://models/NAME, and not airflow:..."


def trigger_violations(trigger: TriggerSpec) -> Iterator[Violation]:
    """What of ``trigger`` Airflow could make no schedule of."""
    if trigger.cron is not None and not next_starts(trigger, 0.0, 1):
        yield Violation(path="trigger.cron", value=repr(trigger.cron), allowed=_CRON)
    for index, uri in enumerate(trigger.assets):
        if not _is_uri(uri):
            yield Violation(path=f"trigger.assets[{index}]", value=repr(uri[:80]), allowed=_URI)


def next_starts(trigger: TriggerSpec, now_s: float, number: int) -> tuple[float, ...]:
    """The next moments, seconds of the epoch, at which the schedule starts a run; none where there is none."""
    cron = PRESETS.get(trigger.cron or "", trigger.cron or "")
    if len(cron.split()) != _NUM_FIELDS or _BY_CHANCE.search(cron):
        return ()
    return tuple(islice(_moments(cron, now_s), number))


def _moments(cron: str, now_s: float) -> Iterator[float]:
    from croniter import CroniterError, croniter  # whoever reads jobs without a schedule need not wait for it

    try:
        moments = croniter(cron, datetime.fromtimestamp(now_s, UTC))
        while True:
            yield float(moments.get_next(float))
    except (CroniterError, ValueError):
        return


def _is_uri(text: str) -> bool:
    try:
        scheme = urlsplit(text).scheme
    except ValueError:
        return False
    # Airflow looks at the length after it has encoded the text and closed the name of a host.
    is_short = len(quote(text, safe=_KEPT)) + 1 <= _LONGEST_URI
    return bool(text.strip()) and text.isprintable() and is_short and scheme != "airflow"
