"""A short soak; `python -m benchmarks.soak` is the long one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.soak import Limits, Soak

pytestmark = pytest.mark.starter


def test_many_chats_on_a_pool_for_a_few(starter_model: Path, tmp_path: Path) -> None:
    limits = Limits(sessions=12, kv_blocks=44, max_num_seqs=6, swap_space=8 * 2**20, disk_cache=24 * 2**20, chat_tokens=300)
    soak = Soak(starter_model, limits, tmp_path, random.Random(3))
    try:
        for _ in range(2):
            for _ in range(120):
                soak.act()
            soak.drain()
            soak.restart()
    finally:
        soak.close()
    reached = {name for name, count in soak.counts.items() if count}
    assert reached >= {
        "sent",
        "branched",
        "cancelled",
        "checked",
        "restarts",
        "evictions",
        "swap_out",
        "swap_in",
        "disk_writes",
        "disk_reads",
    }
    assert soak.counts["disk_faults"] == 0
    assert soak.memory[-1] < soak.memory[0] + 60
