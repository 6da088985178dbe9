"""The cluster that the tests run on: one of their own, or the one that KUBECONFIG names."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kubernetes import client, config
from tests.kubernetes.certificates import Authority
from tests.kubernetes.recipe import Part
from tests.kubernetes.stand import Stand

from frenzy.cli.embedded.stack_processes import marked_processes
from frenzy.settings import CHECKOUT

_STOP_TIMEOUT_S: Final = 60.0


class NoControlPlaneError(Exception):
    """There is no cluster to test on; the message says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A cluster and the administrator's way to it.

    ``is_own``: made for this test run, so tests may do with it what they like. ``node`` is the name of the real
    node, where the tests made one. ``kubectl`` is the matching program, or whichever is on the path. ``audit_log``
    tells who called (audit.py); None where the server is not ours.
    """

    kubeconfig: Path
    kubectl: str | None
    is_own: bool
    node: str | None
    node_address: str
    node_certificate: Path
    node_key: Path
    audit_log: Path | None = None

    def core_api(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api_client())

    def api_client(self) -> client.ApiClient:
        return config.new_client_from_config(str(self.kubeconfig))

    def serving(self) -> ssl.SSLContext:
        """For a kubelet's endpoint at ``node_address``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.node_certificate, self.node_key)
        return context


@contextmanager
def control_plane(part: Part) -> Iterator[ControlPlane]:
    """The cluster of KUBECONFIG if that is set, else one made now. Raises NoControlPlaneError."""
    given = os.environ.get("KUBECONFIG")
    with given_cluster(Path(given)) if given else own_cluster(part) as cluster:
        yield cluster


@contextmanager
def own_cluster(part: Part) -> Iterator[ControlPlane]:
    """A control plane in a temporary folder. Nothing of it is left after the block, not even a process."""
    folder = Path(tempfile.mkdtemp(prefix="frenzy-k8s-"))
    stand = _start(part, folder)
    try:
        yield _own(_read(stand))
    finally:
        _end(stand)
        shutil.rmtree(folder, ignore_errors=True)
        left = marked_processes("FRENZY_STACK", str(folder))
        assert left == [], f"still running: {left}"


@contextmanager
def given_cluster(kubeconfig: Path) -> Iterator[ControlPlane]:
    """The cluster of ``kubeconfig``; fake nodes listen at this machine's address on the way to it."""
    with tempfile.TemporaryDirectory(prefix="frenzy-k8s-") as folder:
        api = config.new_client_from_config(str(kubeconfig))
        address = _address_towards(api)
        pair = Authority(Path(folder)).issue("fake-nodes", "fake-nodes", hosts=[address])
        yield ControlPlane(
            kubeconfig=kubeconfig,
            kubectl=shutil.which("kubectl"),
            is_own=False,
            node=None,
            node_address=address,
            node_certificate=pair.certificate,
            node_key=pair.key,
        )


def _start(part: Part, folder: Path) -> subprocess.Popen[str]:
    """The process that holds the control plane, in a session of its own: Ctrl-C is for the tests alone."""
    return subprocess.Popen(
        # A closed input tells it to end once it stands; while it still builds, only a signal does.
        ("setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "tests.kubernetes.stand", part, str(folder)),
        cwd=CHECKOUT,
        # What .ci/run ends, should all else fail, carries this name.
        env={**os.environ, "FRENZY_STACK": str(folder), "PYTHONPATH": f"{CHECKOUT / 'plugins'}:{CHECKOUT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(stand: subprocess.Popen[str]) -> None:
    """It stops when nobody holds the other end of its input; when it is killed, the kernel kills the rest."""
    assert stand.stdin is not None and stand.stdout is not None
    stand.stdin.close()
    try:
        stand.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        stand.kill()
        stand.wait()
    stand.stdout.close()


def _read(stand: subprocess.Popen[str]) -> Stand:
    assert stand.stdout is not None
    answer = json.loads(stand.stdout.readline() or '{"error": "it ended without a word"}')
    if "error" in answer:
        raise NoControlPlaneError(f"{answer['error']}; or set KUBECONFIG to a cluster that the tests may use")
    return Stand(**answer)


def _own(stand: Stand) -> ControlPlane:
    return ControlPlane(
        kubeconfig=Path(stand.kubeconfig),
        kubectl=stand.kubectl,
        is_own=True,
        node=stand.node,
        node_address=stand.node_address,
        node_certificate=Path(stand.node_certificate),
        node_key=Path(stand.node_key),
        audit_log=Path(stand.audit_log),
    )


def _address_towards(api: client.ApiClient) -> str:
    """This machine's address as the API server sees it."""
    address = address_towards(urlsplit(api.configuration.host).hostname or "127.0.0.1")
    return address if not ip_address(address).is_loopback else address_beside(_node_addresses(api), address)


def address_beside(nodes: Iterable[str], loopback: str) -> str:
    """Where an API server that a port of this machine leads to reaches it: where its ``nodes`` do, as with kind.

    ``loopback`` where no node is elsewhere: then the API server is here, too.
    """
    for node in nodes:
        with suppress(OSError):  # there is no way to it
            address = address_towards(node)
            if address != node and not ip_address(address).is_loopback:
                return address
    return loopback


def address_towards(host: str) -> str:
    """This machine's address on the way to ``host``; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 443))
        return str(probe.getsockname()[0])


def _node_addresses(api: client.ApiClient) -> list[str]:
    try:
        nodes = client.CoreV1Api(api).list_node().items
    except client.ApiException:  # whoever may not list nodes makes none
        return []
    found = [each for node in nodes for each in node.status.addresses or () if each.type == "InternalIP"]
    return [each.address for each in found if ":" not in each.address]
