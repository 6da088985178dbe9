"""Where the ranks meet: node 0 binds a free port and says so in the run directory, once all nodes are ready."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Final

from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import env, files, heartbeats
from frenzy.trainer.launch.local_ranks import LocalRanks

_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Address and port; ``listener`` is node 0's bound socket, so that nobody can take the port."""

    address: str
    port: int
    listener: socket.socket | None


def meet(spec: LaunchSpec, ranks: LocalRanks) -> Rendezvous:
    """Where the ranks of all nodes meet; to be called when this node is ready. Raises TemporaryError.

    Ranks wait for one another only as long as for any exchange. Nodes get ready at times of their own, as their
    machines, images and downloads come.
    """
    paths, attempt = RunPaths(spec.run_dir), spec.attempt
    if not ranks.is_first_node:
        files.write_text(paths.ready(attempt, ranks.node_rank), "ready")
        return find_rendezvous(paths.rendezvous(attempt), signs_at=paths.heartbeat(attempt, 0))
    for other in range(1, 1 if ranks.is_only_machine else len(spec.gpus_per_node)):
        heartbeats.wait_for(paths.ready(attempt, other), signs_at=paths.heartbeat(attempt, other), what="get ready")
    return open_rendezvous(paths.rendezvous(attempt), single_machine=ranks.is_only_machine)


def open_rendezvous(place: str, *, single_machine: bool) -> Rendezvous:
    """Bind a free port on node 0 and publish it at ``place``."""
    address = env.node_address(single_machine=single_machine)
    listener = _listener("127.0.0.1" if address == "127.0.0.1" else "")
    port = int(listener.getsockname()[1])
    files.write_text(place, json.dumps({"address": address, "port": port}))
    return Rendezvous(address=address, port=port, listener=listener)


def find_rendezvous(place: str, *, signs_at: str) -> Rendezvous:
    """Wait for node 0's word; signs_at: where its signs of progress are. Raises TemporaryError when none comes."""
    found = json.loads(heartbeats.wait_for(place, signs_at=signs_at, what="say where the ranks meet"))
    return Rendezvous(address=str(found["address"]), port=int(found["port"]), listener=None)


def _listener(address: str) -> socket.socket:
    """A bound socket, for both kinds of addresses where other machines come: pods may have the newer kind alone."""
    if address or not socket.has_dualstack_ipv6():
        return socket.create_server((address, 0), backlog=_BACKLOG)
    return socket.create_server(("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
