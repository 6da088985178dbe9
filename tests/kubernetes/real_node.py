"""One real node on this machine: kubelet, containerd, runc and a bridge, in namespaces that end with it.

The kubelet takes a machine for itself: it writes below /var/log and /run, mounts volumes, sets sysctls and
starts containers that nobody's exit ends. Here it runs with containerd in a mount and a PID namespace of its
own (node_init.py is the first process there). When that first process dies, and it dies with this process,
the kernel kills every container and drops every mount. What outlives a namespace has fixed names, and is put
right before each start and after each end: sysctls, the bridge, empty control groups. So there is one real
node on a machine at a time; a second one waits.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from kubernetes import client, config
from tests.kubernetes import images
from tests.kubernetes.certificates import KeyPair
from tests.kubernetes.components import Layout, Processes, StartError
from tests.kubernetes.debian import CannotBuildError

NAME: Final = "frenzy-test-node"
POD_NETWORK: Final = "10.244.0.0/16"
_BRIDGE: Final = "frenzytest0"
_STATE: Final = Path("/run/frenzy-test-node")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_END_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05
# The kubelet sets all but the last for the whole machine; the bridge plugin sets that.
_SYSCTLS: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
_COMMANDS: Final = {"unshare": "util-linux", "mount": "mount", "ip": "iproute2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealNode:
    """``address`` is where the kubelet listens; pods reach it and each other."""

    name: str
    address: str


def why_no_real_node() -> str | None:
    """What this machine lacks for a kubelet; None where nothing is known to be missing."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    missing = sorted({package for command, package in _COMMANDS.items() if shutil.which(command) is None})
    return f"Debian packages are missing: {', '.join(missing)}" if missing else None


@contextmanager
def real_node(layout: Layout, processes: Processes, admin: Path) -> Iterator[RealNode]:
    """A node that is ready for pods, for the length of the block. ``admin`` is the administrator's kubeconfig.

    Raises CannotBuildError where this machine cannot have one, and StartError.
    """
    lacking = why_no_real_node()
    if lacking:
        raise CannotBuildError(lacking)
    _STATE.mkdir(exist_ok=True)
    with (_STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _clean_up()
        _remember_sysctls()
        try:
            node = RealNode(name=NAME, address=_address())
            processes.start("node", _command(layout, node))
            with config.new_client_from_config(str(admin)) as api:
                processes.wait_until("node", lambda: _is_ready(client.CoreV1Api(api)))
            yield node
        finally:
            processes.stop("node")
            _clean_up()


def _command(layout: Layout, node: RealNode) -> tuple[str, ...]:
    """The node's first process, in namespaces that are gone when it is."""
    serving = layout.authority.issue(
        "kubelet", f"system:node:{node.name}", organisation="system:nodes", hosts=[node.name, node.address]
    )
    settings = layout.folder / "node.json"
    settings.write_text(json.dumps(_settings(layout, node, serving)), encoding="utf-8")
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return (*namespaces, sys.executable, "-m", "tests.kubernetes.node_init", str(settings))


def _settings(layout: Layout, node: RealNode, serving: KeyPair) -> dict[str, object]:
    """What node_init.py starts: see there."""
    folder = layout.folder / "node"
    for each in ("cni", "kubelet"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    socket = folder / "containerd.sock"
    (folder / "containerd.toml").write_text(_containerd_toml(layout, folder, socket), encoding="utf-8")
    (folder / "cni/10-frenzy.conflist").write_text(json.dumps(_cni(folder)), encoding="utf-8")
    (folder / "kubelet.json").write_text(json.dumps(_kubelet_configuration(layout, node, serving)), encoding="utf-8")
    kubelet = (
        layout.program("kubelet"),
        f"--config={folder / 'kubelet.json'}",
        f"--kubeconfig={layout.kubeconfig('kubelet', serving)}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={folder / 'kubelet'}",
        f"--cert-dir={folder / 'kubelet-certificates'}",
        f"--container-runtime-endpoint=unix://{socket}",
        *versioned_flags(layout.version),
    )
    return {
        "containerd": (layout.program("containerd"), "-c", str(folder / "containerd.toml")),
        "ctr": (layout.program("ctr"), "-a", str(socket), "-n", "k8s.io"),
        "images": [str(each) for each in sorted((layout.build / "images").glob("*.tar"))],
        "kubelet": kubelet,
        "path": f"{Path(layout.program('runc')).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
    }


def versioned_flags(version: tuple[int, int]) -> tuple[str, ...]:
    """Of a kubelet: until 1.23 it took docker unless told otherwise; the flag is gone since 1.27."""
    return ("--container-runtime=remote",) if version < (1, 24) else ()


def versioned_settings(version: tuple[int, int]) -> dict[str, object]:
    """Of a kubelet's configuration: newer ones refuse a machine with control groups of version 1 unless told."""
    return {"failCgroupV1": False} if version >= (1, 31) else {}


def _containerd_toml(layout: Layout, folder: Path, socket: Path) -> str:
    return f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  disable_apparmor = true
  # Root in a container or a small virtual machine may lack CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{layout.build}/cni"
  conf_dir = "{folder}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
  # Plain copies, on any file system; the images are small.
  snapshotter = "native"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{layout.program("runc")}"
  SystemdCgroup = false
"""


def _cni(folder: Path) -> dict[str, object]:
    """Pods on one bridge reach each other by address; there is no proxy and no DNS."""
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": POD_NETWORK}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipMasq": False, "hairpinMode": True}
    return {"cniVersion": "0.4.0", "name": "frenzy-test", "plugins": [{**bridge, "ipam": addresses}]}


def _kubelet_configuration(layout: Layout, node: RealNode, serving: KeyPair) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        # Beside its own port there is nothing to listen on.
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "volumePluginDir": str(layout.folder / "node/volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "podCIDR": POD_NETWORK,
        "resolvConf": "/etc/resolv.conf",
        # A developer's nearly full disk is no reason to evict, and no image may be collected: none can be pulled.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        # How old the kubelet's knowledge of the pods' disk use may be; a minute otherwise.
        "volumeStatsAggPeriod": "5s",
        **versioned_settings(layout.version),
    }


def _is_ready(core: client.CoreV1Api) -> bool:
    try:
        node = core.read_node(NAME)
    except client.ApiException as error:
        if error.status == 404:
            return False
        raise
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())
    return ready and not node.spec.taints


def _address() -> str:
    """The first IPv4 address of this machine that is not its loopback; a kubelet refuses that."""
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family.name == "AF_INET" and name != _BRIDGE and not ipaddress.ip_address(each.address).is_loopback:
                return each.address
    raise StartError("this machine has no IPv4 address beside its loopback; a kubelet needs one")


def _remember_sysctls() -> None:
    now = {name: (Path("/proc/sys") / name).read_text().strip() for name in _SYSCTLS}
    (_STATE / "sysctls.json").write_text(json.dumps(now), encoding="utf-8")


def _clean_up() -> None:
    """Take away what a node leaves behind, this one or one that was killed."""
    _remove_cgroups()
    remembered = _STATE / "sysctls.json"
    if remembered.exists():
        for name, value in json.loads(remembered.read_text(encoding="utf-8")).items():
            (Path("/proc/sys") / name).write_text(value)
        remembered.unlink()
    if Path("/sys/class/net", _BRIDGE).exists():
        subprocess.run(("ip", "link", "delete", _BRIDGE), check=True)


def _remove_cgroups() -> None:
    """The kubelet's groups; the kernel may need a moment until the last process is out of them."""
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while groups := [each for tree in _trees() if (each := tree / "kubepods").exists()]:
        for group in groups:
            _remove_empty(group)
        if time.monotonic() > deadline_s:
            raise StartError(f"{groups[0]} has processes that are not ours: this machine runs a kubelet")
        time.sleep(_POLL_S)


def _trees() -> tuple[Path, ...]:
    """Version 2 has one tree of groups, version 1 one for each controller."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return (_CGROUPS,)
    return tuple(each for each in _CGROUPS.iterdir() if each.is_dir() and not each.is_symlink())


def _remove_empty(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)  # noqa: PTH106 (as os.walk gives it)
        except OSError:
            return
