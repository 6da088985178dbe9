"""The only place that picks adapters: settings in, use cases' services out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from frenzy.adapters.calibration_file import calibration_of_release, default_calibration
from frenzy.adapters.connection_settings import settings_of_airflow
from frenzy.adapters.files.job_store import FolderJobStore
from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.k8s.inventory.products import cards_sold_as
from frenzy.adapters.k8s.pod_rules import PodRules, load_pod_rules
from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.adapters.local.local_launcher import LocalLauncher
from frenzy.adapters.local.local_preparer import LocalPreparer
from frenzy.adapters.source_settings import source_rules
from frenzy.adapters.spec.cluster_file import ClusterFileInventory
from frenzy.adapters.spec.queue_file import QueueFile
from frenzy.app.inventory import refresh_inventory
from frenzy.app.services import NoQueues, Services
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.scheduling import policy_named
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, TemporaryError
from frenzy.ports import Inventory, Launcher, Preparer, RunStore
from frenzy.settings import ElasticMoves, LauncherKind, Settings

_CORRECTED_AFTER_S: Final = 10.0


class SystemClock:
    """The wall clock."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()


def run_store(settings: Settings) -> RunStore:
    """Where run directories are."""
    return FsspecRunStore(settings.run_root)


def launcher(settings: Settings, core_api: Callable[[], Any] | None = None) -> Launcher:
    """What starts workers. core_api: as ``kubernetes_api``, where the caller has a client already, for one attempt."""
    if settings.launcher is LauncherKind.LOCAL:
        return LocalLauncher(run_store(settings), state=settings.workers_folder, environ=os.environ)
    # Imported only here: the client library of Kubernetes is large.
    from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
    from frenzy.adapters.k8s.launcher.pod_mirror import PodMirror

    rules, api = pod_rules(settings), partial(kubernetes_api, settings.kubernetes_conn_id)
    mirror = PodMirror(rules.namespace, api) if core_api is None else None
    return KubernetesLauncher(run_store(settings), rules, core_api=core_api or api, mirror=mirror)


def preparer(settings: Settings) -> Preparer:
    """What prepares data."""
    if settings.launcher is LauncherKind.LOCAL:
        return LocalPreparer(os.environ)
    # Imported only here: the client library of Kubernetes is large.
    from frenzy.adapters.k8s.launcher.kubernetes_preparer import KubernetesPreparer

    return KubernetesPreparer(pod_rules(settings), core_api=partial(kubernetes_api, settings.kubernetes_conn_id))


def inventory(settings: Settings) -> Inventory:
    """What says which GPUs there are: the cluster file, or where workers are pods the cluster itself."""
    if settings.launcher is LauncherKind.LOCAL:
        return ClusterFileInventory(settings.cluster_file)
    # Imported only here: Kubernetes' client takes seconds.
    from frenzy.adapters.k8s.inventory.kubernetes_inventory import KubernetesInventory

    api = partial(kubernetes_api, settings.kubernetes_conn_id)
    devices = partial(kubernetes_resource_api, settings.kubernetes_conn_id)
    return KubernetesInventory(api, pod_rules(settings), cluster_file=settings.cluster_file, resource_api=devices)


def pod_rules(settings: Settings) -> PodRules:
    """What all pods have in common. Raises SpecError."""
    rules = load_pod_rules(settings.pod_rules_file, stop_grace_s=settings.stop_grace_s)
    return replace(rules, startup_s=settings.startup_s, collective_timeout_s=settings.collective_timeout_s)


def cpus_per_gpu(settings: Settings) -> float:
    """What a worker takes of a node's CPUs for each of its GPUs: what its pod will request. Raises SpecError."""
    return 1.0 if settings.launcher is LauncherKind.LOCAL else pod_rules(settings).cpus_per_gpu


def kubernetes_api(conn_id: str) -> Any:
    """A client of its own through the Airflow Connection ``conn_id``: CoreV1Api for launcher and inventory alike.

    Where the Connection says nothing, or is the default one and does not exist, the service account of the pod
    that this process runs in is used, else KUBECONFIG or ``~/.kube/config``. Raises PermanentError where none is.
    """
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from kubernetes.config.config_exception import ConfigException

    try:
        return KubernetesHook(conn_id=conn_id).core_v1_client
    except ConfigException as error:
        detail = f"No way to a Kubernetes cluster by the Connection {conn_id}, as a pod or by a kubeconfig: {error}"
        remedy = "Make that Connection, set KUBECONFIG for Airflow's components, or run them in the cluster."
        raise PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy)) from error


def kubernetes_resource_api(conn_id: str) -> Any:
    """A client of ``resource.k8s.io/v1``, made and failing as ``kubernetes_api``."""
    from kubernetes.client import ResourceV1Api

    return ResourceV1Api(kubernetes_api(conn_id).api_client)


def services_for(settings: Settings, database_url: str) -> Services:
    """The services over the ledger in the database at ``database_url``."""
    return Services(
        clock=SystemClock(),
        ledger=SqlLedger.at(database_url),
        runs=run_store(settings),
        jobs=FolderJobStore(settings.jobs_folder),
        inventory=inventory(settings),
        calibration=default_calibration(),
        of_release=calibration_of_release,
        sold_as=cards_sold_as,
        policy=policy_named(settings.placement_policy.value, cpus_per_gpu=cpus_per_gpu(settings)),
        marp_policy=settings.memory_policy.value,
        lease_s=settings.lease_s,
        elastic=ElasticRules(
            enabled=settings.elastic is ElasticMoves.AUTO,
            restart_s=settings.restart_s,
            min_run_s=settings.min_run_s,
            max_moves=settings.max_moves,
            refill_s=settings.move_refill_s,
        ),
        queues=NoQueues() if settings.queue_file is None else QueueFile(settings.queue_file),
        sources=source_rules(settings, os.environ),
    )


class OneInstallation:
    """The services of one process: made once, however many ask for them first, and at once.

    The inventory is kept while its first answer fails: it goes on asking by itself, so that a slow or absent
    cluster costs one pair of watches, and the next question may find the answer there.
    """

    def __init__(self, make: Callable[[], Services]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: Services | None = None
        self._is_ready = False

    def services(self) -> Services:
        """Raises what ``make`` or the inventory's first answer raises; the next call tries again."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
        made = self._made
        if not self._is_ready:
            # It may take long: nobody is to wait for the ledger, or for that lock, meanwhile.
            cluster = made.inventory.cluster()
            with made.ledger.transaction() as tx:
                refresh_inventory(tx, cluster, made.inventory.cluster)
            self._is_ready = True
        return made


def _services_of_airflow() -> Services:
    from airflow.configuration import conf

    try:
        settings = settings_of_airflow()
    except SpecError as error:
        # Nothing is wrong with the request: whoever asks is to ask again once a person has corrected the setting.
        raise TemporaryError(error.reason, retry_after_s=_CORRECTED_AFTER_S) from error
    return services_for(settings, str(conf.get("database", "sql_alchemy_conn")))


_INSTALLATION: Final = OneInstallation(_services_of_airflow)


def services() -> Services:
    """This process's services: settings from environment and Connection, the ledger in Airflow's database."""
    return _INSTALLATION.services()
