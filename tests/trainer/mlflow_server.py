"""A tracking server of MLflow in small: the calls that a tracker makes, kept in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class KeptRun:
    info: dict[str, Any]
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[tuple[str, int, float]] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        pairs = {name: [{"key": k, "value": v} for k, v in getattr(self, name).items()] for name in ("params", "tags")}
        return {"run": {"info": self.info, "data": pairs}}


@dataclass
class MlflowServer:
    """url, and what clients put there. authorizations: of all calls. refuses: calls that are refused for now."""

    url: str = ""
    runs: dict[str, KeptRun] = field(default_factory=dict)
    experiments: list[str] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    refuses: list[str] = field(default_factory=list)

    def answer(self, call: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """None where there is no such thing."""
        if call == "experiments/get-by-name":
            name = given["experiment_name"]
            is_known = name in self.experiments
            return (
                {"experiment": {"experiment_id": "7", "name": name, "lifecycle_stage": "active"}} if is_known else None
            )
        if call == "experiments/create":
            self.experiments.append(given["name"])
            return {"experiment_id": "7"}
        if call == "runs/create":
            run_id = f"{len(self.runs) + 1:032x}"
            info = {"run_id": run_id, "run_uuid": run_id, "experiment_id": "7", "status": "RUNNING", "start_time": 1}
            self.runs[run_id] = KeptRun({**info, "lifecycle_stage": "active", "artifact_uri": "none", "user_id": ""})
            self._tag(run_id, given.get("tags", ()))
            return self.runs[run_id].shown()
        run = self.runs[given["run_id"]]
        if call == "runs/update":
            run.info["status"] = given.get("status", run.info["status"])
            return {"run_info": run.info}
        if call == "runs/set-tag":
            self._tag(given["run_id"], [given])
        if call == "runs/log-batch":
            self._tag(given["run_id"], given.get("tags", ()))
            run.params.update({each["key"]: each["value"] for each in given.get("params", ())})
            run.points += [(each["key"], int(each["step"]), each["value"]) for each in given.get("metrics", ())]
        return run.shown() if call == "runs/get" else {}

    def _tag(self, run_id: str, tags: Any) -> None:
        self.runs[run_id].tags.update({each["key"]: each["value"] for each in tags})


@contextmanager
def mlflow_server() -> Iterator[MlflowServer]:
    kept = MlflowServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        do_PATCH = do_POST

        def _reply(self, given: dict[str, Any]) -> None:
            kept.authorizations.add(self.headers.get("Authorization"))
            call = urlsplit(self.path).path.partition("/mlflow/")[2]
            is_refused = call in kept.refuses
            found = None if is_refused else kept.answer(call, given)
            code = "REFUSED" if is_refused else "RESOURCE_DOES_NOT_EXIST"
            body = json.dumps({"error_code": code} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield kept
        server.shutdown()
