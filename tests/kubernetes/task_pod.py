"""A pod of Airflow's KubernetesExecutor on a fake node: its command runs on this machine, with the pod's variables."""

from __future__ import annotations

import subprocess
import sys
import threading

from tests.kubernetes.plays import Container, End, Pod

_WORKER = "airflow-worker"
# What an image has beside the variables of a pod.
_OF_THE_IMAGE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_POLL_S = 0.2


def is_task_pod(pod: Pod) -> bool:
    return _WORKER in pod["metadata"]["labels"]


def task_of(pod: Pod) -> tuple[str, str]:
    """The DAG and the task of the pod."""
    said = pod["metadata"]["annotations"]
    return said["dag_id"], said["task_id"]


def task_pod(container: Container) -> End:
    """Body of a ``Performs``: nothing of this process's own environment reaches the task."""
    python, *arguments = container.command
    assert python == "python", container.command
    environ = {**_OF_THE_IMAGE, **container.env}
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        reader = threading.Thread(target=_log, args=(process, container), daemon=True)
        reader.start()
        while process.poll() is None and not container.stopping.wait(_POLL_S):
            pass
        process.terminate()
        code = process.wait()
        reader.join()
    return End(exit_code=128 - code if code < 0 else code)


def _log(process: subprocess.Popen[str], container: Container) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        container.log(line.rstrip())
