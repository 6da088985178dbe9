"""The services over in-memory ports, and jobs that run on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.sources import FakeClock
from tests.unit.app.moving import ScriptedScheduler, on_small, run_on
from tests.unit.app.playing import Airflow, make_job
from tests.unit.installation import in_memory_services

from frenzy.core.lifecycle.moves import ElasticRules


@pytest.fixture
def airflow() -> Airflow:
    clock = FakeClock()
    return Airflow(services=in_memory_services(clock=clock), clock=clock)


@pytest.fixture
def scheduler() -> ScriptedScheduler:
    return ScriptedScheduler()


@pytest.fixture
def anywhere(airflow: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """The same, but allowed on all GPUs of the cluster."""
    job = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(job, scheduler, make_job("anywhere"), 2, step=20)
    return job


@pytest.fixture
def long(airflow: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """A job that runs on both GPUs of node a."""
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    long = replace(airflow, services=services)
    run_on(long, scheduler, on_small("long"), 2, step=20)
    return long
