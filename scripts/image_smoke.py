"""What an image has to be able to do, tried inside it: ``python image_smoke.py trainer|airflow``."""

import importlib.util
import os
import shutil
import subprocess
import sys

COMMANDS = {
    "trainer": [
        "python -m frenzy.trainer.launch --help",
        "python -m frenzy.trainer.launch.copy_launcher /tmp/launcher",
    ],
    "airflow": ["airflow version", "frenzy plan /opt/airflow/include/jobs/tiny-shakespeare.yaml"],
}

image = sys.argv[1]
assert os.getuid() == os.getgid() == 1000, "it runs as root, or as a user that may not write the run directories"
assert shutil.which("gcc"), "Triton has no C compiler"
assert (importlib.util.find_spec("airflow") is not None) == (image == "airflow"), "Airflow is in the wrong image"
for module in ("frenzy.trainer.loop.worker", "frenzy.trainer.model.libraries", "bitsandbytes", "peft"):
    importlib.import_module(module)
for command in COMMANDS[image]:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    print(f"{image}: {command}: {(done.stdout.strip() or 'done').splitlines()[0]}")
