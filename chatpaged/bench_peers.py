"""Other engines, to be measured beside ours: each in a process of its own that is told of a workload and tells of its replies.

One line of JSON each way. A process begins with what it is: `{"version": ...}`; a pass is `{"workload": ..., "batch": n}` and then
`{"replies": [{"arrived": seconds, "times": [seconds, ...]}, ...]}`. `{"error": text}` may come in place of both.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chatpaged
from chatpaged.bench_replies import Reply, check_replies, replies_from
from chatpaged.bench_workloads import Workload
from chatpaged.engine.config import EngineConfig
from chatpaged.errors import ChatpagedError, InvalidRequestError
from chatpaged.paths import models_dir

TRANSFORMERS, LLAMA_CPP = "transformers", "llama.cpp"
_STATIC_BATCH = 16
_LLAMA_SCRIPT = Path(chatpaged.__file__).parent / "llama_cpp_peer.py"
_MISSING = "no module llama_cpp"
_PATIENCE = 10.0  # seconds for a process to end by itself


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which a peer runs a workload.

    Attributes:
        name: what its figures are called.
        batch: requests that it runs together, where the peer does not decide that by itself.
    """

    name: str
    batch: int = 1


class Peer:
    """Another engine in its process.

    Attributes:
        name: which.
        facts: what it says of itself: its version, at least.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Starts it and waits until its model is loaded.

        Raises:
            ChatpagedError: it cannot do its work, and says why.
        """
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the process lives
        try:
            # In a session of its own: Ctrl-C is for us, and ends it by way of us.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            raise InvalidRequestError(f"cannot start {command[0]}: {error.strerror or error}") from error
        try:
            self.facts = self._read()
        except BaseException:
            self.close()
            raise

    def ways(self, workload: Workload) -> list[Way]:
        """In which ways it runs a workload."""
        single = not workload.system and all(len(chat.turns) == 1 for chat in workload.chats)
        if self.name != TRANSFORMERS or len(workload.chats) == 1:
            return [Way(self.name)]
        if not single:
            return [Way(f"{self.name} kept caches")]
        return [Way(f"{self.name} one by one"), Way(f"{self.name} batches of {_STATIC_BATCH}", _STATIC_BATCH)]

    def run(self, workload: Workload, way: Way) -> list[Reply]:
        """One pass.

        Raises:
            ChatpagedError: it failed, or did less than it was asked for.
        """
        with contextlib.suppress(OSError):  # it has ended, which reading tells as well, and why
            self._write({"workload": workload.plain(), "batch": way.batch})
        replies = replies_from(self._read()["replies"])
        check_replies(replies, workload.num_replies, workload.num_new_tokens, way.name)
        return replies

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):  # what it has not read is lost with it
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was made with a pipe
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - likewise
        line = self._process.stdout.readline()
        if not line:
            raise ChatpagedError(f"{self.name} ended: {self._last_error() or f'exit status {self._process.wait()}'}")
        message: dict[str, Any] = json.loads(line)
        if message.get("error") == _MISSING:
            raise InvalidRequestError(
                "--vs llama.cpp needs the package llama-cpp-python (pip install llama-cpp-python), here or in the Python of --llama-python"
            )
        if "error" in message:
            raise ChatpagedError(f"{self.name}: {message['error']}")
        return message

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def start_transformers(directory: Path, config: EngineConfig, threads: int) -> Peer:
    """The library's own `generate` with the same model, number type, device and threads. Errors as for `Peer`."""
    module = "chatpaged.engine.model_executor.transformers_peer"
    command = [sys.executable, "-P", "-m", module, str(directory), str(threads), config.device, config.dtype]
    return Peer(TRANSFORMERS, [*command, "trust"] if config.trust_remote_code else command)


def start_llama_cpp(gguf: Path, python: str | None, config: EngineConfig, threads: int) -> Peer:
    """llama.cpp through llama-cpp-python, in this Python or another one. Errors as for `Peer`."""
    slots = str(config.max_num_seqs)
    return Peer(LLAMA_CPP, [python if python is not None else sys.executable, str(_LLAMA_SCRIPT), str(gguf), str(threads), slots])


def find_gguf(given: Path | None, model: str | None) -> Path:
    """The GGUF file for llama.cpp: the one that was given, else the model itself if it is one, else that of the starter model.

    Raises:
        InvalidRequestError: there is none.
    """
    if given is not None:
        if not given.is_file():
            raise InvalidRequestError(f"no file {given}")
        return given
    if model is not None and model.endswith(".gguf") and Path(model).is_file():
        return Path(model)
    found = sorted(models_dir().rglob("SmolLM2-135M-Instruct*.gguf")) if model is None else []
    if not found:
        raise InvalidRequestError("--vs llama.cpp needs the model as a GGUF file; name it with --llama-model FILE.gguf")
    return found[0]
