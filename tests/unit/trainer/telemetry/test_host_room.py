"""Whether a model has room in host memory: what limits a process, and what the weights take."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from frenzy.core.values.units import GIB, MIB
from frenzy.trainer.evaluate import NoRoomError, check_room
from frenzy.trainer.telemetry.host_room import fp32_bytes, free_host_bytes

MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {20 * GIB // 1024} kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_without_any_limit_the_machine_tells_and_without_that_nothing_is_known(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) == math.inf
    unlimited = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5"}
    assert free_host_bytes(write(tmp_path, {"proc/meminfo": MEMINFO, **unlimited})) == 20 * GIB


def test_the_tightest_group_around_the_process_counts_less_what_is_used_but_for_the_cache(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/pods/task\n",
        "sys/fs/cgroup/pods/task/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pods/task/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/pods/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/pods/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/pods/memory.stat": f"anon 7\ninactive_file {GIB // 2}\n",
    }
    assert free_host_bytes(write(tmp_path, files)) == 1.5 * GIB


def test_groups_of_the_first_generation_in_a_container_are_read_at_their_mount(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "9:cpu,cpuacct:/kubepods/x\n4:memory:/kubepods/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}",
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {MIB}\n",
    }
    assert free_host_bytes(write(tmp_path, files)) == GIB + MIB


def test_weights_are_counted_from_all_files_in_fp32_whatever_they_are_stored_in(tmp_path: Path) -> None:
    save_file({"a": np.zeros((10, 20), np.float16)}, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"b": np.zeros(7, np.float32), "scalar": np.zeros((), np.float32)}, tmp_path / "model-2.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert fp32_bytes(str(tmp_path)) == fp32_bytes(f"file://{tmp_path}") == 4 * (200 + 7 + 1)


def test_a_model_without_room_is_refused_with_both_figures(tmp_path: Path) -> None:
    save_file({"a": np.zeros(MIB, np.float16)}, tmp_path / "model.safetensors")
    check_room(str(tmp_path), 4 * MIB)
    with pytest.raises(NoRoomError, match=r"4.*MiB.* may have 3.*MiB"):
        check_room(str(tmp_path), 3 * MIB)
