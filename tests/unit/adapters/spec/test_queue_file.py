"""The queue file is read strictly, and anew when it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.core.marp_values import virtual

from frenzy.adapters.spec.queue_file import QueueFile, idle_quotas, load_queue_rules, parse_queue_rules
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import SpecError
from frenzy.core.values.queue_rules import Limit, QueueRule, QueueRules, Quota, TeamRule
from frenzy.settings import CHECKOUT

SHIPPED = sorted((CHECKOUT / "include/queues").glob("*.yaml"))


def test_weights_and_quotas_are_read() -> None:
    text = "queues: {night: {weight: 0.5}, day: {max_gpus: 4}, plain: }\nteams: {red: {max_gpus_by_type: {t4: 2}}}"
    assert parse_queue_rules(text) == QueueRules(
        queues=(
            QueueRule(name="night", weight=0.5),
            QueueRule(name="day", quota=Quota(max_gpus=4)),
            QueueRule(name="plain"),
        ),
        teams=(TeamRule(name="red", quota=Quota(max_gpus_by_type=(("t4", 2),))),),
    )


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        ("queues: {a: {weight: 0}}", "queues.a.weight", "more than 0"),
        ("queues: {a: {weight: .inf}}", "queues.a.weight", "finite"),
        ("queues: {a: {wieght: 2}}", "queues.a.wieght", "did you mean 'weight'"),
        ("queues: {A b: {}}", "queues.A b", "lower-case"),
        ("teams: {red: {weight: 2}}", "teams.red.weight", "max_gpus, max_gpus_by_type"),
        ("teams: {red: {max_gpus: -1}}", "teams.red.max_gpus", "at least 0"),
        ("teams: {red: {max_gpus: 1.5}}", "teams.red.max_gpus", "whole number"),
        ("teams: {red: {max_gpus_by_type: {t4: x}}}", "teams.red.max_gpus_by_type.t4", "whole number"),
        ("teams: {'**': {}}", "teams.**", "every other team"),
        ("shares: {}", "shares", "queues, teams"),
        ("[]", "queue file", ""),
        ("{}", "queue file", "queues, teams or both"),
        ("queues: {a: {}, a: {}}", "", "given twice"),
    ],
)
def test_a_refused_field_is_named_with_what_is_allowed(text: str, path: str, allowed: str) -> None:
    with pytest.raises(SpecError) as refusal:
        parse_queue_rules(text)
    (violation,) = refusal.value.violations
    assert path in violation.path
    assert allowed in violation.allowed


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_is_read(path: Path) -> None:
    assert load_queue_rules(path).queues


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="readable YAML"):
        QueueFile(tmp_path / "none.yaml")


def written(path: Path, text: str, *, at_s: int) -> Path:
    path.write_text(text)
    os.utime(path, (at_s, at_s))
    return path


def test_a_change_is_taken_over_and_a_mistake_is_not(tmp_path: Path) -> None:
    path = written(tmp_path / "queues.yaml", "queues: {a: {weight: 1}}", at_s=1)
    source = QueueFile(path)
    written(path, "queues: {a: {weight: 2}}", at_s=2)
    assert source.rules().weight_of("a") == 2
    written(path, "queues: {a: {weight: none}}", at_s=3)
    assert source.rules().weight_of("a") == 2
    path.unlink()
    assert source.rules().weight_of("a") == 2
    written(path, "queues: {a: {weight: 3}}", at_s=4)
    assert source.rules().weight_of("a") == 3


def test_a_quota_for_a_card_that_the_cluster_lacks_is_told_and_one_for_no_card_is_refused() -> None:
    text = "queues: {a: {max_gpus_by_type: {h100: 8, a100-40: 2, t4: 1}}}\nteams: {'*': {max_gpus_by_type: {tpu: 4}}}"
    here, more = (
        Cluster(tuple(virtual(name, 1024) for name in names), ()) for names in (("h100-80", "a100-80", "t4"), ("tpu",))
    )
    with pytest.raises(SpecError) as caught:
        idle_quotas(parse_queue_rules(text), here)
    assert [(each.path, each.value, each.allowed) for each in caught.value.violations] == [
        ("teams.*.max_gpus_by_type", "'tpu'", "the cluster has h100-80, a100-80, t4"),
    ]
    there = "the cluster has h100-80, a100-80, t4, tpu"
    assert idle_quotas(parse_queue_rules(text), here, more) == [
        f"queues.a.max_gpus_by_type: 'h100' limits nothing; {there} (did you mean h100-80?).",
        f"queues.a.max_gpus_by_type: 'a100-40' limits nothing; {there}.",
    ]
    assert idle_quotas(parse_queue_rules("queues: {a: {max_gpus_by_type: {t4: 8}}}"), here) == []


def test_a_job_comes_under_its_queue_and_its_team_or_the_rule_for_all_others() -> None:
    rules = parse_queue_rules(
        "queues: {q: {max_gpus: 8}, free: }\nteams: {red: {max_gpus_by_type: {t4: 2}}, '*': {max_gpus: 4}}"
    )
    assert rules.limits_of("q", "red") == (Limit("queue", "q", None, 8), Limit("team", "red", "t4", 2))
    assert rules.limits_of("free", "blue") == (Limit("team", "blue", None, 4),)
    assert rules.refusals("q") == ()
    (refusal,) = rules.refusals("z")
    assert (refusal.value, refusal.allowed) == ("'z'", "one of q, free")
    assert QueueRules(teams=rules.teams).refusals("z") == ()
