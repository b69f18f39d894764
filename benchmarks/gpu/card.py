"""What GPU there is: `python -m benchmarks.gpu.card`, one line of JSON, or one line that says why there is none."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def facts() -> dict[str, Any]:
    """Of the first GPU, with the versions of what runs on it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "memory": f"{properties.total_memory / 2**30:.0f} GiB",
        "cuda": f"CUDA {torch.version.cuda}",
        **{name: f"{name} {_version(name)}" for name in ("triton", "flash-attn")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch sees no NVIDIA GPU here; --smoke runs the same code on a CPU")
    print(json.dumps(facts()))


if __name__ == "__main__":
    main()
