"""Imports the trainer's libraries once; every launch is a fork. Run as a script by ``launching``.

Reads lines ``measure <framework>``, ``start <JSON list of arguments>`` and ``wait <pid>``; answers each with one
number. What a framework takes is measured once, for all launches that are forked afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache


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


if __name__ == "__main__":
    main()
