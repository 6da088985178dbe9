"""The Connection type *Frenzy*: which server the tasks report to, as whom, and whether that works."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from frenzy.adapters.api_client import ApiClient
from frenzy.airflow.connection import DEFAULT_CONN_ID, api_client
from frenzy.api import endpoints as api
from frenzy.core.values.errors import FrenzyError

_PATIENCE_S = 5.0


class FrenzyHook(BaseHook):
    """A client of the API that the Connection names; one of the type *HTTP* does as well."""

    conn_name_attr = "frenzy_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "frenzy"
    hook_name = "Frenzy"

    def __init__(self, frenzy_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.frenzy_conn_id = frenzy_conn_id

    def get_conn(self) -> ApiClient:
        return api_client(self.frenzy_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """What Airflow's button *Test* says: the server answers, and the user may report for tasks."""
        try:
            types = self.get_conn().send(api.gpus(), patience_s=_PATIENCE_S).types
            self.get_conn().send(api.reconcile_targets(), patience_s=_PATIENCE_S)
        except FrenzyError as error:
            remedy = f" {error.reason.remedy}" if error.reason.remedy else ""
            return False, f"{error.reason.code}: {error.reason.sentence}{remedy}"
        return True, f"The server answers; it knows {sum(each.num_gpus for each in types)} GPUs."
