"""One table of endpoints: the server's routes, the client's calls, OpenAPI and the list of rights all come from it.

Rule of this package: it is pure. A row (``endpoints``) says all of an endpoint but what answers it, which is a use case
(``frenzy.web.handlers``).
"""

from __future__ import annotations

from typing import Final

URL_PREFIX: Final = "/frenzy"
"""Where Airflow's API server mounts the app."""
