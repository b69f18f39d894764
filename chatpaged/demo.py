"""The demo: the whole application without a model. Answers come from a script, at the pace of a small model; all else is real.

Blocks, sharing, eviction, preemption and copies on write are those of the engine, in a pool so small that a few chats fill it.
Two questions do something special: `loop` is answered by going round in circles, and `crash` fails inside the executor, so that
one can see what the death of an engine looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from chatpaged.chat_template import ChatTemplate
from chatpaged.demo_executor import CONTEXT, END, START, DemoExecutor, Pace
from chatpaged.demo_texts import ANSWERS, LOOP
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.session_model import SessionModel

DEMO_NAME = "demo"
DEMO_BLOCKS = 512
_VOCABULARY = 2048
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def demo_tokenizer() -> Tokenizer:
    """A tokenizer for any text, with tokens for the words of the demo. Made anew each time, and always the same."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    inner.train_from_iterator([*(answer.text for answer in ANSWERS), LOOP.text[:200], "system user assistant"], trainer)
    inner.add_special_tokens([AddedToken(text, special=True) for text in (START, END)])
    inner.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return Tokenizer(inner, {"eos_token": END})


def demo_model() -> SessionModel:
    """The demo's side of text."""
    tokenizer = demo_tokenizer()
    return SessionModel(DEMO_NAME, tokenizer, ChatTemplate(_TEMPLATE, tokenizer), CONTEXT)


def demo_engine(
    config: EngineConfig | None = None,
    *,
    pace: Pace | None = None,
    progress: Callable[[str], None] | None = None,
) -> LLMEngine:
    """Makes the demo's engine, with a tokenizer of its own.

    Args:
        config: engine options; the pool has 512 blocks if they name no other number.
        pace: how long steps take.
        progress: is told what is being done.
    """
    if progress is not None:
        progress("learning the words of the demo")
    # What the demo says is no model's: it keeps no files.
    config = replace(config, disk_cache=0) if config is not None else EngineConfig()
    tokenizer = demo_tokenizer()
    executor = DemoExecutor(
        tokenizer,
        pace=pace if pace is not None else Pace(),
        num_blocks=(config.kv_blocks if config.kv_blocks is not None else DEMO_BLOCKS) + 1,
        block_size=config.block_size,
        swap_space=config.swap_space or 0,
    )
    return LLMEngine(executor, tokenizer, config, chat_template=ChatTemplate(_TEMPLATE, tokenizer))
