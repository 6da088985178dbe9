"""The tests' own control plane: it comes up, it is built once, and nothing of it stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.eventually import eventually
from tests.kubernetes import build
from tests.kubernetes.build import built
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
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": f"{CHECKOUT / 'plugins'}:{CHECKOUT}"}
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
    monkeypatch.setenv("FRENZY_TEST_KUBERNETES_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    unfinished = tmp_path / f"{build.name_of(Part.API)}.unfinished-x"
    unfinished.mkdir()

    with pytest.raises(CannotBuildError, match="apt"):
        built(Part.API)

    whole = tmp_path / build.name_of(Part.FULL)
    whole.mkdir()
    assert built(Part.API) == whole, "what is built in full serves for the smaller part, too"
