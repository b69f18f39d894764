"""Every error a user can meet, one exit code each.

```text
ChatpagedError             1  failed while running
├── EngineDeadError        1  the engine thread has stopped; load it again
├── StoreError             1  conversations cannot be read or kept
├── InvalidRequestError    2  a parameter or prompt that no model could serve
├── SettingsError          2  a settings file or an environment variable that is wrong
├── ModelError             3  the model cannot be found, read or supported
├── PromptTooLongError     4  the input does not fit the context or the KV pool
├── MemoryBudgetError      5  not enough memory, found out before allocating
└── BatchError             6  a batch has come to its end, but rows of it have failed
```

Messages are one line: what is wrong, with numbers, and what to do. Bugs of our own are `RuntimeError` and keep their traceback.
"""

from __future__ import annotations

from typing import ClassVar


class ChatpagedError(Exception):
    """Base of all errors whose message is meant for the user."""

    exit_code: ClassVar[int] = 1


class EngineDeadError(ChatpagedError):
    """The engine thread has stopped; every stream and later call raises this."""


class StoreError(ChatpagedError):
    """The store of conversations cannot be opened, read or written. What is in it stays as it is."""


class InvalidRequestError(ChatpagedError):
    """A request that can never be served as it is written: an empty prompt, a parameter out of range."""

    exit_code = 2


class SettingsError(ChatpagedError):
    """A settings file or an environment variable holds something that is no setting, or a value that no setting takes."""

    exit_code = 2


class ModelError(ChatpagedError):
    """The model cannot be found, is damaged, or uses something that is not supported."""

    exit_code = 3


class PromptTooLongError(ChatpagedError):
    """The prompt does not fit the model's context or the KV pool."""

    exit_code = 4


class MemoryBudgetError(ChatpagedError):
    """Weights or KV pool would not fit the memory that is free."""

    exit_code = 5


class BatchError(ChatpagedError):
    """A batch has come to its end, and some of its rows have failed: the output says which and why."""

    exit_code = 6
