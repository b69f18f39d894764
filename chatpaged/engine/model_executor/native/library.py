"""Finding and loading the native library, and the team of threads that runs its kernels."""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path
from typing import Any

from chatpaged.engine.model_executor.native.interface import FUNCTIONS, VERSION

_NAME = "_chatpaged" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so")


class NativeError(Exception):
    """There is no native library here, for the reason given."""


@functools.cache
def load_library() -> Any:
    """The library with the types of its functions set.

    Raises:
        NativeError: it was not built, is for another machine, or is of another version.
    """
    path = Path(__file__).parent / _NAME
    if not path.exists():
        raise NativeError("the native kernels were not built (no C++ compiler when chatpaged was installed)")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the native kernels cannot be loaded: {error}") from error
    if getattr(library, "cp_version", None) is None or library.cp_version() != VERSION:
        raise NativeError("the native kernels are of another version: install chatpaged again")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def native_problem() -> str | None:
    """Why there are no native kernels; None if there are."""
    try:
        load_library()
    except NativeError as error:
        return str(error)
    return None


def instruction_sets() -> tuple[str, ...]:
    """Those that library and processor both have, best first."""
    names: bytes = load_library().cp_instruction_sets()
    return tuple(names.decode().split())


class Team:
    """Threads that carry out native work together. One thread at a time may use a team."""

    def __init__(self, threads: int, instruction_set: str | None = None) -> None:
        """Starts the threads.

        Args:
            threads: how many, the caller's included.
            instruction_set: one of `instruction_sets`; None is the best.

        Raises:
            NativeError: no library, no such instruction set, or no more threads.
        """
        self.handle = None
        self.library = load_library()
        self.threads = threads
        self.handle = self.library.cp_team_create(threads, instruction_set.encode() if instruction_set is not None else None)
        if not self.handle:
            raise NativeError(f"{threads} threads with {instruction_set or 'any'} instructions cannot be had here")

    @property
    def instruction_set(self) -> str:
        """The name of what the kernels run on."""
        name: bytes = self.library.cp_team_instruction_set(self.handle)
        return name.decode()

    def close(self) -> None:
        """Ends the threads."""
        if self.handle:
            self.library.cp_team_destroy(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()
