"""What hostile inputs are thrown at: the readers of text, and the whole API over in-memory ports."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from fastapi.testclient import TestClient
from tests.fuzz.hostile import YAML_TEXTS, as_json, garbled, mutated
from tests.in_memory.sources import FixedInventory
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import API, person_by_header, registration

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.k8s.pod_rules import parse_pod_rules
from frenzy.adapters.spec.cluster_file import load_cluster, parse_cluster_file
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.adapters.spec.queue_file import parse_queue_rules
from frenzy.adapters.spec.yaml_core import FILE, dump_yaml, load_yaml
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import FrenzyError
from frenzy.web.application import create_app

CHECKOUT: Final = Path(__file__).parents[2]
MOST_S: Final = 1.0
READERS: Final[dict[str, Callable[[str], object]]] = {
    "spec": job_from_yaml,
    "cluster": parse_cluster_file,
    "queue": parse_queue_rules,
    "pods": parse_pod_rules,
}
_FOLDERS: Final = {"spec": "jobs", "cluster": "clusters", "queue": "queues", "pods": "kubernetes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An input that did harm: how, and what it was."""

    target: str
    problem: str
    text: str


def texts_of(target: str, count: int, random: Random) -> Iterator[str]:
    """The known attacks, then ``count`` mutations of the checkout's own files."""
    yield from YAML_TEXTS.values()
    good = [each.read_text() for each in sorted((CHECKOUT / "include" / _FOLDERS[target]).rglob("*.yaml"))]
    documents = [load_yaml(each, FILE) for each in good]
    for _ in range(count):
        index = random.randrange(len(good))
        if random.random() < 0.3:
            yield garbled(good[index], random)
        else:
            changed = mutated(documents[index], random)
            yield _as_text(changed, random)


def _as_text(document: Any, random: Random) -> str:
    if random.random() < 0.5:
        return json.dumps(document)
    try:
        return dump_yaml(document)
    except Exception:  # what YAML cannot say, JSON may
        return json.dumps(document)


@contextmanager
def own_time() -> Iterator[Callable[[], float]]:
    """Tells the CPU seconds since it began, without what collecting the objects of earlier tests takes."""
    collects = gc.isenabled()
    gc.disable()
    began = time.process_time()
    try:
        yield lambda: time.process_time() - began
    finally:
        if collects:
            gc.enable()


def read(target: str, text: str) -> Found | None:
    """Nothing, unless reading ``text`` raises what no reader may raise, or takes too long."""
    with own_time() as took:
        try:
            READERS[target](text)
        except FrenzyError as error:
            str(error).encode()
        except Exception as error:
            return Found(target=target, problem=f"{type(error).__name__}: {error}"[:300], text=text)
        took_s = took()
    slow = took_s > MOST_S and target == "spec"
    return Found(target=target, problem=f"took {took_s:.1f} s", text=text) if slow else None


class Api:
    """The app with a run of ``user``'s, asked by them. op: may do everything; ada: what a user may."""

    def __init__(self, user: str = "op", *, marp_policy: str = "closed-form") -> None:
        self.user = user
        cluster = load_cluster(CHECKOUT / "include/clusters/frenzy-paper-288.yaml")
        services = in_memory_services(inventory=FixedInventory(cluster), calibration=default_calibration())
        self.services = replace(services, marp_policy=marp_policy)
        self.http = TestClient(create_app(lambda: self.services, person_by_header), raise_server_exceptions=False)
        job = {"yaml_text": (CHECKOUT / "include/jobs/tiny-shakespeare.yaml").read_text()}
        self.post("/jobs", as_json(job))
        asked = dumps(registration("tiny-shakespeare")).encode()
        self.run_key = self.post("/runs", asked, user="op").json()["run"]["run_key"]
        self.post(f"/runs/{self.run_key}/enqueue", b"", user="op")
        attempt = f"/runs/{self.run_key}/attempts/1"
        self.post(f"{attempt}/launching", b"", user="op")
        progress = {"last_step": 5, "last_loss": 2.5, "step_time_s": 0.1, "measured_peak_bytes": 10**9}
        reason = {"code": "MEMORY_PRESSURE_FORECAST", "detail": "d", "remedy": None}
        result = {"exit_code": 98, "last_step": 5, "total_steps": 100, "checkpoint_step": 5, "detail": "x"}
        finding = {"run_key": self.run_key, "attempt": 1, "workers": "running"}
        whole = json.loads(dumps(registration()))
        self.bodies: Final = {
            "/runs": whole,
            "/plan": whole,
            "/jobs": job,
            f"{attempt}/started": {"launcher_ref": "pid 7"},
            f"{attempt}/progress": progress,
            f"{attempt}/pressure": {
                "reason": reason, "progress": progress, "extra_bytes_per_gpu": 5, "forecast_extra_bytes_per_gpu": 6
            },
            f"{attempt}/end": {"result": result, "reason": reason, "lost_nodes": ["a"], "progress": progress},
            f"/runs/{self.run_key}/cancel": {"reason": reason},
            f"/runs/{self.run_key}/clean": {"older_than_s": 5.0, "models": False, "dry_run": True},
            "/reconcile": {"findings": [finding]},
        }  # fmt: skip

    def post(self, path: str, body: bytes, *, user: str = "") -> Any:
        return self.http.post(f"{API}{path}", content=body, headers={"X-User": user or self.user})

    def requests(self, count: int, random: Random) -> Iterator[tuple[str, bytes]]:
        """The known attacks at every route, then ``count`` mutations of good bodies."""
        for path, good in self.bodies.items():
            yield path, as_json(good)
            for text in YAML_TEXTS.values():
                yield path, text.encode(errors="replace")
                yield path, as_json({"yaml_text": text})
        paths = list(self.bodies)
        for _ in range(count):
            path = random.choice([*paths, "/runs", "/plan", "/plan", "/jobs"])
            good = self.bodies[path]
            if path == "/plan" and random.random() < 0.5:
                good = _with_odd_plan(good, random)
            body = as_json(mutated(good, random))
            yield path, garbled(body.decode(), random).encode(errors="replace") if random.random() < 0.1 else body

    def ask(self, path: str, body: bytes) -> Found | None:
        """Nothing, unless the reply is a 500, is no JSON, or takes too long."""
        with own_time() as took:
            reply = self.post(path, body)
            took_s = took()
        problem = f"took {took_s:.1f} s" if took_s > MOST_S else "" if reply.status_code < 500 else reply.text
        try:
            reply.json() if reply.content else None
            if "NaN" in reply.text or "Infinity" in reply.text:
                json.loads(reply.text, parse_constant=_refuse)
        except ValueError as error:
            problem = f"the reply is no JSON: {error}"
        return Found(target=path, problem=problem[:300], text=body.decode(errors="replace")) if problem else None


def _refuse(word: str) -> None:
    raise ValueError(word)


def _with_odd_plan(good: dict[str, Any], random: Random) -> dict[str, Any]:
    """Much to plan, and little that fits."""
    job, config = dict(good["job"]), dict(good["model_config"])
    job["training"] = {
        **job["training"],
        "global_batch_size": random.choice([1, 720_720, 524_288, 1_000_000, 999_983]),
        "gradient_checkpointing": random.choice(["auto", "off"]),
        "max_steps": random.choice([1, 10**9]),
    }
    job["constraints"] = {
        **job["constraints"],
        "gpu_types": random.choice([[], ["t4"], ["none"]]),
        "max_gpus": random.choice([None, 1]),
        "max_cost": random.choice([None, 1e-9, 1e12]),
        "deadline": random.choice([None, "2020-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]),
    }
    for name in ("n_embd", "n_head", "n_layer", "vocab_size", "n_positions", "n_inner"):
        config[name] = random.choice([config[name], config[name], 1, 64, 10_000, 2**20, 2**31])
    return {**good, "job": job, "model_config": config}
