"""Images and deployment files: linted, and every name in one of them is the name in the others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from frenzy.adapters.k8s.pod_rules import load_pod_rules
from frenzy.cli.embedded.installation import airflow_variables, dag_bundles
from frenzy.settings import CHECKOUT, Settings, load_settings, variable_names

DOCKER = CHECKOUT / "docker"
IMAGES = ("airflow", "trainer")
AIRFLOW_UID = TRAINER_UID = "1000:1000"
every_image = pytest.mark.parametrize("image", IMAGES)


def instructions(image: str) -> list[tuple[str, str]]:
    """(instruction, its text) of a Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in _dockerfile(image).splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() if line.strip() for word, _, rest in [line.partition(" ")]]


def last_stage(image: str) -> list[tuple[str, str]]:
    found = instructions(image)
    start = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def environment_of(image: str) -> dict[str, str]:
    """The variables that the image's last stage sets."""
    texts = (text for word, text in last_stage(image) if word == "ENV")
    pairs = (pair for text in texts for pair in re.findall(r"([A-Z_]+)=('[^']*'|\S+)", text))
    return {name: value.strip("'") for name, value in pairs}


def _dockerfile(image: str) -> str:
    return (DOCKER / image / "Dockerfile").read_text(encoding="utf-8")


def pins(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


# images


@every_image
def test_hadolint_has_nothing_to_say(image: str) -> None:
    tool = Path(sys.executable).parent / "hadolint"
    if not tool.is_file():
        pytest.skip("hadolint is not in this environment: make env")
    said = subprocess.run([tool, DOCKER / image / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, "")


@every_image
def test_the_base_is_pinned_and_used_for_every_stage(image: str) -> None:
    (base,) = (text for word, text in instructions(image) if word == "ARG" and text.startswith("PYTHON_IMAGE="))
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-bookworm", base)
    assert {text.split(" ")[0] for word, text in instructions(image) if word == "FROM"} == {"${PYTHON_IMAGE}"}


@every_image
def test_the_image_runs_as_a_user_that_is_not_root(image: str) -> None:
    users = [text for word, text in last_stage(image) if word == "USER"]
    assert users == [AIRFLOW_UID if image == "airflow" else TRAINER_UID]
    rules = load_pod_rules(CHECKOUT / "include/kubernetes/pods.yaml", stop_grace_s=30.0)
    assert f"{rules.run_as_user}:{rules.run_as_group}" == TRAINER_UID


@every_image
def test_nothing_is_built_in_the_last_stage_and_packages_come_from_the_lock(image: str) -> None:
    assert not [text for word, text in last_stage(image) if word == "RUN" and "pip install" in text]
    built = " ".join(text for word, text in instructions(image) if word == "RUN")
    assert "-r requirements.lock" in built and "torch_wheel.py requirements.lock" in built and "pip check" in built
    assert f"docker/{image}/requirements.lock" in _dockerfile(image)


@every_image
def test_everything_that_is_copied_is_there_and_reaches_the_builder(image: str) -> None:
    kept = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = [
        source
        for word, text in instructions(image)
        if word == "COPY" and "--from=" not in text
        for source in text.split()[:-1]
        if not source.startswith("--") and source != "."
    ]
    assert sources
    for source in sources:
        assert (CHECKOUT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in kept), source


def test_what_a_build_from_the_context_needs_reaches_the_builder() -> None:
    kept = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "dags",
        "docs",
        "include",
        "plugins",
    } <= kept
    assert not {each for each in kept if not (CHECKOUT / each).exists()}


def test_the_airflow_image_is_set_up_as_init_sets_up() -> None:
    told = environment_of("airflow")
    settings = load_settings(told)
    wanted = airflow_variables(Path(told["AIRFLOW_HOME"]), settings)
    assert json.loads(told["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]) == dag_bundles(settings)
    assert {name: told[name] for name in wanted if "BUNDLE" not in name} == {
        name: value for name, value in wanted.items() if "BUNDLE" not in name
    }


def test_the_entrypoint_hides_the_passwords_it_writes(tmp_path: Path) -> None:
    passwords = '{"admin": "geheim"}'
    shown = subprocess.run(
        ["sh", str(DOCKER / "airflow/entrypoint.sh"), "env"],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "FRENZY_AIRFLOW_PASSWORDS": passwords},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (file,) = tmp_path.iterdir()
    assert f"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE={file}" in shown
    assert "geheim" not in shown
    assert (file.read_text(encoding="utf-8"), file.stat().st_mode & 0o777) == (passwords, 0o600)


# built without a registry


@pytest.fixture
def played_builder(tmp_path: Path) -> Path:
    """A folder of programs that only note how they are called; root, for ``id``."""
    folder, said = tmp_path / "bin", tmp_path / "said"
    folder.mkdir()
    for name, more in (("buildah", 'case "$1" in inspect) exit 1;; from) echo held;; esac'), ("mmdebstrap", "")):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{said}\n{more}\n')
    (folder / "id").write_text("#!/bin/sh\necho 0\n")
    for each in folder.iterdir():
        each.chmod(0o755)
    return folder


def build_images(builder: Path, *images: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKOUT / "scripts/build_images.sh", *images],
        env={"PATH": f"{builder}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_images_are_built_from_a_base_of_their_own_and_tried(played_builder: Path) -> None:
    done = build_images(played_builder, FRENZY_BUILD_OPTIONS="--volume /a:/a:ro")
    assert done.returncode == 0, done.stderr
    said = (played_builder.parent / "said").read_text(encoding="utf-8").splitlines()
    (base,) = (each for each in said if each.startswith("mmdebstrap"))
    assert " bookworm " in base and "python3-venv" in base
    builds = [each for each in said if each.startswith("buildah build ")]
    assert [re.findall(r"--file (\S+) --tag (\S+)", each)[0] for each in builds] == [
        (f"docker/{image}/Dockerfile", f"localhost/frenzy-{image}:{_version()}") for image in ("trainer", "airflow")
    ]
    for each in builds:
        assert "--build-arg PYTHON_IMAGE=localhost/frenzy-base:bookworm --build-arg FRENZY_TORCH=cpu" in each
        assert each.endswith("--volume /a:/a:ro .")
    tried = [each.partition(" -- ")[2] for each in said if each.startswith("buildah run")]
    assert tried == ["python /smoke.py trainer", "python /smoke.py airflow"]


def test_an_image_that_there_is_not_is_refused_before_anything_is_made(played_builder: Path) -> None:
    done = build_images(played_builder, "train")
    assert done.returncode == 1
    assert "there is no docker/train/Dockerfile; images: airflow trainer" in done.stderr
    assert not (played_builder.parent / "said").exists()


# locks


def test_the_images_locks_are_what_the_lock_and_the_code_say() -> None:
    command = [sys.executable, str(CHECKOUT / "scripts/image_locks.py"), "--check"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


@every_image
def test_an_images_lock_is_a_part_of_the_one_lock(image: str) -> None:
    part, whole = pins(DOCKER / image / "requirements.lock"), pins(CHECKOUT / "requirements.lock")
    assert part.items() <= whole.items()
    assert not set(part) & {"pytest", "ruff", "mypy", "hypothesis"}


def test_the_trainers_lock_has_no_airflow_and_no_server() -> None:
    names = set(pins(DOCKER / "trainer/requirements.lock"))
    assert not [name for name in names if name.startswith("apache-airflow")]
    assert not names & {"sqlalchemy", "kubernetes", "psycopg", "pandas", "scipy"}
    assert {"torch", "deepspeed", "transformers", "fsspec", "numpy"} <= names


_IMPORT_ALL = """
import importlib, pkgutil
import frenzy.core, frenzy.trainer
names = [
    each.name
    for package in (frenzy.core, frenzy.trainer)
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="session")
def trainer_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that sees what the trainer's image has: its locked packages, frenzy.core and frenzy.trainer."""
    home = tmp_path_factory.mktemp("trainer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for name in pins(DOCKER / "trainer/requirements.lock"):
        for each in _top_levels(name):
            if not (target / each.name).exists():
                (target / each.name).symlink_to(each)
    for word, text in instructions("trainer"):
        if word == "COPY" and text.startswith("plugins/"):
            _copy(text, target)
    return home / "bin/python"


def _top_levels(name: str) -> Iterator[Path]:
    """The files and folders of site-packages that a distribution put there."""
    site = Path(sysconfig.get_path("purelib"))
    found = distribution(name)
    names = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    yield from (site / each for each in sorted(names))


def _copy(text: str, target: Path) -> None:
    """A COPY of the package, into ``target`` instead of the image's site-packages."""
    source, place = text.split()
    wanted = target / place.partition("site-packages/")[2]
    if (CHECKOUT / source).is_dir():
        shutil.copytree(CHECKOUT / source, wanted, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        wanted.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / source, wanted)


def test_the_trainer_imports_with_its_images_packages_alone(trainer_python: Path, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DS_ACCELERATOR": "cpu"}
    command = [str(trainer_python), "-W", "ignore", "-c", _IMPORT_ALL]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules = [each for part in ("core", "trainer") for each in (CHECKOUT / "plugins/frenzy" / part).rglob("*.py")]
    # A package's own __init__ is imported by what lies in it; core and trainer are not counted among the names.
    assert int(done.stdout.splitlines()[-1]) == len(modules) - 2


# deployment files


def documents(path: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((CHECKOUT / path).read_text(encoding="utf-8")) if each]


COMPOSE = documents("docker/compose.yaml")[0]
VALUES = documents("deploy/helm-values.yaml")[0]
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")


def environment_names(path: str) -> set[str]:
    return set(re.findall(r"\b(FRENZY_[A-Z_]+|AIRFLOW__[A-Z_]+)\b", (CHECKOUT / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "path",
    ["docker/airflow/Dockerfile", "docker/compose.yaml", "docker/compose.env.example", "deploy/helm-values.yaml"],
)
def test_every_variable_is_one_that_is_read(path: str) -> None:
    own = {name for name in environment_names(path) if name.startswith("FRENZY_")}
    assert own <= {*variable_names(), "FRENZY_AIRFLOW_PASSWORDS", "FRENZY_TORCH"}
    from airflow.configuration import conf

    sections = conf.configuration_description.items()
    known = {f"AIRFLOW__{name}__{key}".upper() for name, section in sections for key in section["options"]}
    assert environment_names(path) - own <= known


def test_compose_runs_every_component_of_airflow_with_a_health_check() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"postgres", "init", *COMPONENTS}
    assert all(services[name]["command"] == ["airflow", name] for name in COMPONENTS)
    assert all("healthcheck" in services[name] for name in (*COMPONENTS, "postgres"))
    assert services["init"]["command"] == ["airflow", "db", "migrate"]
    assert not services["init"].get("restart") or services["init"]["restart"] == "no"


def test_compose_shares_what_components_share() -> None:
    services = COMPOSE["services"]
    mounted = {name: {each.split(":")[0] for each in services[name]["volumes"]} for name in COMPONENTS}
    assert len({frozenset(each) for each in mounted.values()}) == 1
    assert {each for volumes in mounted.values() for each in volumes} | {"database"} == set(COMPOSE["volumes"])
    images = {services[name]["image"] for name in COMPONENTS}
    assert images == {f"frenzy-airflow:{_version()}"}
    # The local launcher proves workers gone by host name and process id.
    assert services["scheduler"]["hostname"] == services["triggerer"]["hostname"]
    assert services["triggerer"]["pid"] == "service:scheduler"
    places = {place for each in services["scheduler"]["volumes"] for place in [each.split(":")[1]]}
    told = environment_of("airflow")
    assert {told["FRENZY_HOME"], told["FRENZY_RUN_ROOT"]} <= places


def test_compose_takes_its_secrets_from_one_file_that_git_ignores() -> None:
    assert COMPOSE["services"]["api-server"]["env_file"] == ["compose.env"]
    assert "docker/compose.env" in (CHECKOUT / ".gitignore").read_text().splitlines()
    example = (DOCKER / "compose.env.example").read_text(encoding="utf-8").splitlines()
    names = {line.partition("=")[0] for line in example if line and not line.startswith("#")}
    asked = set(re.findall(r"\$\{([A-Z_]+)", (DOCKER / "compose.yaml").read_text(encoding="utf-8")))
    assert asked <= names
    values = [line.partition("=")[2] for line in example if line and not line.startswith("#")]
    assert all(not value or set(re.findall(r'"password": "([^"]*)"', value)) <= {""} for value in values)


def test_the_chart_uses_our_images_claims_and_service_account() -> None:
    assert VALUES["defaultAirflowRepository"].rpartition("/")[2] == "frenzy-airflow"
    assert VALUES["defaultAirflowTag"] == _version()
    assert VALUES["airflowVersion"] == pins(CHECKOUT / "requirements.lock")["apache-airflow"]
    claims = [each for each in documents("deploy/kubernetes/volumes.yaml") if each["kind"] == "PersistentVolumeClaim"]
    ours = {each["metadata"]["name"] for each in claims if each["metadata"]["namespace"] == "frenzy"}
    used = {each["persistentVolumeClaim"]["claimName"] for each in VALUES["volumes"] if "persistentVolumeClaim" in each}
    assert VALUES["logs"]["persistence"]["enabled"]
    assert used | {VALUES["logs"]["persistence"]["existingClaim"]} == ours
    assert [each["spec"]["accessModes"] for each in claims] == [["ReadWriteMany"]] * len(claims)
    rules = load_pod_rules(CHECKOUT / "include/kubernetes/pods.yaml", stop_grace_s=30.0)
    assert rules.run_directory is not None
    trainers = {each["metadata"]["name"] for each in claims if each["metadata"]["namespace"] == rules.namespace}
    assert trainers == {rules.run_directory.claim}
    mounts = {each["name"]: each["mountPath"] for each in VALUES["volumeMounts"]}
    assert set(mounts) == {each["name"] for each in VALUES["volumes"]}
    assert mounts["frenzy-runs"] == rules.run_directory.mount_path
    assert str(VALUES["uid"]) == AIRFLOW_UID.partition(":")[0]


def test_the_charts_settings_are_accepted() -> None:
    given = {each["name"]: each["value"] for each in VALUES["env"]}
    settings = load_settings(given)
    assert settings.launcher.value == "kubernetes"
    assert settings.run_root == "/var/lib/frenzy/runs"
    assert {settings.pod_rules_file.parent, settings.cluster_file.parent} == {Path("/etc/frenzy")}
    assert settings.lease_s == Settings().lease_s


def test_the_values_have_no_key_that_the_chart_calls_deprecated() -> None:
    assert set(VALUES["workers"]) <= {"celery", "kubernetes"}


def test_every_component_that_speaks_to_kubernetes_is_the_service_account_of_the_role() -> None:
    parts = [*(VALUES[part] for part in ("apiServer", "scheduler", "triggerer")), VALUES["workers"]["kubernetes"]]
    names = {part["serviceAccount"]["name"] for part in parts}
    assert names == {"frenzy"}
    file = CHECKOUT / "deploy/kubernetes/rbac.yaml"
    if file.is_file():
        accounts = {
            each["metadata"]["name"]
            for each in documents("deploy/kubernetes/rbac.yaml")
            if each["kind"] == "ServiceAccount"
        }
        assert names <= accounts


def _version() -> str:
    from frenzy import __version__

    return __version__
