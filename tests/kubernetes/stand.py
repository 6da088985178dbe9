"""Brings up one control plane, says where it is, and takes it down again.

    python -m tests.kubernetes.stand [api|full] [FOLDER]

A process of its own, so that everything ends with whoever asked for it: it stops when its standard input
is closed (the kernel does that also for a pytest that was killed), or at SIGINT or SIGTERM. Should it be
killed itself, the kernel kills the components with it. For use by hand keep the terminal open; Ctrl-D or
Ctrl-C ends it.

It prints one line of JSON: a ``Stand``, or ``{"error": ...}`` with exit code 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select
from typing import Final

import httpx
from tests.kubernetes import components
from tests.kubernetes.build import built, version_of
from tests.kubernetes.certificates import Authority, KeyPair
from tests.kubernetes.components import HOST, Layout, Processes, StartError
from tests.kubernetes.debian import CannotBuildError
from tests.kubernetes.real_node import RealNode, real_node
from tests.kubernetes.recipe import Part

from frenzy.cli.embedded.tcp_ports import reserved_port

_LOOK_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a control plane is. Paths are strings, since this goes through JSON.

    ``kubeconfig`` is the administrator's; ``node_certificate`` and ``node_key`` serve a kubelet's endpoint
    at ``node_address`` so that the API server trusts it; ``node`` is the real node's name, where there is one.
    """

    kubeconfig: str
    kubectl: str
    logs: str
    audit_log: str
    node_address: str
    node_certificate: str
    node_key: str
    node: str | None


@contextmanager
def standing(part: Part, folder: Path) -> Iterator[tuple[Stand, Processes]]:
    """A control plane below ``folder`` for the length of the block. Raises CannotBuildError and StartError."""
    build = built(part)
    environ = {**os.environ, "FRENZY_STACK": os.environ.get("FRENZY_STACK", str(folder))}
    with ExitStack() as stack:
        layout = Layout(
            build=build,
            version=version_of(build),
            folder=folder,
            port=stack.enter_context(reserved_port(HOST, None)),
            etcd_port=stack.enter_context(reserved_port(HOST, None)),
            etcd_peer_port=stack.enter_context(reserved_port(HOST, None)),
            authority=Authority(folder / "certificates"),
        )
        processes = stack.enter_context(Processes(folder / "logs", environ))
        admin = layout.authority.issue("admin", "admin", organisation="system:masters")
        _start_control_plane(layout, processes, admin, nodes_may_be_silent=part is Part.API)
        kubeconfig = layout.kubeconfig("admin", admin)
        node = stack.enter_context(real_node(layout, processes, kubeconfig)) if part is Part.FULL else None
        yield _described(layout, kubeconfig, node), processes


def _start_control_plane(layout: Layout, processes: Processes, admin: KeyPair, *, nodes_may_be_silent: bool) -> None:
    issue, tokens = layout.authority.issue, layout.authority.token_signer()
    client = _client(layout, admin)
    processes.start("etcd", components.etcd(layout))
    processes.wait_until("etcd", lambda: _answers(httpx.Client(), f"http://{HOST}:{layout.etcd_port}/health"))
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", HOST, "10.96.0.1")
    command = components.api_server(
        layout,
        serving=issue("api-server", "kube-apiserver", hosts=names),
        kubelet_client=issue("kubelet-client", "kube-apiserver-kubelet-client", organisation="system:masters"),
        tokens=tokens,
    )
    processes.start("kube-apiserver", command)
    processes.wait_until("kube-apiserver", lambda: _answers(client, f"{layout.server}/readyz"))
    manager = layout.kubeconfig("controller-manager", issue("controller-manager", "system:kube-controller-manager"))
    command = components.controller_manager(
        layout, kubeconfig=manager, tokens=tokens, nodes_may_be_silent=nodes_may_be_silent
    )
    processes.start("kube-controller-manager", command)
    scheduler = layout.kubeconfig("scheduler", issue("scheduler", "system:kube-scheduler"))
    processes.start("kube-scheduler", components.scheduler(layout, kubeconfig=scheduler))
    account = f"{layout.server}/api/v1/namespaces/default/serviceaccounts/default"
    processes.wait_until("kube-controller-manager", lambda: _answers(client, account))
    client.close()


def _client(layout: Layout, admin: KeyPair) -> httpx.Client:
    trust = ssl.create_default_context(cafile=layout.authority.certificate)
    trust.load_cert_chain(admin.certificate, admin.key)
    return httpx.Client(verify=trust, trust_env=False)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url, timeout=5.0).is_success
    except httpx.TransportError:
        return False


def _described(layout: Layout, kubeconfig: Path, node: RealNode | None) -> Stand:
    address = node.address if node else HOST
    serving = layout.authority.issue("fake-nodes", "fake-nodes", hosts=[address])
    return Stand(
        kubeconfig=str(kubeconfig),
        kubectl=layout.program("kubectl"),
        logs=str(layout.folder / "logs"),
        audit_log=str(layout.audit_log),
        node_address=address,
        node_certificate=str(serving.certificate),
        node_key=str(serving.key),
        node=node.name if node else None,
    )


def _wait_for_the_end(processes: Processes) -> None:
    """Until standard input is closed. Raises StartError when a component ends before that."""
    while True:
        ended = processes.first_ended()
        if ended:
            raise StartError(ended)
        readable, _, _ = select([sys.stdin.fileno()], [], [], _LOOK_S)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def main(arguments: list[str]) -> int:
    part = Part(arguments[0]) if arguments else Part.API
    folder = Path(arguments[1] if len(arguments) > 1 else tempfile.mkdtemp(prefix="frenzy-kubernetes-")).absolute()
    for number in _SIGNALS:
        signal.signal(number, _stop)
    try:
        with standing(part, folder) as (stand, processes):
            _say(asdict(stand))
            _wait_for_the_end(processes)
            _ignore_signals()
    except (CannotBuildError, StartError) as error:
        _say({"error": str(error)})
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _stop(number: int, _frame: object) -> None:
    _ignore_signals()
    raise KeyboardInterrupt(signal.Signals(number).name)


def _ignore_signals() -> None:
    """Once it has begun to take down, nothing may cut that short."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _say(content: dict[str, object]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
