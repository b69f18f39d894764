"""What `chatpaged models show` tells about a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chatpaged.amounts import disk_size
from chatpaged.chat_template import ChatTemplate
from chatpaged.child_process import failure_reason, run_module
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.end_tokens import end_token_ids
from chatpaged.engine.tokenizer import Tokenizer, read_json
from chatpaged.errors import ModelError
from chatpaged.model_list import read_facts
from chatpaged.model_sources import ModelSource

_TEMPLATE_LINES = 6
_LINE = 100
_SHOWN = (
    ("vocab_size", "vocabulary"),
    ("num_hidden_layers", "layers"),
    ("hidden_size", "hidden size"),
    ("num_attention_heads", "attention heads"),
    ("num_key_value_heads", "kv heads"),
    ("head_dim", "head size"),
    ("sliding_window", "sliding window"),
    ("tie_word_embeddings", "tied embeddings"),
)


def read_card(source: ModelSource, directory: Path, options: EngineConfig, *, run: bool = True) -> dict[str, Any]:
    """Everything `show` tells, as plain values.

    Args:
        source: the model.
        directory: where it lies.
        options: how it would be run.
        run: find out how it would run; takes seconds.

    Raises:
        ModelError: its configuration or its tokenizer cannot be read.
    """
    config = read_json(directory / "config.json")
    if not config:
        raise ModelError(f"no config.json in {directory}")
    tokenizer = Tokenizer.from_directory(directory)
    template = ChatTemplate.from_directory(directory, tokenizer)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    card: dict[str, Any] = {
        "name": source.name,
        "source": source.kind.value,
        "directory": str(directory),
        **asdict(read_facts(directory)),
        "config": {name: text[name] for name, _ in _SHOWN if name in text},
        "template": template.source if template is not None else None,
        "special_tokens": {text: token_id for text, token_id in tokenizer.control_tokens.items() if tokenizer.is_hidden(token_id)},
        "stop_token_ids": sorted(tokenizer.stop_token_ids | end_token_ids(directory)),
    }
    if run:
        card["engine"] = _how_it_runs(directory, options)
    return card


def card_text(card: dict[str, Any]) -> str:
    """The card for people."""
    config, engine = card["config"], card["engine"]
    template = card["template"]
    pairs: list[tuple[str, object]] = [
        ("name", card["name"]),
        ("directory", card["directory"]),
        ("architecture", f"{card['architecture'] or 'unknown'} ({card['family'] or 'unknown'})"),
        ("parameters", f"{card['parameters']:,}" if card["parameters"] is not None else "unknown"),
        ("size on disk", disk_size(card["size"])),
        ("stored as", card["stored_type"]),
        ("quantization", card["quantization"]),
        ("context", f"{card['context']:,} tokens" if card["context"] else "not named"),
        *((label, config.get(name)) for name, label in _SHOWN),
        ("special tokens", _few([f"{text} {token_id}" for text, token_id in card["special_tokens"].items()])),
        ("stop ids", ", ".join(map(str, card["stop_token_ids"])) or "none"),
        ("chat template", _beginning(template) if template is not None else "none; needs --template or --raw-prompt"),
        *_engine_lines(engine),
    ]
    return "\n".join(f"{name:<18} {value}" for name, value in pairs if value is not None)


def _engine_lines(engine: dict[str, Any]) -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = [("supported", "yes" if engine["supported"] else f"no: {engine['reason']}")]
    if "code_path" in engine:
        because = f": {engine['code_reason']}" if engine["code_reason"] else ""
        lines += [("code path", f"{engine['code_path']}{because}"), ("attention", f"{engine['attention']}: {engine['attention_reason']}")]
    if "kv_bytes_per_token" in engine:
        block = f"{_bytes(engine['kv_bytes_per_block'])} a block of {engine['block_size']}"
        guessed = "" if engine["kv_measured"] else "about "  # from the configuration alone
        lines.append(("KV memory", f"{guessed}{_bytes(engine['kv_bytes_per_token'])} a token as {engine['kv_dtype']}, {block}"))
    if "weights" in engine:
        because = f": {engine['weights_reason']}" if engine["weights_reason"] else ""
        lines.append(("weights", f"{_bytes(engine['weight_bytes'])} as {engine['weights']} on {engine['device']}{because}"))
    if "kv_tokens" in engine:
        pool = f"{engine['kv_tokens']:,} tokens in {engine['kv_blocks']:,} blocks"
        lines.append(("fits here", f"{pool}, of {_bytes(engine['free_memory'])} free memory"))
    return lines


def _how_it_runs(directory: Path, options: EngineConfig) -> dict[str, Any]:
    done = run_module("chatpaged.engine.model_executor.describe", str(directory.absolute()), json.dumps(asdict(options)))
    if done.returncode != 0:
        return {"supported": False, "reason": failure_reason(done)}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _beginning(template: str) -> str:
    lines = template.splitlines()
    shown = [line if len(line) <= _LINE else f"{line[:_LINE]} …" for line in lines[:_TEMPLATE_LINES]]
    if len(lines) > _TEMPLATE_LINES:
        shown.append(f"… {len(lines) - _TEMPLATE_LINES} more lines (--template)")
    return ("\n" + " " * 19).join(shown)


def _few(texts: list[str], most: int = 12) -> str:
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "") or "none"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
