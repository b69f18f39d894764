"""Thinking blocks: which texts open and close them, and whether a prompt ends within one.

Nothing in a model directory says how a model marks its thinking. The chat template does by what it looks for in old turns or
writes before a reply, and the tokenizer by what it has tokens for; so the markers are found by their form: a bracketed
name that speaks of thinking, with a partner that closes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
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


@dataclass(frozen=True, slots=True)
class SplitReply:
    """A reply taken apart. `reasoning_ids` and `token_ids` together are the ids it was generated as.

    Attributes:
        text: the answer; line ends between the thinking and it are left out.
        token_ids: its ids.
        reasoning: the thinking, without markers and space around it.
        reasoning_ids: all ids before the answer, those of markers and line ends included.
    """

    text: str
    token_ids: tuple[int, ...]
    reasoning: str = ""
    reasoning_ids: tuple[int, ...] = ()


def split_reasoning(
    token_ids: Sequence[int], markers: ReasoningMarkers | None, tokenizer: Tokenizer, *, inside: bool = False
) -> SplitReply:
    """Takes a whole reply apart into thinking and answer.

    A block that is never closed is thinking to its end. Where a marker ends within a token (markers that are plain text), the rest
    of that token is encoded anew for the answer.

    Args:
        token_ids: the ids of the reply.
        markers: the model's; None for one that does not think.
        tokenizer: the model's.
        inside: the reply begins within a thinking block.
    """
    ids = tuple(token_ids)
    if markers is None:
        return SplitReply(tokenizer.decode(ids), ids)
    opened = 0 if inside else _after_opening(ids, markers, tokenizer)
    if opened is None:
        return SplitReply(tokenizer.decode(ids), ids)
    found = _find(ids, opened, markers.end, markers.end_ids, tokenizer)
    if found is None:
        return SplitReply("", (), _thinking(tokenizer.decode(ids[opened:]), markers), ids)
    at, closed = found
    thought = tokenizer.decode(ids[opened:at])
    reasoning = _thinking(thought, markers)
    rest = thought.partition(markers.end)[2].lstrip("\r\n")
    if rest:
        answer_ids = (*tokenizer.encode(rest), *ids[closed:])
        return SplitReply(rest + _decode_after(ids, closed, tokenizer), answer_ids, reasoning, ids[:closed])
    while closed < len(ids) and not tokenizer.decode(ids[closed : closed + 1]).strip("\r\n"):
        closed += 1
    return SplitReply(_decode_after(ids, closed, tokenizer), ids[closed:], reasoning, ids[:closed])


def _after_opening(ids: tuple[int, ...], markers: ReasoningMarkers, tokenizer: Tokenizer) -> int | None:
    """How many ids the marker takes that a reply begins with; None if it begins with something else."""
    found = _find(ids, 0, markers.start, markers.start_ids, tokenizer)
    if found is None:
        return None
    before = tokenizer.transcribe(ids[: found[1]])
    return found[1] if before.lstrip().startswith(markers.start) else None


def _find(ids: tuple[int, ...], begin: int, text: str, marker_ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Positions of and after the first marker at or behind `begin`; twice the latter if the marker is not known by its ids."""
    length = len(marker_ids)
    for at in range(begin, len(ids) - length + 1):
        if ids[at] == marker_ids[0] and ids[at : at + length] == marker_ids:
            return at, at + length
    if length == 1 or text not in tokenizer.transcribe(ids[begin:]):
        return None
    # Plain text, whose ids are others beside other text. The shortest beginning that holds it ends with it.
    low, high = begin + 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        if text in tokenizer.transcribe(ids[begin:middle]):
            high = middle
        else:
            low = middle + 1
    return low, low


def _thinking(text: str, markers: ReasoningMarkers) -> str:
    """Thinking without the markers that may stand at its ends as text."""
    return text.partition(markers.end)[0].strip().removeprefix(markers.start).strip()


def _decode_after(ids: tuple[int, ...], begin: int, tokenizer: Tokenizer) -> str:
    """Text of the last ids as it reads after the others: alone, some decoders would drop a space before it."""
    if begin and begin < len(ids):
        before = tokenizer.decode(ids[begin - 1 : begin])
        both = tokenizer.decode(ids[begin - 1 :])
        if both.startswith(before):
            return both[len(before) :]
    return tokenizer.decode(ids[begin:])
