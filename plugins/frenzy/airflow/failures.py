"""The one place where this project's errors become Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from frenzy.core.values.errors import PermanentError, Reason, TemporaryError


@contextmanager
def airflow_errors() -> Iterator[None]:
    """A permanent error fails the task for good; a temporary one leaves it its retries."""
    try:
        yield
    except PermanentError as error:
        raise AirflowFailException(said(error.reason)) from error
    except TemporaryError as error:
        raise AirflowException(said(error.reason)) from error


def fail(reason: Reason | None, otherwise: str) -> NoReturn:
    """Fail the task for good with ``reason``."""
    raise AirflowFailException(otherwise if reason is None else said(reason))


def said(reason: Reason) -> str:
    """Code, sentence and remedy in one line."""
    remedy = f" Remedy: {reason.remedy}" if reason.remedy else ""
    return f"{reason.code}: {reason.sentence}{remedy}"
