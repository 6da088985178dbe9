"""What this machine has: the packages, the settings and their files, the run directories' storage, the driver."""

from __future__ import annotations

import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from frenzy.cli.commands.doctor.findings import Finding, Level, checked, ok, problem, warning
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.queue_rules import NO_RULES, idle_quota
from frenzy.core.values.units import counted, format_bytes
from frenzy.settings import LauncherKind, Settings

_PACKAGE: Final = "frenzy-airflow"
_LEAST_FREE_BYTES: Final = 5 * 1024**3


def findings(settings: Settings) -> Iterator[Finding]:
    """Of everything that can be asked without a server."""
    yield from install()
    read = tuple(checked("settings", lambda: files(settings), "Correct the file that the sentence names."))
    yield from read
    yield from storage(settings.run_root)
    if not any(each.level is Level.PROBLEM for each in read):  # the cluster file says whether a driver is needed
        yield from driver(settings)


def install(requirements: Callable[[], list[str]] = lambda: metadata.requires(_PACKAGE) or []) -> Iterator[Finding]:
    """Python and the packages that this one needs."""
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        needed = [Requirement(each) for each in requirements()]
    except metadata.PackageNotFoundError:
        yield problem("install", f"The package {_PACKAGE} is not installed.", f"pip install {_PACKAGE}")
        return
    wanted = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = [f"{each} (installed: {_version(each.name) or 'none'})" for each in wanted if not _is_met(each)]
    if wrong:
        detail = f"Packages differ from what is needed: {', '.join(wrong)}."
        yield problem("install", detail, f"pip install -U {_PACKAGE}")
    else:
        ours = f"{_PACKAGE} {_version(_PACKAGE)}"
        yield ok("install", f"Python {python}, {ours}, {counted(len(wanted), 'package')} as needed")


def _is_met(requirement: Requirement) -> bool:
    version = _version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def files(settings: Settings) -> Iterator[Finding]:
    """Raises SpecError for the first of the files that is refused."""
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.adapters.spec.queue_file import load_queue_rules

    read, rules = [], NO_RULES
    if settings.queue_file is not None:
        rules = load_queue_rules(settings.queue_file)
        read.append(f"queues {settings.queue_file}")
    if settings.launcher is LauncherKind.LOCAL:
        cluster = load_cluster(settings.cluster_file)
        read.append(f"cluster {settings.cluster_file}")
        for each in rules.unknown_gpu_types(cluster.gpu_types):
            yield warning("settings", f"{settings.queue_file}: {idle_quota(each)}", "Correct it in the queue file.")
    else:
        from frenzy.wiring import pod_rules

        pod_rules(settings)
        read.append(f"pods {settings.pod_rules_file}")
    yield ok("settings", f"launcher {settings.launcher.value}; {'; '.join(read)}")


def storage(run_root: str) -> Iterator[Finding]:
    """Whether run directories can be written, read and removed, and whether there is room."""
    import fsspec

    remedy = "Make the place, give this account the right to write there, or change FRENZY_RUN_ROOT."
    text = uuid.uuid4().hex
    try:
        fs, base = fsspec.core.url_to_fs(run_root)
        place = f"{base.rstrip('/')}/.doctor-{text}"
        fs.makedirs(base, exist_ok=True)
        fs.pipe_file(place, text.encode())
        found = fs.cat_file(place).decode()
        fs.rm_file(place)
    except Exception as error:  # whatever a storage's library says of what it cannot do
        yield problem("storage", f"{run_root} cannot be written: {type(error).__name__}: {error}", remedy)
        return
    if found != text:
        yield problem("storage", f"{run_root} gave back another content than was written.", remedy)
        return
    yield _room(run_root, Path(base) if "file" in fs.protocol else None)


def _room(run_root: str, folder: Path | None) -> Finding:
    if folder is None:
        return ok("storage", f"{run_root} is written, read and cleaned")
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        remedy = "Free space, for example with: frenzy clean --older-than 30"
        return warning("storage", f"{run_root} has {format_bytes(free)} left.", remedy)
    return ok("storage", f"{run_root} is written, read and cleaned; {format_bytes(free)} free")


def driver(settings: Settings) -> Iterator[Finding]:
    """Whether the driver is there where workers on this machine need one. Raises SpecError for a bad cluster file."""
    from frenzy.adapters.spec.cluster_file import load_cluster

    if settings.launcher is not LauncherKind.LOCAL:
        yield ok("driver", "workers run in pods; each rank checks its node's driver before it starts")
        return
    wanted = [each.name for each in load_cluster(settings.cluster_file).gpu_types if each.kind is DeviceKind.CUDA]
    found = _nvidia()
    if found is not None:
        yield ok("driver", found)
    elif wanted:
        detail = f"The cluster file has {', '.join(wanted)}, and this machine has no NVIDIA driver that answers."
        yield problem("driver", detail, "Install it and see that nvidia-smi works, or correct the cluster file.")
    else:
        yield ok("driver", "no NVIDIA driver, and the cluster file has virtual GPUs only")


def _nvidia() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            version, count = _text(pynvml.nvmlSystemGetDriverVersion()), pynvml.nvmlDeviceGetCount()
            cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return f"NVIDIA {version}, CUDA up to {cuda // 1000}.{cuda % 1000 // 10}, {counted(count, 'GPU')}"


def _text(value: str | bytes) -> str:
    return re.sub(r"[^\w.]", "", value.decode() if isinstance(value, bytes) else value)
