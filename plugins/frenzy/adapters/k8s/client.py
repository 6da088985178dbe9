"""The client of Kubernetes' API: a pod's own account inside the cluster, a kubeconfig outside."""

from __future__ import annotations

from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from frenzy.core.errors import PermanentError, Reason, ReasonCode


def core_api() -> client.CoreV1Api:
    """A client of its own, as KUBECONFIG or ``~/.kube/config`` says, else as the pod that this runs in.

    Raises PermanentError where neither is there.
    """
    try:
        return client.CoreV1Api(config.new_client_from_config())
    except ConfigException as no_file:
        return client.CoreV1Api(_own_account(no_file))


def _own_account(no_file: ConfigException) -> client.ApiClient:
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        detail = f"No way to a Kubernetes cluster: {no_file}; and this is no pod ({error})."
        remedy = "Set KUBECONFIG where Airflow's components are started, or run them in the cluster."
        raise PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy)) from error
    return client.ApiClient(configuration)
