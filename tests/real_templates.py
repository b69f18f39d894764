"""Chat templates with their tokenizers, read once for all tests: the larger ones take a second each."""

from __future__ import annotations

import functools
from pathlib import Path

from chatpaged.chat_template import ChatTemplate
from chatpaged.engine.tokenizer import Tokenizer


@functools.cache
def read_template(directory: Path) -> ChatTemplate:
    """The template of a model directory that has one."""
    template = ChatTemplate.from_directory(directory, Tokenizer.from_directory(directory))
    assert template is not None
    return template
