"""A device that must not be waited for, played by the CPU: whatever would wait for a device raises, but for one way to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from chatpaged.engine.model_executor import transfers

_OPERATIONS = (
    "_local_scalar_dense",
    "nonzero",
    "_unique",
    "unique",
    "masked_select",
    "is_nonzero",
    "equal",
    "bincount",
    "repeat_interleave.Tensor",
)
_METHODS = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__"}
_UPLOADS = {"tensor", "as_tensor", "asarray", "from_numpy", "cuda"}
"""Copies from memory that is not pinned wait as well."""


class WaitError(AssertionError):
    """Something would have waited."""


class _Guard:
    """Whether waiting is forbidden at the moment."""

    def __init__(self) -> None:
        self.is_on = True

    def allow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, allowed to do what it likes."""

        def allowed(*args: Any, **kwargs: Any) -> Any:
            before, self.is_on = self.is_on, False
            try:
                return function(*args, **kwargs)
            finally:
                self.is_on = before

        return allowed


class _Methods(TorchFunctionMode):
    """What Python asks of tensors."""

    def __init__(self, guard: _Guard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if not self._guard.is_on:
            return func(*args, **(kwargs or {}))
        if name in _METHODS | _UPLOADS:
            raise WaitError(f"{name} waits")
        options = kwargs or {}
        if name == "to" and not options.get("non_blocking") and any(str(argument) == "cpu" for argument in (*args[1:], *options.values())):
            raise WaitError("to('cpu') waits")
        if name in {"__getitem__", "__setitem__"} and _waits(args[1]):
            raise WaitError(f"{name} with {args[1]!r} waits")
        return func(*args, **(kwargs or {}))


def _waits(index: Any) -> bool:
    """Whether an index has to be copied to the device, or its size is known only after looking at it."""
    entries = index if isinstance(index, tuple) else (index,)
    return any(isinstance(entry, list) or (isinstance(entry, torch.Tensor) and entry.dtype == torch.bool) for entry in entries)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own
    """What comes of it, inside torch as well."""

    def __init__(self, guard: _Guard) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own
        self._guard = guard

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        indices = args[1] if name.startswith(("index.", "index_put")) else ()
        waits = name.startswith(_OPERATIONS) or any(index is not None and index.dtype == torch.bool for index in indices)
        if self._guard.is_on and waits:
            raise WaitError(f"{name} waits")
        return func(*args, **(kwargs or {}))


@contextmanager
def device_like() -> Iterator[list[int]]:
    """While the block runs, the CPU is taken for a device. Gives a list that grows with each read: of how many tensors it was."""
    reads: list[int] = []
    guard = _Guard()
    read = guard.allow(transfers.read)

    def counted_read(tensors: Sequence[torch.Tensor]) -> Any:
        reads.append(len(tensors))
        return read(tensors)

    with pytest.MonkeyPatch.context() as patch, _Methods(guard), _Operations(guard):
        patch.setattr(transfers, "is_host", lambda _: False)
        patch.setattr(transfers, "read", counted_read)
        # What these two handle lies in the host's memory.
        patch.setattr(transfers, "pack", guard.allow(transfers.pack))
        patch.setattr(transfers, "unpack", guard.allow(transfers.unpack))
        yield reads
