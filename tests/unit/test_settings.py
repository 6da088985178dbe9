from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.scheduling import POLICIES
from frenzy.core.values.errors import SpecError
from frenzy.core.values.sources import DATA_SCHEMES
from frenzy.settings import (
    EXTRAS_PATH,
    POLICIES_WITH_QUEUES,
    ElasticMoves,
    LauncherKind,
    MemoryPolicy,
    PlacementPolicy,
    Settings,
    load_settings,
    variable_names,
)

names = st.text(alphabet="abcdefghij0123456789-_", min_size=1, max_size=12)
durations_s = st.floats(min_value=0.25, max_value=86400.0).map(lambda seconds: round(seconds, 2))
policies_and_queues = st.tuples(st.sampled_from(PlacementPolicy), st.none()) | st.tuples(
    st.sampled_from(POLICIES_WITH_QUEUES), names.map(lambda name: Path("/etc") / f"{name}.yaml")
)
settings = st.builds(
    lambda policy_and_queues, **others: Settings(
        placement_policy=policy_and_queues[0], queue_file=policy_and_queues[1], **others
    ),
    policies_and_queues,
    home=names.map(lambda name: Path("/srv") / name),
    port=st.none() | st.integers(1024, 65535),
    database=st.none() | names.map(lambda name: f"postgresql://me:secret@db/{name}"),
    dags_folder=names.map(lambda name: Path("/opt") / name / "dags"),
    cluster_file=names.map(lambda name: Path("/etc") / f"{name}.yaml"),
    launcher=st.sampled_from(LauncherKind),
    run_root=names.map(lambda name: f"s3://{name}/runs") | names.map(lambda name: f"/data/{name}"),
    memory_policy=st.sampled_from(MemoryPolicy),
    lease_s=durations_s,
    poll_s=durations_s,
    stop_grace_s=durations_s,
    hang_s=durations_s,
    startup_s=durations_s,
    collective_timeout_s=durations_s,
    elastic=st.sampled_from(ElasticMoves),
    restart_s=durations_s,
    min_run_s=durations_s,
    max_moves=st.integers(0, 99),
    worker_env=st.none() | st.sampled_from(["HF_TOKEN", "AWS_*, HF_TOKEN"]),
    move_refill_s=durations_s,
    data_schemes=st.lists(st.sampled_from(DATA_SCHEMES), min_size=1).map(",".join),
    data_hosts=st.lists(names, min_size=1).map(",".join),
    notifiers=st.none() | st.just("company.notices:told"),
    data_folders=st.none() | names.map(lambda name: f"/srv/{name},/data"),
)


@given(settings)
def test_a_child_process_reads_the_same_settings(given_settings: Settings) -> None:
    assert load_settings(given_settings.environment()) == given_settings


def test_every_policy_of_the_scheduler_can_be_set() -> None:
    assert set(PlacementPolicy) == set(POLICIES)


def test_an_empty_environment_gives_the_defaults() -> None:
    assert load_settings({}) == Settings()


def test_an_empty_value_counts_as_unset() -> None:
    assert load_settings(dict.fromkeys(variable_names(), " ")) == Settings()


def test_everything_moves_with_the_home(tmp_path: Path) -> None:
    moved = load_settings({"FRENZY_HOME": str(tmp_path)})

    places = (
        moved.airflow_home,
        moved.jobs_folder,
        moved.log_folder,
        moved.pid_folder,
        moved.workers_folder,
        Path(moved.run_root),
    )
    assert all(place.is_relative_to(tmp_path) for place in places)


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    read = load_settings({"FRENZY_HOME": "here", "FRENZY_RUN_ROOT": "there", "FRENZY_CLUSTER": "ours.yaml"})

    assert read.home == tmp_path / "here"
    assert read.run_root == str(tmp_path / "there")
    assert read.cluster_file == tmp_path / "ours.yaml"


@pytest.mark.parametrize("policy", [each for each in PlacementPolicy if each not in POLICIES_WITH_QUEUES])
def test_a_policy_that_keeps_no_queues_is_refused_beside_a_queue_file(policy: PlacementPolicy) -> None:
    with pytest.raises(SpecError, match="has or backfill"):
        load_settings({"FRENZY_QUEUES": "queues.yaml", "FRENZY_POLICY": policy})


@pytest.mark.parametrize(("text", "seconds"), [("45", 45.0), ("0.5", 0.5), ("90s", 90.0), ("2m", 120.0)])
def test_times_are_seconds_or_carry_a_unit(text: str, seconds: float) -> None:
    assert load_settings({"FRENZY_LEASE_S": text}).lease_s == seconds


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("FRENZY_PORT", "80", "1024 to 65535"),
        ("FRENZY_PORT", "web", "1024 to 65535"),
        ("FRENZY_LAUNCHER", "slurm", "local, kubernetes"),
        ("FRENZY_POLICY", "srtf", "has, backfill, fifo, frenzy-paper"),
        ("FRENZY_POLICY", "sia-ilp", "has, backfill, fifo, frenzy-paper"),
        ("FRENZY_MARP_POLICY", "guess", "closed-form, paper"),
        ("FRENZY_LEASE_S", "0", "greater than 0"),
        ("FRENZY_POLL_S", "-1", "greater than 0"),
        ("FRENZY_STOP_GRACE_S", "soon", "greater than 0"),
        ("FRENZY_LEASE_S", "inf", "greater than 0"),
        ("FRENZY_ELASTIC", "yes", "auto, off"),
        ("FRENZY_MAX_MOVES", "-1", "from 0 on"),
        ("FRENZY_WORKER_ENV", "HF_TOKEN;AWS_*", "commas between them"),
    ],
)
def test_a_refused_value_is_named_with_what_is_allowed(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(SpecError) as refusal:
        load_settings({variable: value})

    (violation,) = refusal.value.violations
    assert violation.path == variable
    assert repr(value) == violation.value
    assert allowed in violation.allowed


def test_all_refused_values_are_told_at_once() -> None:
    with pytest.raises(SpecError) as refusal:
        load_settings({"FRENZY_PORT": "0", "FRENZY_POLICY": "none"})

    assert [each.path for each in refusal.value.violations] == ["FRENZY_PORT", "FRENZY_POLICY"]


# the Connection's extras

# What Airflow is started and found by.
ENVIRONMENT_ONLY = (
    *("FRENZY_HOME", "FRENZY_HOST", "FRENZY_PORT", "FRENZY_DATABASE", "FRENZY_DAGS", "FRENZY_WORKER_ENV"),
    *("FRENZY_DATA_SCHEMES", "FRENZY_DATA_HOSTS", "FRENZY_DATA_FOLDERS"),
)
SHARED = tuple(name for name in variable_names() if name not in ENVIRONMENT_ONLY)


@given(settings)
def test_a_connection_gives_the_same_settings_as_the_environment(given_settings: Settings) -> None:
    variables = given_settings.environment()
    extras = {name: value for name, value in variables.items() if name in SHARED}
    environ = {name: value for name, value in variables.items() if name in ENVIRONMENT_ONLY}
    assert load_settings(environ, extras) == given_settings


@given(settings, settings)
def test_the_environment_wins_over_the_connection(mine: Settings, theirs: Settings) -> None:
    environ = mine.environment()
    extras = {name: value for name, value in theirs.environment().items() if name in SHARED and name in environ}
    assert load_settings(environ, extras) == mine


def test_an_empty_variable_leaves_the_connection_its_say() -> None:
    read = load_settings({"FRENZY_LAUNCHER": " "}, {"FRENZY_LAUNCHER": "kubernetes"})
    assert (read.launcher, read.poll_s) == (LauncherKind.KUBERNETES, 2.0)


@pytest.mark.parametrize("value", [90, 90.0, "90", "90s", " 1m30s "])
def test_an_extra_may_be_a_number_or_a_text(value: object) -> None:
    assert load_settings({}, {"FRENZY_LEASE_S": value}).lease_s == 90.0


@pytest.mark.parametrize("value", [None, "", " "])
def test_an_empty_extra_counts_as_unset(value: object) -> None:
    assert load_settings({}, {"FRENZY_LEASE_S": value}) == Settings()


def test_extras_that_look_like_no_setting_are_left_alone() -> None:
    assert load_settings({}, {"timeout": 30, "host": "x", "Authorization": "Bearer x"}) == Settings()


@pytest.mark.parametrize(
    ("extras", "told"),
    [
        (
            {"FRENZY_LAUNCHER": "slurm"},
            f"FRENZY_LAUNCHER in the {EXTRAS_PATH}: 'slurm' is refused; allowed: local, kubernetes",
        ),
        (
            {"FRENZY_RUN_ROOT": "runs"},
            f"FRENZY_RUN_ROOT in the {EXTRAS_PATH}: 'runs' is refused; "
            "give a folder or an fsspec URL, by its whole path",
        ),
        (
            {"FRENZY_LEASE_S": True},
            f"FRENZY_LEASE_S in the {EXTRAS_PATH}: a bool is refused; give a text or a number",
        ),
        ({"launcher": "kubernetes"}, f"{EXTRAS_PATH}: 'launcher' is refused; write FRENZY_LAUNCHER"),
        ({"frenzy_launcher": "kubernetes"}, f"{EXTRAS_PATH}: 'frenzy_launcher' is refused; write FRENZY_LAUNCHER"),
        (
            {"FRENZY_DATABASE": "postgresql://me:geheim@db/x"},
            f"{EXTRAS_PATH}: 'FRENZY_DATABASE' is refused; set it in the environment, for each component",
        ),
        (
            {"FRENZY_PASSWORD": "geheim"},
            f"{EXTRAS_PATH}: 'FRENZY_PASSWORD' is refused; allowed: {', '.join(SHARED)}",
        ),
    ],
)
def test_a_refused_extra_is_named_with_where_it_stands_and_what_is_allowed(
    extras: dict[str, object], told: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        load_settings({}, extras)

    assert [str(each) for each in refusal.value.violations] == [told]
    assert "geheim" not in str(refusal.value)


def test_an_extra_that_the_environment_replaces_is_not_read() -> None:
    read = load_settings({"FRENZY_LAUNCHER": "local"}, {"FRENZY_LAUNCHER": "slurm"})
    assert read.launcher is LauncherKind.LOCAL


def test_a_contradiction_says_which_of_the_two_stands_in_the_connection() -> None:
    with pytest.raises(SpecError) as refusal:
        load_settings({"FRENZY_QUEUES": "/queues.yaml"}, {"FRENZY_POLICY": "fifo"})

    assert [each.path for each in refusal.value.violations] == [f"FRENZY_POLICY in the {EXTRAS_PATH}"]
