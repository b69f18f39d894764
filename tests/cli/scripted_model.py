"""A model directory with a byte tokenizer, and the command line with a scripted engine for it: python -m tests.cli.scripted_model ARGS

For tests that need a process of its own and no torch: starting takes half a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from chatpaged.chat_template import ChatTemplate
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.tokenizer import Tokenizer
from tests.byte_tokenizer import END, TEMPLATE, byte_tokenizer

DELAY = "SCRIPTED_MODEL_DELAY"


def make_model(directory: Path) -> Path:
    """Writes what the command line reads of a model before its weights are loaded."""
    directory.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 8192}))
    byte_tokenizer()._tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    return directory


def letters(row: ScheduledRow, sample: SampleRow) -> int:
    """Draws letters that depend on all that was read last, and ends after 3 to 18 of them."""
    value = (row.token_ids[-1] * 31 + sample.position * 7) % 26
    return END if sample.position >= 3 and value % 8 == 0 else ord("a") + value


class SlowExecutor(ScriptedExecutor):
    """Takes its time, so that a process can be killed in the middle; keeps no steps."""

    def execute(self, output: Any) -> Any:
        time.sleep(float(os.environ.get(DELAY, "0")))
        result = super().execute(output)
        self.outputs.clear()
        return result


def scripted_engine(
    directory: Path, config: EngineConfig | None = None, *, tokenizer: Tokenizer | None = None, chat_template: ChatTemplate | None = None
) -> LLMEngine:
    """Takes the place of `LLMEngine.from_pretrained`."""
    del directory
    config = config if config is not None else EngineConfig()
    assert tokenizer is not None
    executor = SlowExecutor(letters, num_blocks=(config.kv_blocks or 512) + 1, vocab_size=258)
    return LLMEngine(executor, tokenizer, config, chat_template=chat_template)


def main() -> None:
    LLMEngine.from_pretrained = scripted_engine  # type: ignore[method-assign, assignment]
    from chatpaged.cli.main import main as run  # noqa: PLC0415 - as chatpaged/__main__.py does

    sys.argv[0] = "chatpaged"
    run()


if __name__ == "__main__":
    main()
