"""One process of transformers that answers all questions about configs: each asking would import it anew, for a second.

What starts a process for each question, and bounds it, is held by tests/unit/adapters/test_model_config.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from frenzy.adapters.local.worker_environment import helper_environment

_SERVER: Final = """
import io, json, sys, traceback
questions, answers = sys.stdin, sys.stdout
for line in questions:
    program, asked = json.loads(line)
    sys.stdin, sys.stdout = io.StringIO(json.dumps(asked)), io.StringIO()
    try:
        exec(program, {})
        answer = json.loads(sys.stdout.getvalue().splitlines()[-1])
        print(json.dumps({"answer": answer}), file=answers, flush=True)
    except BaseException:
        print(json.dumps({"traceback": traceback.format_exc()}), file=answers, flush=True)
"""


class ConfigReader:
    """Stands for ``frenzy.adapters.library_process.ask`` where the program is the one that reads configs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVER],
            env=helper_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, program: str, asked: Mapping[str, Any], **_: Any) -> Any:
        """The last line that ``program`` prints. Raises RuntimeError with its traceback where it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([program, asked], default=str) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        if "traceback" in said:
            raise RuntimeError(said["traceback"])
        return said["answer"]

    def close(self) -> None:
        self._process.communicate(timeout=60)
