"""What a workspace runs on: a model by its name, or the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from chatpaged.engine.config import EngineConfig
from chatpaged.errors import ModelError
from chatpaged.session_model import SessionModel

if TYPE_CHECKING:  # loaded by the engine's thread, when the window is there
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.local_model import LocalModel

Tell = Callable[[str], None]


class Backend(Protocol):
    """A model that can be loaded. All methods take their time and are called on the engine's thread."""

    @property
    def name(self) -> str:
        """What to call it before anything of it is known."""

    def open(self, tell: Tell) -> tuple[SessionModel, Mapping[str, Any]]:
        """Its text side, and what its makers recommend for sampling.

        Raises:
            ChatpagedError: there is no such model, or it is damaged.
        """

    def load(self, tell: Tell) -> LLMEngine:
        """The engine; `open` has been called before.

        Raises:
            ChatpagedError: it cannot be loaded, or does not fit the memory.
        """


@dataclass(slots=True)
class ModelBackend:
    """A model by the name that the user has given.

    Attributes:
        model: the name; None is the starter model.
        config: engine options.
    """

    model: str | None
    config: EngineConfig = field(default_factory=EngineConfig)
    _local: LocalModel | None = None

    @property
    def name(self) -> str:
        """What to call it before anything of it is known."""
        return self._local.name if self._local is not None else self.model or "the starter model"

    def open(self, tell: Tell) -> tuple[SessionModel, Mapping[str, Any]]:
        """Finds the model, fetches it if need be, and reads its text side."""
        from chatpaged.local_model import LocalModel  # noqa: PLC0415 - not before the window is there
        from chatpaged.model_files import resolve_model  # noqa: PLC0415 - likewise

        tell(f"looking for {self.name}")
        directory = resolve_model(self.model, tell, show=tell, trust_remote_code=self.config.trust_remote_code)
        self._local = LocalModel.read(directory)
        return self._local.session_model(self.config), self._local.sampling_defaults().values

    def load(self, tell: Tell) -> LLMEngine:
        """Loads the weights."""
        if self._local is None:
            raise RuntimeError("a model is opened before it is loaded")
        tell(f"loading {self._local.name}")
        return self._local.load(self.config, tell)


class DemoBackend:
    """No model at all: answers come from a script, and the engine's work with its memory is real."""

    name = "demo"

    def __init__(self, config: EngineConfig | None = None) -> None:
        """Prepares it.

        Args:
            config: engine options.
        """
        self._config = config

    def open(self, tell: Tell) -> tuple[SessionModel, Mapping[str, Any]]:
        """Makes the tokenizer."""
        from chatpaged.demo import demo_model  # noqa: PLC0415 - likewise

        tell("preparing the demo")
        return demo_model(), {}

    def load(self, tell: Tell) -> LLMEngine:
        """Makes the engine."""
        from chatpaged.demo import demo_engine  # noqa: PLC0415 - likewise

        return demo_engine(self._config, progress=tell)


def is_model(backend: Backend, name: str) -> bool:
    """Whether a name means the model of a backend. Reads directories: not for the event loop."""
    from chatpaged.model_files import find_source  # noqa: PLC0415 - likewise

    if name == backend.name:
        return True
    try:
        return isinstance(backend, ModelBackend) and find_source(name) == find_source(backend.model)
    except ModelError:
        return False
