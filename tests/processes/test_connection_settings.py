"""What Airflow's Connection says reaches every process that reads settings, in the way of each; none has a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.walker import write_cluster

PLUGINS = Path(__file__).parents[2] / "plugins"

_DAG = """
import os
from airflow.sdk import DAG, task
from frenzy.adapters.connection_settings import ConnectionSettings, ask_airflow
from frenzy.airflow.operators.task_group import frenzy_training

with DAG("walk"):
    launch = frenzy_training("job.yaml").children["train.launch"]

with DAG("probe") as dag:
    @task
    def look():
        from airflow.sdk.execution_time import task_runner
        # dag.test parses in this very process, which has asked by now: ask as a task's own process does.
        read = ConnectionSettings(ask_airflow).of(os.environ)
        via = type(task_runner.SUPERVISOR_COMMS).__name__
        print("told", read.launcher, read.placement_policy, read.lease_s, "through", via, flush=True)
    look()

if __name__ == "__main__":
    print("told", type(launch).__name__, launch.kubernetes_conn_id, flush=True)
    print("ended", dag.test().state)
"""
_SERVER = """
from frenzy.adapters.connection_settings import settings_at_hand, settings_of_airflow
from frenzy.core.values.errors import TemporaryError
try:
    read = settings_of_airflow()
except TemporaryError as error:
    read = settings_at_hand()
    print("told", error)
print("told", read.launcher, read.placement_policy, read.lease_s)
"""


_SERVICES = """
from frenzy.core.values.errors import TemporaryError
from frenzy.wiring import services
try:
    services()
except TemporaryError as error:
    print("told", error)
"""


class Home:
    """An Airflow in a folder, whose Connection stands in its database only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str, **environ: str) -> str:
        kept = {name: value for name, value in os.environ.items() if "AIRFLOW" not in name and "FRENZY" not in name}
        dags = self.folder / "dags"
        bundle = {
            "name": "dags",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(dags)},
        }
        given = {
            **kept,
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "PYTHONPATH": str(PLUGINS),
            **environ,
        }
        done = subprocess.run([sys.executable, *command], env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def told(self, *command: str, **environ: str) -> list[str]:
        lines = self.run(*command, **environ).splitlines()
        return [line[line.index("told ") + len("told ") :] for line in lines if "told " in line]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("airflow")
    made = Home(folder)
    made.run("-m", "airflow", "db", "migrate")
    extras = {
        "FRENZY_LAUNCHER": "kubernetes",
        "FRENZY_KUBERNETES_CONN_ID": "gpu_cluster",
        "FRENZY_POLICY": "fifo",
        "FRENZY_LEASE_S": 77,
        "FRENZY_CLUSTER": str(write_cluster(folder)),
    }
    made.run(
        "-m",
        "airflow",
        "connections",
        "add",
        "frenzy_default",
        "--conn-json",
        json.dumps({"conn_type": "http", "extra": extras}),
    )
    (folder / "dags").mkdir()
    (folder / "dags/probe.py").write_text(_DAG, encoding="utf-8")
    return made


def test_a_dag_file_and_a_task_take_them_from_the_database(home: Home) -> None:
    parsed, task = home.told(str(home.folder / "dags/probe.py"))[:2]
    assert parsed == "PodLaunchOperator gpu_cluster"
    assert task.startswith("kubernetes fifo 77.0 through InProcess")


def test_a_server_process_takes_them_from_the_database_and_its_own_environment_first(home: Home) -> None:
    server = {"_AIRFLOW_PROCESS_CONTEXT": "server"}
    assert home.told("-c", _SERVER, **server) == ["kubernetes fifo 77.0"]
    assert home.told("-c", _SERVER, **server, FRENZY_POLICY="backfill") == ["kubernetes backfill 77.0"]


def test_the_command_line_plans_on_the_cluster_of_the_connection(home: Home) -> None:
    spec = PLUGINS.parent / "include/jobs/tiny-shakespeare.yaml"
    assert "t-medium" in home.run("-m", "frenzy.cli.main", "plan", str(spec), "--all")


def test_a_database_out_of_reach_is_told_from_one_without_the_connection(home: Home) -> None:
    away = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.folder}/none/airflow.db"}
    first, *rest = home.told("-c", _SERVER, **away, FRENZY_POLICY="backfill")
    assert "The Connection frenzy_default could not be read: OperationalError" in first
    assert rest[-1] == "local backfill 60.0"


def test_a_refused_setting_is_no_fault_of_the_request_that_meets_it(home: Home) -> None:
    refused = json.dumps({"conn_type": "http", "extra": {"FRENZY_POLICY": "best"}})
    (answer,) = home.told("-c", _SERVICES, _AIRFLOW_PROCESS_CONTEXT="server", AIRFLOW_CONN_FRENZY_DEFAULT=refused)
    assert "FRENZY_POLICY in the extras of the Connection frenzy_default: 'best' is refused" in answer
