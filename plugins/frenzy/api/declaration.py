"""What an endpoint is: a declared function whose signature is that of the call, and whose body is elsewhere."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Generic, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from frenzy.api import URL_PREFIX
from frenzy.core.values.codec import TextLimits, dumps

P = ParamSpec("P")
R = TypeVar("R")

REPORT: Final = TextLimits(64 * 1024, 5_000)
SPECIFICATION: Final = TextLimits(1024**2, 100_000)
"""A job with its model's config, which may list every parameter of the model; or a job's text."""
EVERY_LEASE: Final = TextLimits(4 * 1024**2, 200_000)
"""What was found of every lease that is held."""
_NAME_IN_PATH: Final = re.compile(r"{(\w+)(?::path)?}")


class Need(StrEnum):
    """What a caller must be allowed to do.

    VISIT: use Airflow at all; lists then show what the caller may see. SEE_RUN: look at runs of the DAG of the run in
    the path. SEE_DAG_RUN: look at runs of the DAG in the path. MANAGE_RUN, MANAGE_JOB: own the run or job in the path,
    be of its team, or administer. SEE_LOGS: the same, and look at task logs: workers may write anything into theirs.
    TAKE_MODEL: as MANAGE_RUN, and look at the run. START: create DAG runs, hence jobs. ADMIN: administer. SERVICE: be
    Frenzy's own tasks and triggers.
    """

    VISIT = "visit"
    SEE_RUN = "see_run"
    SEE_LOGS = "see_logs"
    TAKE_MODEL = "take_model"
    SEE_DAG_RUN = "see_dag_run"
    MANAGE_RUN = "manage_run"
    MANAGE_JOB = "manage_job"
    START = "start"
    ADMIN = "admin"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[R]):
    """One request as a value. ``kind``: what the reply decodes to; ``str``: it is text; None leaves its JSON as it is.

    ``path`` begins with a slash and is below the server's root.
    """

    method: str
    path: str
    kind: Any = None
    body: str | None = None


@dataclass(frozen=True, eq=False)
class Endpoint(Generic[P, R]):
    """One row of the table; calling it makes a ``Call``, with the arguments of ``declared``.

    Those that ``path`` names stand there, a message is the body, the others are the query. What ``declared`` returns is
    the reply: ``str`` and ``bytes`` as they are, None without content, else JSON. sentence: what it does. limits: of
    the body.
    """

    method: str
    path: str
    need: Need
    sentence: str
    limits: TextLimits
    declared: Callable[P, R]

    @property
    def name(self) -> str:
        return self.declared.__name__

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.declared, eval_str=True)

    @property
    def reply(self) -> Any:
        return self.signature.return_annotation

    @cached_property
    def message(self) -> inspect.Parameter | None:
        """The parameter that is sent as the body."""
        parameters = self.signature.parameters.values()
        return next((each for each in parameters if dataclasses.is_dataclass(each.annotation)), None)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        bound = self.signature.bind(*args, **kwargs)
        given = bound.arguments
        body = None if self.message is None else dumps(given.pop(self.message.name))
        path = _NAME_IN_PATH.sub(lambda name: quote(str(given.pop(name[1])), safe=""), self.path)
        query = urlencode({name: each for name, each in given.items() if each is not None})
        return Call(
            method=self.method, path=f"{URL_PREFIX}{path}{'?' if query else ''}{query}", kind=self.reply, body=body
        )


def endpoint(
    method: str, path: str, need: Need, sentence: str, limits: TextLimits = REPORT
) -> Callable[[Callable[P, R]], Endpoint[P, R]]:
    """Declares an endpoint; ``path`` in FastAPI's form, below ``URL_PREFIX``."""
    return lambda declared: Endpoint(method, path, need, sentence, limits, declared)
