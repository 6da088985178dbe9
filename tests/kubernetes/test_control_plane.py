"""The tests' own control plane: it comes up, it is built once, and nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.eventually import eventually
from tests.kubernetes import build, real_node
from tests.kubernetes.build import BINARIES, PROGRAMS, built, version_of
from tests.kubernetes.certificates import Authority
from tests.kubernetes.components import Layout, controller_manager, scheduler
from tests.kubernetes.control_plane import ControlPlane, address_beside
from tests.kubernetes.debian import CannotBuildError
from tests.kubernetes.recipe import Part

from frenzy.cli.embedded.stack_processes import marked_processes
from frenzy.settings import CHECKOUT

_KILLED = """
import os, signal
from tests.kubernetes.recipe import Part
from tests.kubernetes.control_plane import own_cluster
with own_cluster(Part.API) as cluster:
    print(cluster.kubeconfig.parent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def own(control_plane: ControlPlane) -> ControlPlane:
    if not control_plane.is_own:
        pytest.skip("KUBECONFIG is given: no control plane is made")
    return control_plane


def test_it_answers_and_its_kubectl_reaches_it(own: ControlPlane) -> None:
    assert own.kubectl is not None
    asked = (own.kubectl, f"--kubeconfig={own.kubeconfig}", "get", "--raw=/readyz")
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "ok"


def test_nothing_is_left_of_a_run_that_was_killed(own: ControlPlane) -> None:
    command = (sys.executable, "-c", _KILLED)
    environ = {**os.environ, "PYTHONPATH": f"{CHECKOUT / 'plugins'}:{CHECKOUT}"}
    killed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, env=environ)
    folder = Path(killed.stdout.strip())
    assert folder.name.startswith("frenzy-k8s-"), killed.stderr

    eventually(lambda: marked_processes("FRENZY_STACK", str(folder)) == [])
    assert not folder.exists()


def test_an_api_server_behind_a_port_of_this_machine_finds_it_where_its_nodes_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"127.0.0.1": "127.0.0.1", "10.0.0.5": "10.0.0.5", "172.18.0.2": "172.18.0.1"}
    monkeypatch.setattr("tests.kubernetes.control_plane.address_towards", ways.__getitem__)
    assert address_beside(["172.18.0.2"], "127.0.0.1") == "172.18.0.1", "a container of kind's"
    assert address_beside(["127.0.0.1", "10.0.0.5"], "127.0.0.1") == "127.0.0.1", "nodes that are this machine"
    assert address_beside([], "127.0.0.1") == "127.0.0.1"


def test_a_build_is_taken_from_the_cache_as_soon_as_it_is_there_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BINARIES, raising=False)
    monkeypatch.setenv("FRENZY_TEST_KUBERNETES_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    unfinished = tmp_path / f"{build.name_of(Part.API)}.unfinished-x"
    unfinished.mkdir()

    with pytest.raises(CannotBuildError, match="apt"):
        built(Part.API)

    whole = tmp_path / build.name_of(Part.FULL)
    whole.mkdir()
    assert built(Part.API) == whole, "what is built in full serves for the smaller part, too"


# binaries that are given


def test_given_binaries_are_taken_as_they_are_and_missing_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BINARIES, str(tmp_path))
    give(tmp_path, *PROGRAMS[Part.API][:-1], version="v1.36.2")
    with pytest.raises(CannotBuildError, match=f"{BINARIES}.*lacks {PROGRAMS[Part.API][-1]}"):
        built(Part.API)
    give(tmp_path, PROGRAMS[Part.API][-1], version="v1.36.2")
    assert built(Part.API) == tmp_path
    assert version_of(tmp_path) == (1, 36)
    with pytest.raises(CannotBuildError, match="kubelet"):
        built(Part.FULL)


def give(folder: Path, *programs: str, version: str) -> None:
    for each in programs:
        (folder / each).write_text(f"#!/bin/sh\necho Kubernetes {version}\n", encoding="utf-8")
        (folder / each).chmod(0o755)


@pytest.mark.parametrize(
    ("version", "old_flags"), [((1, 20), {"--port=0", "--container-runtime=remote"}), ((1, 36), set())]
)
def test_flags_follow_the_version(tmp_path: Path, version: tuple[int, int], old_flags: set[str]) -> None:
    layout = Layout(
        build=tmp_path,
        version=version,
        folder=tmp_path,
        port=1,
        etcd_port=2,
        etcd_peer_port=3,
        authority=Authority(tmp_path / "certificates"),
    )
    given = {
        *controller_manager(
            layout, kubeconfig=tmp_path, tokens=layout.authority.token_signer(), nodes_may_be_silent=True
        ),
        *scheduler(layout, kubeconfig=tmp_path),
        *real_node.versioned_flags(version),
    }
    assert given & {"--port=0", "--container-runtime=remote"} == old_flags
    assert ("failCgroupV1" in real_node.versioned_settings(version)) == (version >= (1, 31))
