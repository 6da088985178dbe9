"""``python -m frenzy.trainer.launch --run-dir URL --attempt N [--node-rank I]``: starts the ranks.

The libraries are imported once; each rank is a fork of this process. Without ``--node-rank`` this
machine plays every node of the placement. The exit code is the first failing rank's.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frenzy.core.values import codec
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.run_files import ExitCode, RunPaths, scratch_prefix
from frenzy.trainer import env, files
from frenzy.trainer.outcome import describe_failure, write_termination_message

logger = logging.getLogger("frenzy.trainer")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(given)
    paths = RunPaths(options.run_dir)
    try:
        spec = codec.loads(LaunchSpec, files.read_text(paths.spec(options.attempt)))
    except (OSError, FrenzyError) as error:
        return _refuse(paths, options, f"spec.json of attempt {options.attempt} cannot be read: {error}")
    num_ranks = sum(spec.gpus_per_node) if options.node_rank is None else spec.gpus_per_node[options.node_rank]
    env.enter(spec.job.env, virtual=spec.gpu.kind is DeviceKind.VIRTUAL, arguments=given, num_ranks=num_ranks)
    prefix = scratch_prefix(options.run_dir.rstrip("/").rpartition("/")[2], options.attempt)
    with tempfile.TemporaryDirectory(prefix=prefix) as scratch:
        try:
            result = _run(spec, options.node_rank, Path(scratch))
        except Exception as error:  # the launcher's own: of its store, or of a node that it waited for
            logger.exception("this node's launcher failed")
            code, detail = describe_failure(error, virtual=False)
            result = AttemptResult(exit_code=code, last_step=0, total_steps=0, detail=detail)
    if options.node_rank in (None, 0):
        _settle(paths, options.attempt, result)
    return result.exit_code


def _run(spec: LaunchSpec, node_rank: int | None, scratch: Path) -> AttemptResult:
    # Imported only now: torch and DeepSpeed look at the environment when they are imported.
    if spec.job.workload is not None:
        from frenzy.trainer.launch.script.ranks import run_script

        return run_script(spec, spec.job.workload, node_rank=node_rank, scratch=scratch)
    with env.importing_libraries():
        from frenzy.trainer.launch.node import run_node

    return run_node(spec, node_rank=node_rank, scratch=scratch)


def _parse(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m frenzy.trainer.launch", description=__doc__)
    parser.add_argument("--run-dir", required=True, help="fsspec URL or path of the run directory")
    parser.add_argument("--attempt", required=True, type=int, help="number of the attempt")
    parser.add_argument("--node-rank", type=int, help="which node this is; left out: all nodes are this machine")
    return parser.parse_args(given)


def _refuse(paths: RunPaths, options: argparse.Namespace, detail: str) -> int:
    result = AttemptResult(exit_code=ExitCode.BAD_CONFIG_OR_DATA, last_step=0, total_steps=0, detail=detail)
    sys.stderr.write(f"{detail}\n")
    if options.node_rank in (None, 0):
        _settle(paths, options.attempt, result)
    return result.exit_code


def _settle(paths: RunPaths, attempt: int, result: AttemptResult) -> None:
    """Say how the attempt ended: to the node first, which is always there."""
    place = env.termination_log()
    if place is not None:
        write_termination_message(place, exit_code=result.exit_code, detail=result.detail, last_step=result.last_step)
    files.patiently(lambda: files.write_text(paths.result(attempt), codec.dumps(result)))


if __name__ == "__main__":
    sys.exit(main())
