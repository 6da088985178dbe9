"""What the launcher tells a tracker's process."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.values import job

from frenzy.trainer.launch.tracking import own_values


def test_no_value_of_the_jobs_own_variables_is_to_be_told() -> None:
    asked = replace(job(), env={"MODE": "fast"}, secrets={"KEY": "env:KEY", "TOKEN": "env:TOKEN"})
    environ = {"MODE": "fast", "KEY": "first-line\n a longer second line \n", "TOKEN": "abc-123\n", "HOME": "/home/me"}
    assert own_values(asked, environ) == ["a longer second line", "first-line", "abc-123"]
