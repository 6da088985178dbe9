"""Imports the trainer's libraries once; every launch is a fork. Run as a script by ``launching``.

Reads lines ``measure <framework>``, ``start <JSON list of arguments>`` and ``wait <pid>``; answers each with one
number. What a framework takes is measured once, for all launches that are forked afterwards.

With the argument ``scripts`` it imports the libraries of users' scripts, too, and a Python script runs in the rank's
own process where it would be started anew: its libraries take six seconds of each start.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

# Of the recipes. Not the agent, which looks at its environment when it is imported.
SCRIPTS_LIBRARIES = ("deepspeed", "peft", "datasets", "transformers.trainer", "trl.trainer.sft_trainer")
SCRIPTS_LIBRARIES += ("trl.trainer.dpo_trainer", "transformers.models.gpt2.modeling_gpt2")


def main() -> None:
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    from frenzy.core.values.job import LoraSpec, ModelSpec, TrainingSpec
    from frenzy.trainer import env
    from frenzy.trainer.launch import __main__ as launch
    from frenzy.trainer.launch.child import exit_code_of
    from frenzy.trainer.launch.script import ranks

    with env.importing_libraries():
        from frenzy.trainer.launch import node  # noqa: F401
        from frenzy.trainer.model.libraries import import_libraries

    ranks.bytes_of_libraries = cache(ranks.bytes_of_libraries)  # else each launch measures the same again
    # Every third launch has adapters or 8-bit moments, whose libraries take a second.
    training = TrainingSpec(max_steps=1, global_batch_size=1, lora=LoraSpec())
    for family in ("gpt2", "llama"):
        import_libraries(ModelSpec(config={"model_type": family}), training)
    if sys.argv[1:] == ["scripts"]:
        for each in SCRIPTS_LIBRARIES:
            importlib.import_module(each)
        ranks.bytes_of_libraries = own_data_bytes
        os.execvpe = partial(become, os.execvpe)
    for line in sys.stdin:
        verb, _, rest = line.partition(" ")
        if verb == "wait":
            print(exit_code_of(os.waitpid(int(rest), 0)[1]), flush=True)
            continue
        if verb == "measure":
            print(ranks.bytes_of_libraries(rest.strip()), flush=True)
            continue
        arguments = json.loads(rest)
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(2, 1)
            os.setpgid(0, 0)
            os._exit(launch.main(arguments))
        print(pid, flush=True)


def own_data_bytes(framework: str) -> int:
    """What every fork of this process has loaded, whatever the framework."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def become(start_anew: Any, program: str, words: Sequence[str], variables: dict[str, str]) -> NoReturn:
    """Be ``python script.py ...`` from here on, up to the exit code; any other command is started."""
    if program != "python" or not words[1].endswith(".py"):
        start_anew(program, words, variables)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = [str(Path.cwd()), *variables["PYTHONPATH"].split(os.pathsep)]
    sys.argv = [*words[1:]]
    atexit._clear()  # those of the launcher, which goes on
    code: Any = 0
    try:
        runpy.run_path(str(Path.cwd() / words[1]), run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.last_value, code = error, 1  # as the interpreter leaves it, for what runs at the end
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
