"""Airflow's audit log: who changed which job or run. For the API server's process only."""

from __future__ import annotations

import json
import logging

from frenzy.web.messages import Act

log = logging.getLogger(__name__)


def note_act(act: Act) -> None:
    """Add a row; where that fails, the server's log has it."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    extra = json.dumps({"particulars": act.particulars}) if act.particulars else None
    row = Log(
        event=act.event,
        owner=act.who,
        owner_display_name=act.who,
        extra=extra,
        dag_id=act.dag_id,
        run_id=act.run_id,
    )
    try:
        with create_session() as session:
            session.add(row)
    except Exception:
        log.exception("Not in the audit log: %s", act)
