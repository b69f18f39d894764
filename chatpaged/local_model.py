"""A model on this machine: its text side, which is there at once, and its engine, which takes seconds to load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chatpaged.chat_template import ChatTemplate
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.generation_defaults import GenerationDefaults, generation_defaults
from chatpaged.engine.limits import check_prompt_fits
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.tokenizer import Tokenizer, read_json
from chatpaged.engine.weight_files import model_name
from chatpaged.messages import RenderedPrompt
from chatpaged.model_files import context_length
from chatpaged.model_usage import record_use
from chatpaged.session_model import SessionModel


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model directory of which only the text side has been read."""

    directory: Path
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @classmethod
    def read(cls, directory: Path) -> LocalModel:
        """Reads the text side, with the model's own template.

        Raises:
            ModelError: tokenizer or template are damaged.
        """
        tokenizer = Tokenizer.from_directory(directory)
        return cls(directory, tokenizer, ChatTemplate.from_directory(directory, tokenizer))

    @property
    def name(self) -> str:
        """What to call it."""
        return model_name(self.directory)

    def context(self, config: EngineConfig) -> int | None:
        """Longest sequence in tokens, if that is known before the model is loaded."""
        return config.max_model_len if config.max_model_len is not None else context_length(self.directory)

    def session_model(self, config: EngineConfig) -> SessionModel:
        """As conversations see it."""
        return SessionModel(self.name, self.tokenizer, self.template, self.context(config))

    def check_fits(self, rendered: RenderedPrompt, config: EngineConfig) -> None:
        """Refuses a prompt that is too long before seconds are spent on loading the weights.

        Raises:
            PromptTooLongError: it does not fit the context or the KV pool.
        """
        check_prompt_fits(len(rendered.token_ids), context=self.context(config), num_blocks=config.kv_blocks, block_size=config.block_size)

    def sampling_defaults(self) -> GenerationDefaults:
        """What the model's makers recommend."""
        return generation_defaults(read_json(self.directory / "generation_config.json"))

    def load(self, config: EngineConfig, progress: Callable[[str], None] | None = None) -> LLMEngine:
        """The engine, with the weights loaded. Errors as for `LLMEngine.from_pretrained`."""
        told = {"progress": progress} if progress is not None else {}
        llm = LLMEngine.from_pretrained(self.directory, config, tokenizer=self.tokenizer, chat_template=self.template, **told)
        record_use(self.directory)
        return llm
