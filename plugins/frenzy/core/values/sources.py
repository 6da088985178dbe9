"""From where Airflow's processes read data and models on a user's behalf: schemes, hosts and folders.

They may reach what the user may not: the API server itself, a cloud's metadata, Airflow's own files. These rules are
pure; whoever opens a source asks them once more with the address that a name turned out to have, and with the path
that is left when links are followed (``frenzy.trainer.guarded``).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import TOKENIZER_KINDS, TrainingJob

ANY_PUBLIC_HOST: Final = "*"
DATA_SCHEMES: Final = ("file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf", "https")
# Secrets of the machine and of a pod, and what is no file of anybody's.
_CLOSED: Final = ("/proc", "/sys", "/dev", "/run/secrets", "/var/run/secrets", "/etc", "/root/.*")
_OPEN: Final = "/dev/shm"  # noqa: S108  # data sets are kept there
LOCAL_SCHEMES: Final = ("file", "local")
# What follows these is a path inside the next part of the chain.
_WRAPPERS: Final = frozenset({"zip", "tar", "libarchive", "simplecache", "filecache", "blockcache", "cached", "dir"})
_LONGEST_SHOWN: Final = 200
_BARE_SCHEME: Final = re.compile(r"[a-z0-9_]+")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION: Final = re.compile(r"[A-Za-z0-9][\w./-]*")
_NO_AUTHORITY: Final = re.compile(r"[\\\s@\x00-\x1f]")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRules:
    """What may be read.

    schemes: of URLs; ``file`` stands for paths. hosts: patterns; ``*`` is any that is public, any other pattern also
    lets addresses of a private network through. Of an object store the bucket is taken for the host. folders: if
    any, only what lies below them. closed: folders that are not read, whatever else is said; one that ends in ``/.*``
    stands for the dot files and dot folders in it. opened: folders in those that may be read all the same.
    run_root: the folder of all runs, of which only the finished models may be read; None where it is no local folder.
    """

    schemes: tuple[str, ...] = DATA_SCHEMES
    hosts: tuple[str, ...] = (ANY_PUBLIC_HOST,)
    folders: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    run_root: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One part of a source: ``scheme`` and what follows it. A chain (``zip://*::https://...``) has several."""

    scheme: str
    rest: str

    @property
    def is_local(self) -> bool:
        return self.scheme in LOCAL_SCHEMES


def links(place: str) -> tuple[Link, ...]:
    """The parts of ``place`` as fsspec reads them: a bare word in a chain is a scheme, else a path."""
    parts = place.split("::")
    return tuple(_link(each, in_chain=len(parts) > 1) for each in parts)


def check_sources(job: TrainingJob, rules: SourceRules) -> None:
    """What can be refused without a look at the network or a disk. Raises SpecError with all of it."""
    violations = [each for path, place in sources(job) for each in source_violations(path, place, rules)]
    hub_id = job.model.hub_id
    if hub_id is not None and not _HUB_ID.fullmatch(hub_id):
        violations.append(Violation(path="model.hub_id", value=repr(hub_id), allowed="give NAME or OWNER/NAME"))
    revision = job.model.revision
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        allowed = "give a commit, a branch or a tag of model.hub_id"
        violations.append(Violation(path="model.revision", value=repr(revision), allowed=allowed))
    if violations:
        raise SpecError(violations)


def sources(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Field and place of all that is read for ``job``."""
    if job.data.path:
        yield "data.path", job.data.path
    if job.validation.path is not None:
        yield "validation.path", job.validation.path
    if job.model.path is not None:
        yield "model.path", job.model.path
    if job.model.tokenizer_used not in TOKENIZER_KINDS:
        yield "model.tokenizer", job.model.tokenizer_used
    if job.checkpoint.warm_start is not None:
        yield "checkpoint.warm_start", job.checkpoint.warm_start


def source_violations(path: str, place: str, rules: SourceRules) -> Iterator[Violation]:
    """What is refused of ``place``, which stands in the field ``path``."""
    for link in links(place):
        problem = link_problem(link, rules)
        if problem is not None:
            yield Violation(path=path, value=_shown(place), allowed=problem)


def _shown(place: str) -> str:
    """Whole or not at all: of a part, a text that is masked where it stands whole would be shown."""
    return repr(place) if len(place) <= _LONGEST_SHOWN else f"a text of {len(place)} characters"


def link_problem(link: Link, rules: SourceRules) -> str | None:
    """What is allowed instead of ``link``; None where nothing can be said against it yet."""
    if ("file" if link.is_local else link.scheme) not in rules.schemes:
        return f"{link.scheme}:// is not read here; allowed are {', '.join(rules.schemes)} (FRENZY_DATA_SCHEMES)"
    if link.is_local:
        return path_problem(link.rest, rules) if link.rest.startswith("/") else None
    if not link.rest or link.scheme in _WRAPPERS:
        return None
    authority = re.split(r"[/?#]", link.rest, maxsplit=1)[0]
    if _NO_AUTHORITY.search(authority) and link.scheme in ("http", "https"):
        return "give the host alone: no user, password, space or backslash"
    host = _host_of(link)
    return "it has no host that can be read" if host is None else host_problem(host, rules)


def host_problem(host: str, rules: SourceRules) -> str | None:
    """What is wrong with ``host`` as it is written."""
    if is_named(host, rules):
        return None
    if ANY_PUBLIC_HOST not in rules.hosts:
        return f"the host {host!r} is not read from; allowed are {', '.join(rules.hosts)} (FRENZY_DATA_HOSTS)"
    if host == "localhost" or host.endswith(".localhost"):
        return _not_public(host, "this machine")
    address = _literal(host)
    return None if address is None else address_problem(host, address)


def is_named(host: str, rules: SourceRules) -> bool:
    """Whether the administrator named ``host``, be its address public or not."""
    return any(fnmatchcase(host.lower(), each.lower()) for each in rules.hosts if each != ANY_PUBLIC_HOST)


def address_problem(host: str, address: str) -> str | None:
    """What is wrong with reading from ``host`` at the numeric ``address``; None where it is a public one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inside = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in _NAT64 else None
        found = found.ipv4_mapped or found.sixtofour or inside or found
    if found.is_global and not found.is_multicast:
        return None
    return _not_public(host, str(found))


def path_problem(path: str, rules: SourceRules) -> str | None:
    """What is wrong with the absolute ``path``."""
    if _is_below(path, rules.run_root) and not _is_model(path, rules.run_root):
        return "of other runs only finished models may be read: <run>/model"
    is_open = any(_is_below(path, each) for each in (_OPEN, *rules.opened, rules.run_root))
    if not is_open and any(_is_closed(path, each) for each in (*_CLOSED, *rules.closed)):
        return "data is not read from there: keep it in a folder of its own"
    if rules.folders and not any(_is_below(path, each) for each in rules.folders):
        return f"allowed are the folders {', '.join(rules.folders)} (FRENZY_DATA_FOLDERS)"
    return None


def _link(part: str, *, in_chain: bool) -> Link:
    scheme, separator, rest = part.partition("://")
    if separator and len(scheme) > 1:
        return Link(scheme.lower(), rest)
    if part.startswith("data:"):
        return Link("data", part.removeprefix("data:"))
    if in_chain and _BARE_SCHEME.fullmatch(part):
        return Link(part, "")
    return Link("file", part)


def _host_of(link: Link) -> str | None:
    try:
        return (urlsplit(f"//{link.rest}").hostname or "").rstrip(".")
    except ValueError:  # half an IPv6 address, for one: fsspec takes its :: for a chain
        return None


def _literal(host: str) -> str | None:
    """The address in ``host``, if it is one in any spelling that a resolver takes: 127.1, 0x7f000001, [::1]."""
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return str(ipaddress.IPv4Address(socket.inet_aton(host))) if host[:1].isdigit() else None
    except OSError:
        return None


def _not_public(host: str, address: str) -> str:
    where = "" if host == address else f" ({address})"
    return f"{host}{where} is no public address; an administrator can name the host in FRENZY_DATA_HOSTS"


def _is_closed(path: str, folder: str) -> bool:
    return path.startswith(folder[:-1]) if folder.endswith("/.*") else _is_below(path, folder)


def _is_below(path: str, folder: str | None) -> bool:
    return folder is not None and (path == folder or path.startswith(f"{folder.rstrip('/')}/"))


def _is_model(path: str, run_root: str | None) -> bool:
    inside = path.removeprefix(run_root or "").strip("/").split("/")
    return len(inside) > 1 and inside[1] == "model"
