"""The calls of the Kubernetes API, where an answer is no plain yes."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from kubernetes.client.exceptions import ApiException

from frenzy.adapters.k8s.launcher.pods import Pods


class RefusingNodes:
    """Answers every question for a node with ``status``."""

    def __init__(self, status: int) -> None:
        self._status = status

    def read_node(self, _name: str, **_options: Any) -> NoReturn:
        raise ApiException(status=self._status)


@pytest.mark.parametrize(("status", "is_silent"), [(404, True), (403, False)])
def test_a_node_that_is_gone_is_silent_and_one_that_may_not_be_read_is_not_said_to_be(
    status: int, is_silent: bool
) -> None:
    pods = Pods("train", lambda: RefusingNodes(status))  # type: ignore[arg-type,return-value]
    assert pods.node_is_silent("gpu-1") is is_silent
