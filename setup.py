"""Builds the native kernels: one library, compiled once for each instruction set. Everything else is in pyproject.toml.

Without a C++ compiler the package installs all the same, and runs on torch's operations.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("chatpaged/engine/model_executor/native")
SOURCES = NATIVE / "src"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-fPIC", "-Wall", "-Wextra"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
# GCC 12 takes the undefined registers of its own intrinsics for mistakes.
QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
X86 = {"kernels_plain": [], "kernels_avx2": AVX2, "kernels_avx2_vnni": [*AVX2, "-mavxvnni"], "kernels_avx512": [*AVX512, *QUIET]}
ARM = {"kernels_plain": [], "kernels_neon": [], "kernels_neon_dot": ["-march=armv8.2-a+dotprod"]}


class BuildNative(build_ext):
    """Compiles each file with flags of its own."""

    def build_extension(self, ext: Extension) -> None:
        """Compiles and links; a file for instructions that the compiler does not know is left out."""
        machine = platform.machine().lower()
        kernels = X86 if machine in {"x86_64", "amd64", "i686"} else ARM if machine in {"arm64", "aarch64"} else {"kernels_plain": []}
        objects: list[str] = []
        macros = []
        for name, flags in kernels.items():
            try:
                objects += self._compile(name, [*FLAGS, *flags])
                macros.append((f"CP_HAVE_{name.removeprefix('kernels_').upper()}", "1"))
            except Exception as error:
                if name == "kernels_plain":
                    raise
                print(f"without {name}: {error}", file=sys.stderr)  # noqa: T201
        for name in ("threads", "attention_plan", "model", "packing", "sampling", "api"):
            objects += self._compile(name, FLAGS, macros)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(target), extra_postargs=["-pthread"], target_lang="c++")

    def _compile(self, name: str, flags: list[str], macros: list[tuple[str, str]] | None = None) -> list[str]:
        found: list[str] = self.compiler.compile(
            [str(SOURCES / f"{name}.cpp")], output_dir=self.build_temp, macros=macros or [], extra_postargs=flags
        )
        return found


setup(
    ext_modules=[
        Extension(
            "chatpaged.engine.model_executor.native._chatpaged",
            sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.[hi]*")),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
