"""What the fields of a batch's row mean: OpenAI's names for sampling values and messages, in the terms of the engine.

No field is left out without a word: one that would change the answer and is not known here is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chatpaged.engine.sampling_params import MAX_LOGPROBS
from chatpaged.errors import InvalidRequestError
from chatpaged.messages import ChatMessage

_AS_THEY_ARE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "max_tokens",
    "min_tokens",
)
_FLAGS = ("ignore_eos", "stop_on_repeat")
_OTHERS = ("max_completion_tokens", "stop", "stop_token_ids", "logit_bias", "logprobs", "top_logprobs")
SAMPLING_FIELDS = frozenset({*_AS_THEY_ARE, *_FLAGS, *_OTHERS})
STREAM = "stream"
# They say who asks, or how an answer is sent and kept, and change nothing in it.
IGNORED_FIELDS = frozenset(
    {
        STREAM,
        "stream_options",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
# What is not supported, with values that ask for nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
_MESSAGE_FIELDS = frozenset({"role", "content", "reasoning_content", "reasoning"})
_ROLES = {"developer": "system"}  # OpenAI's newer name


def check_names(given: Mapping[str, object], known: Iterable[str], place: str = "") -> None:
    """Refuses fields that nothing here takes. A value of null counts as none, as for OpenAI.

    Raises:
        InvalidRequestError: names the field, and near names.
    """
    known = frozenset(known) | IGNORED_FIELDS
    where = f" in {place}" if place else ""
    for name, value in given.items():
        if name in known or value is None:
            continue
        if name in _NEUTRAL:
            if value in _NEUTRAL[name]:
                continue
            raise InvalidRequestError(f"field {name!r}{where} is not supported")
        near = difflib.get_close_matches(name, known)
        raise InvalidRequestError(f"unknown field {name!r}{where}" + (f"; did you mean {' or '.join(near)}?" if near else ""))


def sampling_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling values among a row's fields, by their names in `SamplingParams`, which checks their ranges.

    Raises:
        InvalidRequestError: a value is of the wrong kind.
    """
    given = {name: value for name, value in fields.items() if value is not None and name in SAMPLING_FIELDS}
    taken: dict[str, Any] = {name: given[name] for name in _AS_THEY_ARE if name in given}
    for name, read in _READERS.items():
        if name in given:
            taken |= read(given[name])
    if "max_completion_tokens" in given:
        if "max_tokens" in given and given["max_tokens"] != given["max_completion_tokens"]:
            raise InvalidRequestError("max_tokens and max_completion_tokens are two names for the same; give one")
        taken["max_tokens"] = given["max_completion_tokens"]
    if "logprobs" in given or "top_logprobs" in given:
        taken |= _logprobs(given)
    return taken


def _stop(value: object) -> dict[str, Any]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise InvalidRequestError(f"stop must be a text or a list of texts, not {shown(value)}")
    return {"stop": tuple(stops)} if stops else {}


def _stop_token_ids(value: object) -> dict[str, Any]:
    if not isinstance(value, list) or not all(_is_whole(token_id) for token_id in value):
        raise InvalidRequestError(f"stop_token_ids must be a list of token ids, not {shown(value)}")
    return {"stop_token_ids": tuple(value)}


def _logit_bias(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"logit_bias must be an object of token ids and numbers, not {shown(value)}")
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        if not (token_id.isascii() and token_id.isdigit() and len(token_id) < 20):
            raise InvalidRequestError(f"logit_bias has {shown(token_id)}, which is no token id")
        if not _is_number(bias):
            raise InvalidRequestError(f"logit_bias of token {token_id} must be a number, not {shown(bias)}")
        biases[int(token_id)] = bias
    return {"logit_bias": biases}


def _flag(name: str) -> Callable[[object], dict[str, Any]]:
    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name} must be true or false, not {shown(value)}")
        return {name: value}

    return read


_READERS: dict[str, Callable[[object], dict[str, Any]]] = {
    "stop": _stop,
    "stop_token_ids": _stop_token_ids,
    "logit_bias": _logit_bias,
    **{name: _flag(name) for name in _FLAGS},
}


def _logprobs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of chats it is a flag with the number beside it, of completions the number itself."""
    wanted, top = given.get("logprobs"), given.get("top_logprobs")
    if top is not None and (not _is_whole(top) or not 0 <= top <= MAX_LOGPROBS):
        raise InvalidRequestError(f"top_logprobs must be a whole number between 0 and {MAX_LOGPROBS}, not {shown(top)}")
    if wanted is True:
        return {"logprobs": top or 0}
    if top is not None and (wanted is None or wanted is False):
        raise InvalidRequestError("top_logprobs needs logprobs: true")
    if top is not None:
        raise InvalidRequestError("logprobs as a number and top_logprobs are two names for the same; give one")
    return {} if wanted is False else {"logprobs": wanted}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- messages --------------------------------------------------------------------------------------------------------


def messages_of(value: object) -> tuple[ChatMessage, ...]:
    """A conversation as OpenAI writes it.

    Raises:
        InvalidRequestError: it is none, has something else than text in it, or no text at all.
    """
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(
            f"messages must be a list of messages, not {shown(value)}" if value != [] else "empty prompt: no messages"
        )
    messages = tuple(_message(entry, f"messages[{i}]") for i, entry in enumerate(value))
    if not any(message.content or message.reasoning for message in messages):
        raise InvalidRequestError("empty prompt: no message has a text")
    return messages


def _message(entry: object, place: str) -> ChatMessage:
    if not isinstance(entry, dict):
        raise InvalidRequestError(f"{place} must be an object with role and content, not {shown(entry)}")
    for name, value in entry.items():
        if name not in _MESSAGE_FIELDS and value not in (None, [], ""):
            near = difflib.get_close_matches(name, _MESSAGE_FIELDS)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; it takes {', '.join(sorted(_MESSAGE_FIELDS))}"
            raise InvalidRequestError(f"unknown field {name!r} in {place}{hint}")
    role = entry.get("role")
    if not isinstance(role, str):
        raise InvalidRequestError(f"{place} has no role" if role is None else f"role of {place} must be text, not {shown(role)}")
    reasoning = entry.get("reasoning_content") or entry.get("reasoning") or ""
    if not isinstance(reasoning, str):
        raise InvalidRequestError(f"reasoning_content of {place} must be text, not {shown(reasoning)}")
    return ChatMessage(_ROLES.get(role, role), _content(entry.get("content"), place), reasoning=reasoning)


def _content(value: object, place: str) -> str:
    """Text, or the texts of several parts with a line end between them."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(f"content of {place} must be text or a list of text parts, not {shown(value)}")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise InvalidRequestError(f"content of {place} may hold parts of type 'text' only, not {shown(kind)}")
        texts.append(part["text"])
    return "\n".join(texts)


def shown(value: object) -> str:
    """A value in an error message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
