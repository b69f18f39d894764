"""Libraries that need not be there: what to say of one that cannot be imported."""

from __future__ import annotations


def import_problem(name: str, module: str, error: ImportError | OSError) -> str:
    """Why a library cannot be had: it is not there, or there and broken, as a rule since it was built for another torch.

    Args:
        name: what people call it.
        module: its outermost module.
        error: what came of importing it; OSError is a shared library that cannot be loaded.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return f"{name} is not installed"
    return f"{name} cannot be imported: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
