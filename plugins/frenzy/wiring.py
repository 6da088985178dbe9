"""The only place that picks adapters: settings in, use cases' services out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from frenzy.adapters.calibration import default_calibration
from frenzy.adapters.cluster_file import ClusterFileInventory
from frenzy.adapters.k8s.pod_rules import PodRules, load_pod_rules
from frenzy.adapters.local.launcher import LocalLauncher
from frenzy.adapters.memory import FixedQueues
from frenzy.adapters.queue_file import QueueFile
from frenzy.adapters.storage.job_store import FolderJobStore
from frenzy.adapters.storage.run_store import FsspecRunStore
from frenzy.adapters.storage.sql_ledger import SqlLedger
from frenzy.app.inventory import refresh_inventory
from frenzy.app.services import Services
from frenzy.core.has import policy_named
from frenzy.core.moves import ElasticRules
from frenzy.ports import Inventory, Launcher, RunStore
from frenzy.settings import ElasticMoves, LauncherKind, Settings, load_settings


class SystemClock:
    """The wall clock."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()


def run_store(settings: Settings) -> RunStore:
    """Where run directories are."""
    return FsspecRunStore(settings.run_root)


def launcher(settings: Settings, core_api: Callable[[], Any] | None = None) -> Launcher:
    """What starts workers. core_api: as ``kubernetes_api``, where the caller has a client already."""
    if settings.launcher is LauncherKind.LOCAL:
        return LocalLauncher(run_store(settings), environ=os.environ)
    # Imported only here: the client library of Kubernetes is large.
    from frenzy.adapters.k8s.launcher import KubernetesLauncher

    api = core_api or partial(kubernetes_api, settings.kubernetes_conn_id)
    return KubernetesLauncher(run_store(settings), pod_rules(settings), core_api=api)


def inventory(settings: Settings) -> Inventory:
    """What says which GPUs there are: the cluster file, or where workers are pods the cluster itself."""
    if settings.launcher is LauncherKind.LOCAL:
        return ClusterFileInventory(settings.cluster_file)
    # Imported only here: Kubernetes' client takes seconds.
    from frenzy.adapters.k8s.client import core_api
    from frenzy.adapters.k8s.inventory import KubernetesInventory

    return KubernetesInventory(core_api, pod_rules(settings), cluster_file=settings.cluster_file)


def pod_rules(settings: Settings) -> PodRules:
    """What all pods have in common. Raises SpecError."""
    return load_pod_rules(settings.pod_rules_file, stop_grace_s=settings.stop_grace_s)


def kubernetes_api(conn_id: str) -> Any:
    """CoreV1Api through the Airflow Connection ``conn_id``; the default one need not exist.

    Then the service account of the pod that this process runs in is used, or KUBECONFIG.
    """
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

    return KubernetesHook(conn_id=conn_id).core_v1_client


def services_for(settings: Settings, database_url: str) -> Services:
    """The services over the ledger in the database at ``database_url``."""
    return Services(
        clock=SystemClock(),
        ledger=SqlLedger.at(database_url),
        runs=run_store(settings),
        jobs=FolderJobStore(settings.jobs_folder),
        inventory=inventory(settings),
        calibration=default_calibration(),
        policy=policy_named(settings.placement_policy.value),
        marp_policy=settings.memory_policy.value,
        lease_s=settings.lease_s,
        elastic=ElasticRules(
            enabled=settings.elastic is ElasticMoves.AUTO,
            restart_s=settings.restart_s,
            min_run_s=settings.min_run_s,
            max_moves=settings.max_moves,
            refill_s=settings.move_refill_s,
        ),
        queues=FixedQueues() if settings.queue_file is None else QueueFile(settings.queue_file),
    )


@cache
def services() -> Services:
    """This process's services: settings from the environment, the ledger in Airflow's database."""
    from airflow.configuration import conf

    made = services_for(load_settings(os.environ), str(conf.get("database", "sql_alchemy_conn")))
    made.inventory.cluster()  # the first answer may take long: nobody is to wait for the ledger meanwhile
    with made.ledger.transaction() as tx:
        refresh_inventory(tx, made)
    return made
