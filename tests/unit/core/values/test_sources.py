"""From where data may be read: what can be said of a source by its text alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fsspec.core import split_protocol
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.app.playing import make_job

from frenzy.core.values.errors import SpecError
from frenzy.core.values.job import CheckpointSpec, DataSpec, ModelSpec, ValidationSpec
from frenzy.core.values.sources import SourceRules, address_problem, check_sources, links, path_problem

RULES = SourceRules(closed=("/srv/frenzy/airflow", "/srv/frenzy/jobs"), run_root="/srv/frenzy/runs")


def is_refused(place: str, rules: SourceRules = RULES) -> bool:
    try:
        check_sources(replace(make_job(), data=DataSpec(path=place)), rules)
    except SpecError as error:
        assert [each.path for each in error.violations][0] == "data.path"
        return True
    return False


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:8080/frenzy/api/v1/runs",
        "https://127.0.0.1:8080/x",
        "https://user@127.0.0.1/x",
        "https://example.com\\@127.0.0.1/x",
        "https://localhost/x",
        "https://a.localhost./x",
        "https://2130706433/x",
        "https://0x7f000001/x",
        "https://0177.0.0.1/x",
        "https://127.1/x",
        "https://0/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://[64:ff9b::7f00:1]/x",
        "https://[2002:7f00:1::]/x",
        "https://[fe80::1%25eth0]/x",
        "https://[fd00:ec2::254]/x",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/x",
        "https://224.0.0.1/x",
        "https://100.64.0.1/x",
        "HTTPS://127.0.0.1/x",
        "simplecache::https://127.0.0.1/x",
        "simplecache::https://example.com/x",
        "zip://*.txt::https://127.0.0.1/x.zip",
        "zip://*.txt::file:///srv/frenzy/airflow/x.zip",
        "filecache::simplecache::https://127.0.0.1/x",
        "reference::/data/index.json",
        "memory://x",
        "git://x",
        "github://owner:repo@/x",
        "sftp://host/x",
        "ftp://host/x",
        "dask://x",
        "data:text/plain,hello",
        "local:///proc/self/environ",
        "file:///proc/self/environ",
        "/proc/self/environ",
        "/sys/class/net",
        "/dev/zero",
        "/run/secrets/kubernetes.io/serviceaccount/token",
        "/srv/frenzy/airflow/secrets.json",
        "/srv/frenzy/jobs/victim.yaml",
        "/srv/frenzy/runs/victim/checkpoints/step-5",
        "/srv/frenzy/runs",
    ],
)
def test_what_a_user_may_not_have_is_not_read_for_him(place: str) -> None:
    assert is_refused(place)


@pytest.mark.parametrize(
    "place",
    [
        "include/data/*.txt",
        "/data/books",
        "/dev/shm/books",
        "file:///data/books",
        "s3://bucket/books/*.parquet",
        "hf://datasets/owner/name/train.jsonl",
        "https://example.com/books.txt",
        "https://8.8.8.8/books.txt",
        "/srv/frenzy/runs/0123456789ab/model/words.txt",
        "/srv/frenzy/airflow-data/words.txt",
    ],
)
def test_usual_sources_are_read(place: str) -> None:
    assert not is_refused(place)


def test_an_administrator_names_hosts_schemes_and_folders() -> None:
    named = replace(RULES, hosts=("data.corp", "10.*"), schemes=("file", "http", "zip"), folders=("/data",))
    assert not is_refused("http://data.corp/x", named)
    assert not is_refused("zip://*.txt::http://10.1.2.3/x.zip", named)
    assert is_refused("http://example.com/x", named)
    assert is_refused("http://127.0.0.1/x", named)
    assert is_refused("s3://bucket/x", named)
    assert is_refused("/srv/books", named)
    assert not is_refused("/data/books", named)


def test_a_refused_place_is_shown_whole_or_not_at_all() -> None:
    """A part of a text that is masked where it stands whole would pass the mask."""
    secret = "s3cr3t-" * 40
    with pytest.raises(SpecError) as refusal:
        check_sources(replace(make_job(), data=DataSpec(path=f"https://127.0.0.1/?token={secret}")), RULES)
    assert "s3cr3t" not in refusal.value.violations[0].value
    assert "characters" in refusal.value.violations[0].value


def test_every_field_that_is_read_is_looked_at() -> None:
    job = replace(
        make_job(),
        model=ModelSpec(path="http://127.0.0.1/model", tokenizer="/proc/self"),
        checkpoint=CheckpointSpec(warm_start="https://127.0.0.1/model"),
    )
    with pytest.raises(SpecError) as refusal:
        check_sources(job, RULES)
    assert [each.path for each in refusal.value.violations] == [
        "model.path",
        "model.tokenizer",
        "checkpoint.warm_start",
    ]


@pytest.mark.parametrize("revision", ["../airflow", "/etc", "~", "a/../b", ""])
def test_a_revision_is_no_path(revision: str) -> None:
    with pytest.raises(SpecError, match=r"model\.revision"):
        check_sources(replace(make_job(), model=ModelSpec(hub_id="acme/tiny", revision=revision)), RULES)


def test_a_commit_a_branch_and_a_pull_request_are_revisions() -> None:
    for revision in ("0123456789abcdef0123456789abcdef01234567", "main", "refs/pr/7", "v1.0-rc_2"):
        check_sources(replace(make_job(), model=ModelSpec(hub_id="acme/tiny", revision=revision)), RULES)


@pytest.mark.parametrize("hub_id", ["/etc", "../airflow", "~/x", "a/b/c", "."])
def test_a_hub_id_is_no_path(hub_id: str) -> None:
    with pytest.raises(SpecError, match=r"model\.hub_id"):
        check_sources(replace(make_job(), model=ModelSpec(hub_id=hub_id)), RULES)


@given(st.ip_addresses(v=4))
def test_an_address_inside_an_ipv6_one_is_judged_as_itself(address: object) -> None:
    def is_bad(text: str) -> bool:
        return address_problem("host", text) is not None

    assert is_bad(f"::ffff:{address}") == is_bad(str(address))


@given(st.text(alphabet="ab:/.1_", max_size=12).filter(lambda text: "::" not in text))
def test_schemes_are_told_as_fsspec_tells_them(place: str) -> None:
    (link,) = links(place)
    scheme, rest = split_protocol(place)
    assert (link.scheme, link.rest) == (scheme or "file", rest)


def test_a_folder_whose_name_begins_like_a_closed_one_is_not_closed() -> None:
    assert path_problem("/procession", RULES) is None


def test_held_out_data_are_a_source_like_the_training_data() -> None:
    with pytest.raises(SpecError) as refused:
        check_sources(replace(make_job(), validation=ValidationSpec(path="/srv/frenzy/airflow/airflow.db")), RULES)
    assert [each.path for each in refused.value.violations] == ["validation.path"]
