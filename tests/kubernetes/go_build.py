"""Compiles Kubernetes out of Debian's source tree with Debian's Go; no module is downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kubernetes.debian import CannotBuildError

GO_PACKAGES: Final = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
COMPONENTS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
VERSION: Final = "1.20.2"

_IMPORT_PATH: Final = "k8s.io/kubernetes"
_OPENAPI_MARK: Final = "+k8s:openapi-gen="
_SOURCES: Final = Path(__file__).parent / "go"
# Their types are in no API of the server; the upstream Makefile leaves them out too.
_WITHOUT_OPENAPI: Final = ("code-generator", "sample-apiserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTree:
    """Kubernetes' source at the place where Go looks for it, and the Go that compiles it.

    ``root`` is where Debian's packages were unpacked, ``work`` holds GOPATH, caches and temporary files.
    """

    root: Path
    work: Path

    @property
    def kubernetes(self) -> Path:
        return self.work / "gopath/src" / _IMPORT_PATH

    def adopt(self, tree: Path) -> None:
        """Move Debian's source ``tree`` into GOPATH and mend what Go 1.19 breaks."""
        self.kubernetes.parent.mkdir(parents=True)
        tree.rename(self.kubernetes)
        self._renew_reflect2()
        shutil.copytree(_SOURCES, self.kubernetes / "cmd/frenzy-tests")

    def generate_openapi(self) -> None:
        """Write the API's schema as Go code; upstream's repository carries it, Debian's source does not."""
        generator = self.work / "openapi-gen"
        self._go("build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        packages = ",".join(f"{_IMPORT_PATH}/{each}" for each in self._packages_with_openapi())
        options = {
            "-i": packages,
            "-p": f"{_IMPORT_PATH}/pkg/generated/openapi",
            "-O": "zz_generated.openapi",
            "-h": "vendor/k8s.io/code-generator/hack/boilerplate.go.txt",
            "-r": str(self.work / "violations"),
        }
        self._run(str(generator), "--logtostderr", *(part for pair in options.items() for part in pair))

    def compile(self, into: Path, *, with_kubelet: bool) -> None:
        """One program below ``into``, and a link for each component that it can be called by."""
        into.mkdir(parents=True, exist_ok=True)
        tags = ("providerless", "kubelet") if with_kubelet else ("providerless",)
        flags = ("-tags", ",".join(tags), "-ldflags", _link_flags())
        self._go("build", *flags, "-o", str(into / "kubernetes"), "./cmd/frenzy-tests")
        for name in (*COMPONENTS, "kubelet") if with_kubelet else COMPONENTS:
            (into / name).symlink_to("kubernetes")

    def compile_pause(self, into: Path) -> None:
        self._go("build", "-ldflags", "-s -w", "-o", str(into / "pause"), "./cmd/frenzy-tests/pause")

    def _renew_reflect2(self) -> None:
        """The vendored reflect2 1.0.1 panics on every JSON answer under Go 1.18 and newer; Debian has 1.0.2."""
        vendored = self.kubernetes / "vendor/github.com/modern-go/reflect2"
        newer = self.root / "usr/share/gocode/src/github.com/modern-go/reflect2"
        for old in _go_files(vendored):
            old.unlink()
        for new in _go_files(newer):
            if not new.name.endswith("_test.go"):
                shutil.copy(new, vendored)

    def _packages_with_openapi(self) -> list[str]:
        """Folders with types for the schema, relative to the tree, as imported (staging is seen in vendor)."""
        staging = Path("staging/src/k8s.io")
        modules = (each.name for each in (self.kubernetes / staging).iterdir())
        places = [Path("pkg"), Path("cmd"), Path("plugin")]
        places += [staging / name for name in modules if name not in _WITHOUT_OPENAPI]
        found = {folder for place in places for folder in _folders_marked(self.kubernetes, place)}
        return sorted(each.replace("staging/src/", "vendor/") for each in found)

    def _go(self, *arguments: str) -> None:
        self._run(str(self.root / "usr/lib/go-1.19/bin/go"), *arguments)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.kubernetes, env=self._environ(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CannotBuildError(f"`{' '.join(command)[:120]}` failed: {done.stderr.strip()[-1000:]}")

    def _environ(self) -> dict[str, str]:
        temporary = self.work / "tmp"
        temporary.mkdir(exist_ok=True)
        goroot = self.root / "usr/lib/go-1.19"
        return {
            "PATH": f"{goroot}/bin:{os.environ['PATH']}",
            "HOME": str(self.work),
            "GOROOT": str(goroot),
            "GOPATH": str(self.work / "gopath"),
            "GOCACHE": str(self.work / "gocache"),
            "GOTMPDIR": str(temporary),
            # Everything is vendored: as before modules, without a network, without a C compiler.
            "GO111MODULE": "off",
            "GOPROXY": "off",
            "GOFLAGS": "",
            "CGO_ENABLED": "0",
            # The compiler's own garbage collection, less often: a quarter less time for a few hundred MB.
            "GOGC": "400",
        }


def _link_flags() -> str:
    """Without debug information, and with the version that the API server tells its clients."""
    server = "k8s.io/kubernetes/vendor/k8s.io/component-base/version"
    client = "k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version"
    major, minor, _ = VERSION.split(".")
    values = {
        f"{server}.gitVersion": f"v{VERSION}",
        f"{server}.gitMajor": major,
        f"{server}.gitMinor": minor,
        f"{client}.gitVersion": f"v{VERSION}",
    }
    return " ".join(("-s", "-w", *(f"-X {name}={value}" for name, value in values.items())))


def _folders_marked(tree: Path, place: Path) -> Iterator[str]:
    for file in (tree / place).rglob("*.go"):
        if _may_be_marked(file) and _OPENAPI_MARK in file.read_text(encoding="utf-8"):
            yield str(file.parent.relative_to(tree))


def _may_be_marked(file: Path) -> bool:
    return not (
        file.name.endswith("_test.go")
        or file.name.startswith("zz_generated")
        or "_examples" in file.parts
        # staging is read once, not again through the links that vendor holds
        or file.is_symlink()
    )


def _go_files(folder: Path) -> Iterable[Path]:
    return [*folder.glob("*.go"), *folder.glob("*.s")]
