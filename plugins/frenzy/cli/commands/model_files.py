"""Fetches a finished model's files from the server that knows where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.render.console import err
from frenzy.core.runs.views import ModelFile
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.telemetry import printable


def fetch_model(api: Api, run_key: str, folder: Path) -> None:
    """All files into ``folder``, each under its own name once it is whole. Raises SpecError, PermanentError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        allowed = "name a folder that is empty or not there: files of two models would mix"
        raise SpecError([Violation(path="--download", value=str(folder), allowed=allowed)])
    files = api.ask(endpoints.model_files(run_key))
    if not files:
        detail = f"The model of {run_key} is not kept: there is nothing to fetch."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
    _refuse_ways_out(files)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=err()) as progress:
        for each in files:
            _fetch(api, run_key, each, folder / each.name, progress)


def _fetch(api: Api, run_key: str, file: ModelFile, target: Path, progress: Progress) -> None:
    task = progress.add_task(printable(file.name), total=file.num_bytes)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.part")
    with draft.open("wb") as opened:
        api.fetch(
            endpoints.model_file(run_key, file.name),
            opened,
            lambda num_bytes: progress.update(task, completed=num_bytes),
        )
    draft.replace(target)


def _refuse_ways_out(files: Sequence[ModelFile]) -> None:
    """A store takes any name; none of them may leave the folder."""
    for each in files:
        path = PurePosixPath(each.name)
        if path.is_absolute() or ".." in path.parts:
            detail = f"A file of the model is called {each.name!r}, which leads out of its folder: nothing was fetched."
            raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
