"""Packages and sources of one Debian release, fetched and unpacked into a folder; nothing is installed.

apt runs on a configuration and on lists of its own, so neither the machine's packages nor its list of
sources are touched, and no root is needed. The release is fixed: what is built is the same on a newer
Debian, as long as its mirror still carries the release.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

RELEASE: Final = "bookworm"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TOOLS: Final = {
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "dpkg-source": "dpkg-dev",
    "patch": "patch",
    "setpriv": "util-linux",
}


class CannotBuildError(Exception):
    """This machine cannot fetch or build the control plane; the message says what is missing."""


def mirror() -> str:
    """The address of a Debian mirror: FRENZY_TEST_DEBIAN_MIRROR, else the one this machine's apt uses.

    Raises CannotBuildError where there is none, or where a tool or Debian's keys are missing.
    """
    _require_tools()
    given = os.environ.get("FRENZY_TEST_DEBIAN_MIRROR")
    if given:
        return given
    query = ("apt-get", "indextargets", "Created-By: Packages", "Origin: Debian", "--format", "$(REPO_URI)")
    known = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    if not known:
        raise CannotBuildError("apt knows no Debian mirror (set FRENZY_TEST_DEBIAN_MIRROR to one)")
    return known[0]


def _require_tools() -> None:
    missing = sorted({package for tool, package in _TOOLS.items() if not _on_path(tool)})
    if missing:
        raise CannotBuildError(f"Debian packages are missing: {', '.join(missing)}")
    if not _KEYRING.exists():
        raise CannotBuildError(f"{_KEYRING} is missing (Debian package debian-archive-keyring)")


def _on_path(tool: str) -> bool:
    return any(Path(folder, tool).exists() for folder in (*os.get_exec_path(), "/usr/sbin", "/sbin"))


class DebianArchive:
    """Debian's archive as seen through apt, with all of apt's state below ``folder``."""

    def __init__(self, folder: Path, mirror: str) -> None:
        self._debs = folder / "debs"
        self._environ = {**os.environ, "APT_CONFIG": str(_write_configuration(folder, mirror))}
        self._debs.mkdir(parents=True, exist_ok=True)
        self._apt("update", folder=folder)

    def unpack(self, packages: Iterable[str], into: Path) -> None:
        """Download ``packages`` and unpack them below ``into``; their scripts do not run."""
        self._apt("download", *packages, folder=self._debs)
        for package in sorted(self._debs.glob("*.deb")):
            _run(("dpkg-deb", "-x", str(package), str(into)), folder=into)

    def source(self, package: str, into: Path) -> Path:
        """Download the source of ``package``, unpack it below ``into`` with Debian's patches; its folder."""
        into.mkdir(parents=True, exist_ok=True)
        self._apt("source", package, folder=into)
        (tree,) = (each for each in into.iterdir() if each.is_dir())
        return tree

    def _apt(self, *arguments: str, folder: Path) -> None:
        _run(("apt-get", "-qq", *arguments), folder=folder, environ=self._environ)


def _write_configuration(folder: Path, mirror: str) -> Path:
    """apt's own file tree below ``folder``; returns the file that APT_CONFIG names."""
    for each in ("etc/preferences.d", "etc/apt.conf.d", "state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "state/status").touch()
    entry = f"[signed-by={_KEYRING}] {mirror} {RELEASE} main\n"
    (folder / "etc/sources.list").write_text(f"deb {entry}deb-src {entry}", encoding="utf-8")
    options = {
        "Dir::Etc": folder / "etc",
        "Dir::Etc::sourcelist": "sources.list",
        "Dir::Etc::sourceparts": "none",
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "state/status",
        "Dir::Cache": folder / "cache",
        # apt's own user may not write where we let it.
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    path = folder / "apt.conf"
    path.write_text("".join(f'{name} "{value}";\n' for name, value in options.items()), encoding="utf-8")
    return path


def _run(command: tuple[str, ...], *, folder: Path, environ: dict[str, str] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuildError(f"`{' '.join(command)[:200]}` failed: {(done.stderr or done.stdout).strip()[-500:]}")
