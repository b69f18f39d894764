"""Thinking blocks: which texts open and close them, and whether a prompt ends within one.

Nothing in a model directory says how a model marks its thinking. The chat template does by what it looks for in old turns or
writes before a reply, and the tokenizer by what it has tokens for; so the markers are found by their form: a bracketed
name that speaks of thinking, with a partner that closes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chatpaged.engine.tokenizer import Tokenizer

# Markers that are more than one bracketed word, each with what must occur in the template for them to be in use, and what a
# reply without thinking begins with.
_FIXED = (
    # gpt-oss: the channel `analysis`, then a new message in the channel `final`; or the latter at once.
    (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>analysis",
        "<|channel|>final<|message|>",
    ),
    # Gemma 4.
    ("<|channel>thought\n", "<channel|>", "<|channel>thought", ""),
)
_NAME = r"[\w:.-]*(?:think|thought|reason)[\w:.-]*"
_CANDIDATE = re.compile(rf"</?{_NAME}>|\[/?{_NAME}\]|<\|/?{_NAME}\|>", re.IGNORECASE)
# An opening marker that a template ends with: nothing but space, and the ends of its tags, comes after it.
_OPENED_AT_END = re.compile(
    rf"(?:(?<!\w)|(?<=\\n))({_CANDIDATE.pattern})(?:\s|\\n|['\"]|-?\}}\}}|\{{%-?\s*end\w+\s*-?%\}})*\Z", re.IGNORECASE
)
# Opening forms and what their partners look like; both ways, since many templates only name the closing one.
_PARTNERS = (
    (re.compile(r"([<\[]\|?)(?!/)(.+)"), r"\1/\2"),
    (re.compile(r"(<\|?)START_(.+)"), r"\1END_\2"),
    (re.compile(r"(<\|?)begin_of_(.+)"), r"\1end_of_\2"),
    (re.compile(r"(<\|?\w+_)start(\|?>)"), r"\1end\2"),
)
_OPENINGS = (
    (re.compile(r"([<\[]\|?)/(.+)"), r"\1\2"),
    (re.compile(r"(<\|?)END_(.+)"), r"\1START_\2"),
    (re.compile(r"(<\|?)end_of_(.+)"), r"\1begin_of_\2"),
    (re.compile(r"(<\|?\w+_)end(\|?>)"), r"\1start\2"),
)


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """What a model writes around its thinking.

    Depending on the model a marker is a special token (left out of decoded text: it must be found by its id), an ordinary added
    token, or plain text of several tokens (found in the text; its ids may differ beside other text).

    Attributes:
        start: text that opens a thinking block, such as `<think>`.
        end: text that closes it.
        start_ids: token ids of `start`; a single one where the tokenizer has a token for it.
        end_ids: token ids of `end`, likewise.
        answer_start: text with which a reply without thinking begins and that is no part of the answer; empty for most models.
        answer_start_ids: token ids of `answer_start`.
    """

    start: str
    end: str
    start_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()
    answer_start: str = ""
    answer_start_ids: tuple[int, ...] = ()


def find_reasoning_markers(template_source: str | None, tokenizer: Tokenizer) -> ReasoningMarkers | None:
    """The markers of a model; None if neither its template nor its tokenizer knows any.

    Args:
        template_source: the chat template as it is written. What it names goes before what the tokenizer has tokens for.
        tokenizer: the model's.
    """
    source = template_source or ""
    for start, end, sign, answer_start in _FIXED:
        if sign in source:
            return _with_ids(start, end, tokenizer, answer_start)
    tokens = tuple(text for text in tokenizer.control_tokens if _CANDIDATE.fullmatch(text))
    written = tuple(_CANDIDATE.findall(source))
    # A template that names only one of the two is believed; a token without a partner is something else.
    for pair in _pairs(written, frozenset((*written, *tokens))):
        return _with_ids(*pair, tokenizer)
    for pair in _pairs(tuple(text for text in written if _partner(text, _OPENINGS)), None):
        return _with_ids(*pair, tokenizer)
    opening = _OPENED_AT_END.search(source)
    opening_partner = _partner(opening[1], _PARTNERS) if opening is not None else None
    if opening is not None and opening_partner is not None:
        return _with_ids(opening[1], opening_partner, tokenizer)
    for pair in _pairs(tokens, frozenset(tokens)):
        return _with_ids(*pair, tokenizer)
    return None


def _pairs(candidates: Sequence[str], known: frozenset[str] | None) -> Iterator[tuple[str, str]]:
    """Pairs that a candidate is part of, both parts of which are known (any, if that is None)."""
    for text in candidates:
        end = _partner(text, _PARTNERS)
        start = _partner(text, _OPENINGS)
        if start is not None and (known is None or start in known):
            yield start, text
        elif end is not None and known is not None and end in known:
            yield text, end


def _partner(text: str, forms: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, form in reversed(forms):
        match = pattern.fullmatch(text)
        if match is not None:
            return match.expand(form)
    return None


def _with_ids(start: str, end: str, tokenizer: Tokenizer, answer_start: str = "") -> ReasoningMarkers:
    ids = [tuple(tokenizer.encode_parts(tokenizer.split_control(text))) for text in (start, end, answer_start)]
    return ReasoningMarkers(start, end, ids[0], ids[1], answer_start, ids[2])


def starts_inside(markers: ReasoningMarkers, rendered_text: str) -> bool:
    """Whether what follows a prompt is thinking: its last marker, with nothing but space after it, opens a block.

    Args:
        markers: the model's.
        rendered_text: the prompt with control tokens written out. Only its end counts, since what users write may hold markers too.
    """
    return rendered_text.rstrip().endswith(markers.start.rstrip())
