"""The components of the control plane: their commands as values, and what starts and ends them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.kubernetes.audit import write_policy
from tests.kubernetes.build import program_of
from tests.kubernetes.certificates import Authority, KeyPair, login, trusted_by, write_kubeconfig

HOST: Final = "127.0.0.1"
_SERVICES: Final = "10.96.0.0/16"
_START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.1
# Tests wait for what these two do, and nobody else does: let them work as fast as they can.
_UNHURRIED: Final = ("--kube-api-qps=1000", "--kube-api-burst=2000")


class StartError(Exception):
    """A component did not come up; the message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where one control plane lives: its build of ``version``, its folder, its ports and its certificates."""

    build: Path
    version: tuple[int, int]
    folder: Path
    port: int
    etcd_port: int
    etcd_peer_port: int
    authority: Authority

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.jsonl"

    @property
    def server(self) -> str:
        return f"https://{HOST}:{self.port}"

    def program(self, name: str) -> str:
        return str(program_of(self.build, name))

    def kubeconfig(self, user: str, pair: KeyPair) -> Path:
        return write_kubeconfig(
            self.folder / f"{user}.kubeconfig",
            server=self.server,
            trust=trusted_by(self.authority.certificate),
            user=login(pair),
        )


def etcd(layout: Layout) -> tuple[str, ...]:
    clients, peers = f"http://{HOST}:{layout.etcd_port}", f"http://{HOST}:{layout.etcd_peer_port}"
    return (
        layout.program("etcd"),
        f"--data-dir={layout.folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        # Nothing outlives the test: a power cut may take it.
        "--unsafe-no-fsync",
    )


def api_server(layout: Layout, *, serving: KeyPair, kubelet_client: KeyPair, tokens: KeyPair) -> tuple[str, ...]:
    return (
        layout.program("kube-apiserver"),
        f"--etcd-servers=http://{HOST}:{layout.etcd_port}",
        f"--bind-address={HOST}",
        f"--secure-port={layout.port}",
        f"--advertise-address={HOST}",
        # There is one of it, and no pod asks for it by its Service.
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={_SERVICES}",
        f"--cert-dir={layout.folder / 'api-server'}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={layout.authority.certificate}",
        f"--service-account-key-file={tokens.certificate}",
        f"--service-account-signing-key-file={tokens.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--kubelet-certificate-authority={layout.authority.certificate}",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={write_policy(layout.folder / 'audit-policy.yaml')}",
        f"--audit-log-path={layout.audit_log}",
    )


def controller_manager(
    layout: Layout, *, kubeconfig: Path, tokens: KeyPair, nodes_may_be_silent: bool
) -> tuple[str, ...]:
    """``nodes_may_be_silent``: a node that sends no heartbeat stays as it says it is (fake nodes send none)."""
    silence = ("--node-monitor-grace-period=1000h",) if nodes_may_be_silent else ()
    return (
        layout.program("kube-controller-manager"),
        f"--kubeconfig={kubeconfig}",
        f"--root-ca-file={layout.authority.certificate}",
        f"--service-account-private-key-file={tokens.key}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        *_no_ports(layout.version),
        *_UNHURRIED,
        *silence,
    )


def scheduler(layout: Layout, *, kubeconfig: Path) -> tuple[str, ...]:
    return (
        layout.program("kube-scheduler"),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        *_no_ports(layout.version),
        *_UNHURRIED,
    )


def _no_ports(version: tuple[int, int]) -> tuple[str, ...]:
    """Nobody asks the controllers or the scheduler anything. Until 1.22 each had a port without TLS, too."""
    return ("--secure-port=0", *(("--port=0",) if version < (1, 23) else ()))


class Processes:
    """Processes that end with the block they are started in, or with this process, however it ends."""

    def __init__(self, logs: Path, environ: Mapping[str, str]) -> None:
        self._logs = logs
        self._environ = dict(environ)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for name in reversed(self._started):
            self.stop(name)

    def start(self, name: str, command: tuple[str, ...]) -> None:
        """Start ``command`` with its log in ``<logs>/<name>.log``; the kernel kills it when this process dies."""
        with (self._logs / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                ("setpriv", "--pdeathsig", "KILL", *command),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self, name: str) -> None:
        """Kill the component: it keeps nothing that is needed again."""
        if name in self._started:
            self._started[name].kill()
            self._started[name].wait()

    def wait_until(self, name: str, is_ready: Callable[[], bool]) -> None:
        """Returns once ``is_ready`` for the component ``name``; raises StartError when it ends or takes too long."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not is_ready():
            if self._started[name].poll() is not None:
                raise StartError(f"{name} ended with exit code {self._started[name].returncode}:\n{self._tail(name)}")
            if time.monotonic() > deadline_s:
                raise StartError(f"{name} was not ready after {_START_TIMEOUT_S:.0f} s:\n{self._tail(name)}")
            time.sleep(_POLL_S)

    def first_ended(self) -> str | None:
        """The name of a component that runs no more, with the end of its log; None while all run."""
        for name, process in self._started.items():
            if process.poll() is not None:
                return f"{name} ended with exit code {process.returncode}:\n{self._tail(name)}"
        return None

    def _tail(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
