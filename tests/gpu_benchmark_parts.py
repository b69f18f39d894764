"""Parts of a script like `benchmarks.gpu`, each with another end. Run in processes of their own by `test_gpu_benchmark.py`."""

from __future__ import annotations

import os
import sys
import time

from benchmarks.gpu.rows import Report


def fine(report: Report) -> None:
    print("a library that talks")
    report.add("speed", 12345.6, "tokens/s", least=1000, note="as it should be")
    report.add("one of many", 0.5, most=1, detail=True)
    if report.has_time("what comes last", 3600):
        report.add("what comes last", 1.0)


def breaks(report: Report) -> None:
    report.add("before", 3.0, most=2)
    raise ValueError("half way\nthrough")


def dies(report: Report) -> None:
    report.add("a row", 1.0)
    sys.stderr.write("segmentation fault, say\n")
    sys.stderr.flush()
    os.abort()


def sleeps(report: Report) -> None:
    report.add("a row", 1.0)
    time.sleep(600)
