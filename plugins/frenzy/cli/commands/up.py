"""``frenzy up``: Airflow on this machine, with addresses and logins."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frenzy.cli.render.console import out

if TYPE_CHECKING:
    from frenzy.cli.embedded.health import ComponentStatus
    from frenzy.cli.embedded.stack import Stack
    from frenzy.settings import Settings


# What is printed takes a moment, too: a line comes at least every five seconds.
_SILENCE_S: Final = 4.5


def up(
    status: Annotated[bool, typer.Option("--status", help="Only say what runs; start nothing.")] = False,
) -> int:
    """Start Airflow here (or find it running) and print its address and logins."""
    from frenzy.cli.embedded.stack import Stack
    from frenzy.settings import load_settings

    stack = Stack(load_settings(os.environ))
    if status:
        return show_status(stack)
    _check_files(stack.settings)
    console = out()
    if not stack.is_running():
        console.print(f"Starting Airflow in {stack.settings.home} ...", style="dim")
    with told_while(stack, "Airflow starts"):
        stack.start()
    show_address(stack)
    console.print("Stop it with: frenzy down (in a checkout: make down)", style="dim")
    return 0


@contextmanager
def told_while(stack: Stack, what: str, every_s: float = _SILENCE_S) -> Iterator[None]:
    """During the block, every so many seconds a line: what happens, for how long, and what is waited for."""
    is_over, began_s = Event(), time.monotonic()

    def tell() -> None:
        while not is_over.wait(every_s):
            out().print(f"  {what}, for {time.monotonic() - began_s:.0f} s: {stack.doing}", style="dim")

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


def _check_files(settings: Settings) -> None:
    """Raises SpecError for a bad queue file or cluster file now, rather than at the first job."""
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.adapters.spec.queue_file import load_queue_rules
    from frenzy.settings import LauncherKind

    if settings.queue_file is not None:
        load_queue_rules(settings.queue_file)
    if settings.launcher is LauncherKind.LOCAL:
        load_cluster(settings.cluster_file)


def show_address(stack: Stack) -> None:
    """Where Airflow answers, and which people may log in."""
    from frenzy.cli.embedded.airflow_env import SERVICE_USER, users_of

    console = out()
    console.print(f"Airflow:  {stack.base_url}", style="bold")
    for user, role in users_of(os.environ).items():
        if user != SERVICE_USER:
            console.print(f"  login {user:<7} password {stack.password(user)}   ({role})")


def show_status(stack: Stack) -> int:
    """One line for each component; exit status 1 when one of them is not healthy."""
    console = out()
    components = stack.status()
    for each in components:
        console.print(f"  {each.name:<14} {state_of(each)}")
    if stack.is_supervised():
        console.print(f"  health page    {stack.supervisor_state().get('health_url')}")
    else:
        console.print("  Nothing starts a component again that dies. To have that: frenzy up")
    if all(each.is_healthy for each in components):
        show_address(stack)
        return 0
    console.print(f"Home: {stack.settings.home}. Start it with: frenzy up", style="dim")
    return 1


def state_of(component: ComponentStatus) -> str:
    """One component in words: does it run, does it answer, and did it die before."""
    from frenzy.cli.embedded.stack import START_TIMEOUT_S

    if component.pid is None:
        state = "not running"
    elif component.is_healthy:
        state = f"pid {component.pid}, healthy"
    elif time.time() - component.started_s < START_TIMEOUT_S:
        state = f"pid {component.pid}, starting"
    else:
        state = f"pid {component.pid}, does not answer"
    return "; ".join(filter(None, (state, restarts_of(component))))


def restarts_of(component: ComponentStatus) -> str:
    """How often it was started again, and how it last died; empty when it never died."""
    from frenzy.cli.render.tables import local_time

    known = component.restarts
    if not known.count:
        return ""
    return f"restarted {known.count} x, last {local_time(known.last_s)} ({known.last_exit})"
