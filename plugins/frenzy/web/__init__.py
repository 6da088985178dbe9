"""The HTTP face: a thin FastAPI app that Airflow's api-server mounts at ``/frenzy``.

Rule of this package: a handler decodes, calls one use case, encodes. Every route names the
access it needs in one table (``routes``), and every error becomes a reply in one place
(``errors``). Handlers are synchronous: the ledger blocks, so each runs in a worker thread.
"""
