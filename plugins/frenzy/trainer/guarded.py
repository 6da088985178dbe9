"""Reading on a user's behalf in a process of Airflow's: fsspec, held to ``frenzy.core.values.sources``.

What a name's address is, where a redirect leads and what a link stands for is only known when a source is opened:
each connection's address is checked as it is made, each file's real path as it is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.sources import (
    LOCAL_SCHEMES,
    Link,
    SourceRules,
    address_problem,
    check_sources,
    is_named,
    link_problem,
    links,
    path_problem,
    sources,
)

_HTTP: Final = ("http", "https")
# A finished model and its packed data are some dozens of files.
_MOST_ENTRIES: Final = 100_000
_MOST_DEPTH: Final = 32


@contextmanager
def guarded(job: TrainingJob, rules: SourceRules) -> Iterator[None]:
    """While it lasts, this process reads only what ``rules`` allow. Raises SpecError for what ``job`` names."""
    import fsspec

    check_sources(job, rules)
    for field, place in sources(job):
        for link in links(place):
            if link.is_local:
                _check_path(field, _before_pattern(link.rest), rules)
    before = {name: fsspec.config.conf.get(name) for name in _HTTP}
    try:
        for name in _HTTP:
            fsspec.config.conf[name] = {"get_client": _client_maker(rules), "skip_instance_cache": True}
        for name in LOCAL_SCHEMES:
            fsspec.register_implementation(name, _local_files(rules), clobber=True)
        yield
    finally:
        for name, conf in before.items():
            fsspec.config.conf.pop(name) if conf is None else fsspec.config.conf.update({name: conf})
        for name in LOCAL_SCHEMES:
            fsspec.register_implementation(name, fsspec.implementations.local.LocalFileSystem, clobber=True)


def check_no_links(folder: Path) -> None:
    """Raises SpecError where something in ``folder``, which a run's code wrote, is a link or no plain file, and where
    there is too much in it to look at, or it is too deep.
    """
    if folder.is_symlink():
        raise _refused("run_dir", str(folder), "a folder of a run is no link")
    for number, each in enumerate(_below(folder), start=1):
        if number > _MOST_ENTRIES:
            raise _refused("run_dir", str(folder), f"a folder of a run holds at most {_MOST_ENTRIES} files")
        if not (each.is_dir(follow_symlinks=False) or each.is_file(follow_symlinks=False)):
            raise _refused("run_dir", each.path, "a folder of a run holds plain files only")


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in ``folder``, no link followed; nothing where there is no folder."""
    left = [(str(folder), 0)] if folder.is_dir() else []
    while left:
        above, depth = left.pop()
        if depth > _MOST_DEPTH:
            raise _refused("run_dir", str(folder), f"folders in a folder of a run are at most {_MOST_DEPTH} deep")
        with os.scandir(above) as found:
            for each in found:
                yield each
                if each.is_dir(follow_symlinks=False):
                    left.append((each.path, depth + 1))


def _check_path(field: str, path: str, rules: SourceRules) -> None:
    problem = path_problem(os.path.realpath(path), rules)
    if problem is not None:
        raise _refused(field, path, problem)


def _before_pattern(path: str) -> str:
    """The folder in front of a glob's first letter; ``path`` itself if it is none."""
    start = next((index for index, letter in enumerate(path) if letter in "*?["), None)
    return path if start is None else path[:start].rpartition("/")[0] or "."


def _refused(field: str, value: str, allowed: str) -> SpecError:
    return SpecError([Violation(path=field, value=repr(value), allowed=allowed)])


def _local_files(rules: SourceRules) -> type[Any]:
    from fsspec.implementations.local import LocalFileSystem

    def is_closed(path: str) -> bool:
        """Of the place itself; where a link there leads to is judged, and told, when it is opened."""
        folder, name = os.path.split(path)
        return path_problem(f"{os.path.realpath(folder)}/{name}", rules) is not None

    class GuardedFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
        """What is closed is not there: a pattern tells nothing of it."""

        cachable = False

        def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
            found = super().ls(path, detail=detail, **options)
            return [each for each in found if not is_closed(each["name"] if detail else each)]

        def info(self, path: Any, **options: Any) -> Any:
            if not isinstance(path, os.DirEntry) and is_closed(self._strip_protocol(path)):
                raise FileNotFoundError(path)
            return super().info(path, **options)

        def exists(self, path: str, **options: Any) -> bool:
            return not is_closed(self._strip_protocol(path)) and super().exists(path, **options)

        def isfile(self, path: str) -> bool:
            return not is_closed(self._strip_protocol(path)) and super().isfile(path)

        def isdir(self, path: str) -> bool:
            return not is_closed(self._strip_protocol(path)) and super().isdir(path)

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            real = os.path.realpath(self._strip_protocol(path))
            _check_path("source", real, rules)
            if os.path.lexists(real) and not stat.S_ISREG(os.lstat(real).st_mode):
                raise _refused("source", path, "it must be a plain file")
            return super()._open(real, mode=mode, **options)

    return GuardedFiles


def _client_maker(rules: SourceRules) -> Any:
    async def client(loop: Any, **options: Any) -> Any:
        import aiohttp  # only here: most sources are files

        return aiohttp.ClientSession(loop=loop, **{**options, "connector": _connector(rules), "trust_env": False})

    return client


def _connector(rules: SourceRules) -> Any:
    import aiohttp
    from aiohttp.resolver import ThreadedResolver

    class PublicAddresses(ThreadedResolver):
        async def resolve(self, host: str, *place: Any, **options: Any) -> Any:
            found = await super().resolve(host, *place, **options)
            problems = [None if is_named(host, rules) else address_problem(host, each["host"]) for each in found]
            for problem in filter(None, problems):
                raise _refused("source", host, problem)
            return found

    class Connector(aiohttp.TCPConnector):
        async def connect(self, req: Any, *rest: Any, **options: Any) -> Any:
            """Called for each request, and again for each redirect."""
            problem = link_problem(Link(req.url.scheme, f"{req.url.raw_authority}/"), rules)
            if problem is not None:
                raise _refused("source", str(req.url), problem)
            return await super().connect(req, *rest, **options)

    return Connector(resolver=PublicAddresses(), use_dns_cache=False)
