"""Runs one part: `python -m benchmarks.gpu.child FUNCTION NAME DIRECTORY DEADLINE [smoke]`; one line of JSON for each row."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.parts import Part
from benchmarks.gpu.rows import Report, Row, Settings


def main() -> None:
    # What libraries print must not come between the lines.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        function, name, directory, deadline, *smoke = sys.argv[1:]
        settings = Settings(smoke=bool(smoke), directory=Path(directory), deadline=float(deadline))

        def write(row: Row) -> None:
            out.write(json.dumps(asdict(row)) + "\n")
            out.flush()

        report = Report(name, settings, write)
        with report.attempt("the part"):
            Part(name=name, share=1, function=function, about="").load()(report)
    # At once: neither the GPU's memory nor processes that are still at work need to be put in order.
    os._exit(0)


if __name__ == "__main__":
    main()
