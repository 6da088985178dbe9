"""Airflow executes Python files of its plugins folder as top-level modules; none of ours may be among them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from frenzy.settings import CHECKOUT

PLUGINS = CHECKOUT / "plugins"
LIST_EXECUTED = """
import json, sys
from airflow import plugins_manager, settings
plugins, errors = plugins_manager._get_plugins()
package = settings.PLUGINS_FOLDER + "/frenzy/"
executed = [
    name for name, module in list(sys.modules.items())
    if (getattr(module, "__file__", None) or "").startswith(package) and not name.startswith("frenzy")
]
print(json.dumps({"executed": executed, "plugins": [each.name for each in plugins], "errors": errors}))
"""


def loaded_from(folder: Path, home: Path) -> dict[str, object]:
    """What Airflow's own plugin loader does with ``folder``, in a process of its own."""
    places = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder)}
    environ = {**os.environ, **places, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    answer = subprocess.run(
        [sys.executable, "-c", LIST_EXECUTED], env=environ, capture_output=True, text=True, check=True, timeout=120
    )
    result: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    return result


def test_airflow_executes_no_file_of_the_package_and_finds_the_plugin(tmp_path: Path) -> None:
    found = loaded_from(PLUGINS, tmp_path)

    assert found == {"executed": [], "plugins": ["frenzy"], "errors": {}}


def test_without_the_ignore_file_airflow_would_execute_the_package(tmp_path: Path) -> None:
    unguarded = tmp_path / "plugins"
    (unguarded / "frenzy").mkdir(parents=True)
    shutil.copy(PLUGINS / "frenzy/core/values/units.py", unguarded / "frenzy/marker.py")

    assert loaded_from(unguarded, tmp_path)["executed"] == ["marker"]


def test_nothing_but_the_package_lies_in_the_plugins_folder() -> None:
    python_files = [path for path in PLUGINS.glob("*") if path.suffix == ".py"]
    folders = {path.name for path in PLUGINS.iterdir() if path.is_dir() and not path.name.endswith(".egg-info")}

    assert python_files == []
    assert folders - {"__pycache__"} == {"frenzy"}
