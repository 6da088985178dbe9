"""``frenzy metrics``: the server's metrics, once or on a port of their own.

Prometheus cannot log in to Airflow, whose tokens end after a day; this command can.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated, Any

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import err
from frenzy.core.values.errors import FrenzyError


def metrics(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Serve them there until interrupted.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
) -> int:
    """Queue, GPUs, memory and ends of attempts in Prometheus' text format."""
    with connect() as api:
        if port is None:
            sys.stdout.write(api.ask(endpoints.metrics()))
            return 0
        with server(api, host, port) as listening:
            err().print(f"http://{host}:{listening.server_port}/metrics")
            listening.serve_forever()
    return 0


def server(api: Api, host: str, port: int) -> HTTPServer:
    """What answers each scrape with what ``api`` says then."""

    class Scrape(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                content = api.ask(endpoints.metrics()).encode()
            except FrenzyError as error:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error.reason.code))
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """A scrape every few seconds is no news."""

    return HTTPServer((host, port), Scrape)
