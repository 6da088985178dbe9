"""Where this installation keeps things and how it behaves: environment before Connection before default.

``load_settings(os.environ)`` is called once by an entry point; everything else gets the value. Processes of
Airflow add what the section [frenzy] of its configuration and then its Connection ``frenzy_default`` say
(``frenzy.adapters.connection_settings``).
``Settings.environment()`` is its inverse, so a child process sees the very same settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from frenzy.core.lifecycle.moves import MOVES
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.sources import ANY_PUBLIC_HOST, DATA_SCHEMES
from frenzy.core.values.units import parse_duration_s

_PACKAGE: Final = Path(__file__).resolve().parent
_IN_CHECKOUT: Final = (_PACKAGE.parents[1] / "pyproject.toml").is_file()

# Where include/ and dags/ lie: the checkout, or what an installed package carries of it (read only).
CHECKOUT: Final = _PACKAGE.parents[1] if _IN_CHECKOUT else _PACKAGE / "checkout"
# The Airflow Connection by which tasks and triggers reach the API server; its extras are settings.
CONN_ID: Final = "frenzy_default"
# The DAG bundle of stored jobs.
JOBS_BUNDLE: Final = "frenzy-jobs"
EXTRAS_PATH: Final = f"extras of the Connection {CONN_ID}"
_PREFIX: Final = "FRENZY_"

_DEFAULT_HOME: Final = (CHECKOUT if _IN_CHECKOUT else Path.cwd()) / ".frenzy"


class LauncherKind(StrEnum):
    """Where workers run: as processes of this machine, or as pods."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


class PlacementPolicy(StrEnum):
    """Which job starts, where, and whether running jobs make room: the policies of ``frenzy.core.scheduling``."""

    HAS = "has"
    BACKFILL = "backfill"
    FIFO = "fifo"
    FRENZY_PAPER = "frenzy-paper"


POLICIES_WITH_QUEUES: Final = (PlacementPolicy.HAS, PlacementPolicy.BACKFILL)


class MemoryPolicy(StrEnum):
    """Which memory model MARP predicts with."""

    CLOSED_FORM = "closed-form"
    PAPER = "paper"


class ElasticMoves(StrEnum):
    """Whether running jobs may be moved for the sake of the whole cluster."""

    AUTO = "auto"
    OFF = "off"


_POLL_CLUSTER_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One installation's settings; every path is absolute.

    ``queue_file`` is None where there are neither shares nor quotas, and no job may refer to a secret.
    ``worker_env``: names, ``*`` for any text, of further variables that workers on this machine inherit.
    ``port`` is None where the first free one from 8080 on is to be taken, ``database`` where the embedded
    Airflow has an SQLite file in its home. ``run_root`` is an fsspec URL or a path. ``lease_s`` is how long
    a lease lives without a heartbeat, ``poll_s`` how often a trigger looks (by default every 2 s with the
    launcher kubernetes, where each look is a call of its API), ``stop_grace_s`` how long
    workers may take to write a checkpoint when asked to stop.
    ``hang_s`` is how long a training may show no step, ``startup_s`` how long a start, or the saving of the finished
    model, may show no progress, ``collective_timeout_s`` how long ranks wait for one another in one exchange.
    ``prepare_above_tokens``: data with more are prepared before the run has GPUs, others by its workers.
    ``restart_s`` is what a move of a running job is taken to cost until its own attempts have shown it,
    ``min_run_s`` the least time between two moves, ``max_moves`` their number in a run, to which every
    ``move_refill_s`` of running adds one.
    ``data_schemes``, ``data_hosts``, ``data_folders``: lists with commas, of what Airflow's processes read for users.
    ``notifiers``: ``module:name`` of the ``frenzy.Notifiers`` of all trainings whose DAG names none.
    """

    home: Path = _DEFAULT_HOME
    host: str = "127.0.0.1"
    port: int | None = None
    database: str | None = None
    dags_folder: Path = CHECKOUT / "dags"
    cluster_file: Path = CHECKOUT / "include/clusters/laptop.yaml"
    pod_rules_file: Path = CHECKOUT / "include/kubernetes/pods.yaml"
    queue_file: Path | None = None
    worker_env: str | None = None
    launcher: LauncherKind = LauncherKind.LOCAL
    kubernetes_conn_id: str = "kubernetes_default"
    run_root: str = str(_DEFAULT_HOME / "runs")
    placement_policy: PlacementPolicy = PlacementPolicy.HAS
    memory_policy: MemoryPolicy = MemoryPolicy.CLOSED_FORM
    lease_s: float = 60.0
    poll_s: float = 0.5
    stop_grace_s: float = 30.0
    hang_s: float = 600.0
    startup_s: float = 900.0
    collective_timeout_s: float = 600.0
    prepare_above_tokens: int = 4_000_000
    elastic: ElasticMoves = ElasticMoves.AUTO
    restart_s: float = MOVES.restart_s
    min_run_s: float = MOVES.min_run_s
    max_moves: int = MOVES.max_moves
    move_refill_s: float = MOVES.refill_s
    data_schemes: str = ",".join(DATA_SCHEMES)
    data_hosts: str = ANY_PUBLIC_HOST
    data_folders: str | None = None
    notifiers: str | None = None

    @property
    def airflow_home(self) -> Path:
        """Airflow's own folder: database, generated keys and passwords, task logs."""
        return self.home / "airflow"

    @property
    def jobs_folder(self) -> Path:
        """Where submitted specifications are kept; a DAG bundle of its own."""
        return self.home / "jobs"

    @property
    def cache_folder(self) -> Path:
        """What can be found out again, and is kept because that takes time."""
        return self.home / "cache"

    @property
    def log_folder(self) -> Path:
        """One log for each of Airflow's components."""
        return self.home / "logs"

    @property
    def pid_folder(self) -> Path:
        """One record for each of Airflow's running components."""
        return self.home / "pids"

    @property
    def workers_folder(self) -> Path:
        """What the local launcher knows of the workers' processes."""
        return self.home / "workers"

    def environment(self) -> dict[str, str]:
        """The variables from which ``load_settings`` makes these settings again."""
        values = ((each.name, getattr(self, each.field)) for each in _VARIABLES)
        return {name: str(value) for name, value in values if value is not None}


def load_settings(environ: Mapping[str, str], extras: Mapping[str, object] = MappingProxyType({})) -> Settings:
    """Settings from ``environ``, else from ``extras``; what is unset or empty in both keeps its default.

    extras: those of the Connection ``frenzy_default``, keyed by the names of the variables. Keys that look like
    no setting are left alone.
    Raises SpecError with every refused variable, its value, what is allowed, and where it stands if that is not
    the environment.
    """
    values: dict[str, Any] = {}
    paths: dict[str, str] = {}
    violations = list(_refused_extras(extras))
    for variable in _VARIABLES:
        text = environ.get(variable.name, "").strip()
        is_extra = not text and variable.is_shared
        text = _text_of(extras.get(variable.name)) if is_extra else text
        if not text:
            continue
        paths[variable.field] = f"{variable.name} in the {EXTRAS_PATH}" if is_extra else variable.name
        try:
            values[variable.field] = variable.read(text, is_extra=is_extra)
        except ValueError:
            allowed = variable.allowed_extra if is_extra else variable.allowed
            violations.append(Violation(path=paths[variable.field], value=variable.show(text), allowed=allowed))
    violations += _contradictions(values, paths)
    if violations:
        raise SpecError(violations)
    if "home" in values and "run_root" not in values:
        values["run_root"] = str(values["home"] / "runs")
    if values.get("launcher") is LauncherKind.KUBERNETES:
        values.setdefault("poll_s", _POLL_CLUSTER_S)
    return Settings(**values)


def _text_of(value: object) -> str:
    """An extra as a variable would have it: a number may stand without quotes, null is unset."""
    return str(value).strip() if _is_plain(value) else ""


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _refused_extras(extras: Mapping[str, object]) -> Iterator[Violation]:
    """What is meant as a setting and is none. Its value is not shown: it may be a secret."""
    shared = variable_names(shared_only=True)
    for key, value in extras.items():
        has_prefix = key.upper().startswith(_PREFIX)
        name = key.upper() if has_prefix else _PREFIX + key.upper()
        if key in shared:
            if value is not None and not _is_plain(value):
                path, kind = f"{key} in the {EXTRAS_PATH}", f"a {type(value).__name__}"
                yield Violation(path=path, value=kind, allowed="give a text or a number")
        elif name in shared:
            yield Violation(path=EXTRAS_PATH, value=repr(key), allowed=f"write {name}")
        elif has_prefix and name in variable_names():
            allowed = "set it in the environment, for each component"
            yield Violation(path=EXTRAS_PATH, value=repr(key), allowed=allowed)
        elif has_prefix:
            yield Violation(path=EXTRAS_PATH, value=repr(key), allowed=f"allowed: {', '.join(shared)}")


def _contradictions(values: Mapping[str, Any], paths: Mapping[str, str]) -> list[Violation]:
    policy = values.get("placement_policy", PlacementPolicy.HAS)
    if "queue_file" not in values or policy in POLICIES_WITH_QUEUES:
        return []
    allowed = f"{' or '.join(POLICIES_WITH_QUEUES)}, which keep the shares and quotas of FRENZY_QUEUES; or unset that"
    return [Violation(path=paths["placement_policy"], value=repr(str(policy)), allowed=allowed)]


def variable_names(*, shared_only: bool = False) -> tuple[str, ...]:
    """Every variable that is read, in the order of the settings' documentation.

    shared_only: without those that a Connection cannot give.
    """
    return tuple(each.name for each in _VARIABLES if each.is_shared or not shared_only)


@dataclass(frozen=True, slots=True)
class _Variable:
    """One setting. ``is_shared``: the Connection may give it; not so what Airflow is started and found by, nor what
    is of one machine alone."""

    name: str
    field: str
    parse: Callable[[str], object]
    allowed: str
    show: Callable[[str], str] = repr
    is_shared: bool = True

    @property
    def allowed_extra(self) -> str:
        """What is allowed in the Connection."""
        return f"{self.allowed}, by its whole path" if self.parse in (_path, _url_or_path) else self.allowed

    def read(self, text: str, *, is_extra: bool) -> object:
        """Raises ValueError. Each process stands in a folder of its own, so an extra's path says where it begins."""
        if is_extra and self._is_relative(text):
            raise ValueError(text)
        return self.parse(text)

    def _is_relative(self, text: str) -> bool:
        is_path = self.parse is _path or (self.parse is _url_or_path and "://" not in text)
        return is_path and not Path(text).expanduser().is_absolute()


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _variables(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_*]+(\s*,\s*[A-Za-z0-9_*]+)*", text) is None:
        raise ValueError(text)
    return text


def _url_or_path(text: str) -> str:
    return text.rstrip("/") if "://" in text else str(_path(text))


def _postgresql_url(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if not separator or scheme.partition("+")[0] != "postgresql":
        raise ValueError(text)
    return text


def _scheme(text: str) -> str:
    """What may be shown of a URL that may hold a password."""
    return repr(f"{text.partition('://')[0][:20]}...")


def _port(text: str) -> int:
    port = int(text)
    if not 1024 <= port <= 65535:
        raise ValueError(text)
    return port


def _count(text: str) -> int:
    if int(text) < 0:
        raise ValueError(text)
    return int(text)


def _positive_duration_s(text: str) -> float:
    seconds = parse_duration_s(float(text) if text.replace(".", "", 1).isdigit() else text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


def _object_path(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is None:
        raise ValueError(text)
    return text


def _listed(text: str) -> str:
    names = [each.strip() for each in text.split(",")]
    if not all(names) or any("://" in each for each in names):
        raise ValueError(text)
    return ",".join(names)


def _folders(text: str) -> str:
    folders = [Path(each).expanduser() for each in _listed(text).split(",")]
    if not all(each.is_absolute() for each in folders):
        raise ValueError(text)
    return ",".join(str(each.resolve()) for each in folders)


def _chosen(name: str, field: str, kind: type[StrEnum]) -> _Variable:
    return _Variable(name, field, kind, f"allowed: {', '.join(kind)}")


def _seconds(name: str, field: str) -> _Variable:
    allowed = "give a time greater than 0, for example 30, 90s or 5m"
    return _Variable(name, field, _positive_duration_s, allowed)


_VARIABLES: Final = (
    _Variable("FRENZY_HOME", "home", _path, "give a folder", is_shared=False),
    _Variable("FRENZY_HOST", "host", str, "give an address of this machine", is_shared=False),
    _Variable("FRENZY_PORT", "port", _port, "give a whole number from 1024 to 65535", is_shared=False),
    _Variable(
        "FRENZY_DATABASE",
        "database",
        _postgresql_url,
        "give a PostgreSQL URL: postgresql://user:password@host/database",
        show=_scheme,
        is_shared=False,
    ),
    _Variable("FRENZY_DAGS", "dags_folder", _path, "give a folder", is_shared=False),
    _Variable("FRENZY_CLUSTER", "cluster_file", _path, "give a cluster file"),
    _Variable("FRENZY_PODS", "pod_rules_file", _path, "give a file of pod rules"),
    _Variable("FRENZY_QUEUES", "queue_file", _path, "give a queue file"),
    _Variable(
        "FRENZY_WORKER_ENV",
        "worker_env",
        _variables,
        "give names of variables, * for any text, commas between them: AWS_*,HF_TOKEN",
        is_shared=False,
    ),
    _chosen("FRENZY_LAUNCHER", "launcher", LauncherKind),
    _Variable("FRENZY_KUBERNETES_CONN_ID", "kubernetes_conn_id", str, "give the id of an Airflow Connection"),
    _Variable("FRENZY_RUN_ROOT", "run_root", _url_or_path, "give a folder or an fsspec URL"),
    _chosen("FRENZY_POLICY", "placement_policy", PlacementPolicy),
    _chosen("FRENZY_MARP_POLICY", "memory_policy", MemoryPolicy),
    _seconds("FRENZY_LEASE_S", "lease_s"),
    _seconds("FRENZY_POLL_S", "poll_s"),
    _seconds("FRENZY_STOP_GRACE_S", "stop_grace_s"),
    _seconds("FRENZY_HANG_S", "hang_s"),
    _seconds("FRENZY_STARTUP_S", "startup_s"),
    _seconds("FRENZY_COLLECTIVE_TIMEOUT_S", "collective_timeout_s"),
    _Variable("FRENZY_PREPARE_ABOVE_TOKENS", "prepare_above_tokens", _count, "give a whole number of tokens from 0 on"),
    _chosen("FRENZY_ELASTIC", "elastic", ElasticMoves),
    _seconds("FRENZY_RESTART_S", "restart_s"),
    _seconds("FRENZY_MIN_RUN_S", "min_run_s"),
    _Variable("FRENZY_MAX_MOVES", "max_moves", _count, "give a whole number from 0 on"),
    _seconds("FRENZY_MOVE_REFILL_S", "move_refill_s"),
    _Variable(
        "FRENZY_NOTIFIERS",
        "notifiers",
        _object_path,
        "give module:name of a frenzy.Notifiers, as in company.notices:told",
    ),
    _Variable(
        "FRENZY_DATA_SCHEMES",
        "data_schemes",
        _listed,
        "give schemes of URLs with commas, as in file,s3,https",
        is_shared=False,
    ),
    _Variable(
        "FRENZY_DATA_HOSTS",
        "data_hosts",
        _listed,
        "give hosts or patterns with commas, as in data.example.com,*.corp; * is any public host",
        is_shared=False,
    ),
    _Variable(
        "FRENZY_DATA_FOLDERS",
        "data_folders",
        _folders,
        "give folders by their whole paths, with commas",
        is_shared=False,
    ),
)
