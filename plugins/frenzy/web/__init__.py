"""The HTTP face: a thin FastAPI app that Airflow's api-server mounts at ``/frenzy``.

Rule of this package: its routes are the endpoints of ``frenzy.api``, each answered by one use case (``handlers``), and
every error becomes a reply in one place (``errors``). Handlers are synchronous: the ledger blocks, so each runs in a
worker thread.
"""
