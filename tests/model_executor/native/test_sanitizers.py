"""The kernels under the compiler's sanitizers: no byte is read beside what was given to them, no threads race."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chatpaged.engine.model_executor.native.library import instruction_sets

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "chatpaged/engine/model_executor/native/src"
CHECK = Path(__file__).with_name("kernel_check.cpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")
SANITIZERS = {
    "memory": ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
    "threads": ("-fsanitize=thread",),
}
ROUNDS = {"memory": "4", "threads": "2"}
KERNELS = {"memory": ("kernels_plain", "kernels_avx2", "kernels_avx512", "kernels_neon"), "threads": ("kernels_plain",)}
"""Others read the same memory, and it makes no difference to threads what they compute."""
_SLOW_TO_COMPILE = ("kernels_plain", "kernels_avx512")
"""With checks of arithmetic as well."""

Build = Callable[[str], Path]


def build_settings() -> Mapping[str, Any]:
    """What `setup.py` defines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **_: None)
        patch.chdir(ROOT)
        return runpy.run_path("setup.py")


def compiled(command: list[str]) -> str | None:
    """What the compiler complains of; None if nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else None


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The check with a kind of sanitizer, by name."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    return cache(lambda kind: _build(COMPILER, kind, tmp_path_factory.mktemp(kind)))


def _build(compiler: str, kind: str, directory: Path) -> Path:
    sanitizers = SANITIZERS[kind]
    trial = directory / "trial.cpp"
    trial.write_text("int main() { return 0; }")
    if compiled([compiler, *sanitizers, "-pthread", str(trial), "-o", str(directory / "trial")]) is not None:
        pytest.skip(f"this compiler has no {sanitizers[0]}")
    if subprocess.run([directory / "trial"], check=False, capture_output=True).returncode:
        pytest.skip(f"programs with {sanitizers[0]} do not run here")
    found = build_settings()
    all_kernels = found["X86"] if platform.machine().lower() in {"x86_64", "amd64", "i686"} else found["ARM"]
    kernels = {name: extra for name, extra in all_kernels.items() if name in KERNELS[kind]}
    flags = ["-O1", "-g1", *(flag for flag in found["FLAGS"] if flag != "-O3"), *sanitizers]
    macros = [f"-DCP_HAVE_{name.removeprefix('kernels_').upper()}=1" for name in kernels]
    # The long ones first, so that nobody waits for one at the end.
    jobs = [(SOURCES / f"{name}.cpp", extra) for name, extra in reversed(kernels.items())]
    others = sorted(path for path in SOURCES.glob("*.cpp") if not path.name.startswith("kernels_"))
    jobs += [(path, macros) for path in (CHECK, *others)]
    commands = [
        [compiler, *flags, *extra, "-I", str(SOURCES), "-c", str(path), "-o", str(directory / f"{path.stem}.o")] for path, extra in jobs
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for complaint in pool.map(compiled, commands):
            assert complaint is None, complaint
    program = directory / "kernel_check"
    objects = [command[-1] for command in commands]
    complaint = compiled([compiler, *sanitizers, "-pthread", *objects, "-o", str(program)])
    assert complaint is None, complaint
    return program


@pytest.mark.parametrize("kind", SANITIZERS)
def test_nothing_is_found(kind: str, build: Build) -> None:
    done = subprocess.run([build(kind), "1", ROUNDS[kind]], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-6000:]
    checked = done.stdout.removeprefix("checked ").split()
    assert checked[-1] == "plain"
    assert kind == "threads" or set(checked) == set(instruction_sets()) - {"AVX2-VNNI"}
