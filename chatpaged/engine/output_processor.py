"""From token ids to text: incremental detokenizing, stop texts, end tokens, lengths."""

from __future__ import annotations

from dataclasses import dataclass

from chatpaged.engine.outputs import Completion, FinishReason
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.sequence import Sequence
from chatpaged.engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns a growing list of ids into text, piece by piece.

    The pieces join to the decoded text of all ids. A character whose bytes are not all there yet is held back; it comes out
    as U+FFFD only once it can never be completed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoding starts anew at a place where text was complete, with the ids before it as context: decoders treat the
        # first token of a text differently (a leading space may be dropped).
        self._context: list[int] = []
        self._pending: list[int] = []
        self._num_emitted = 0

    def append(self, token_id: int) -> str:
        """Takes one more token; returns the text that has become certain."""
        if self._tokenizer.is_hidden(token_id):
            return ""
        self._pending.append(token_id)
        text = self._tokenizer.decode(self._context + self._pending)
        stable = text.removesuffix(REPLACEMENT)
        piece = stable[self._num_emitted :]
        if stable == text:
            self._context, self._pending = self._pending, []
            self._num_emitted = len(self._tokenizer.decode(self._context))
        else:
            self._num_emitted += len(piece)
        return piece

    def flush(self) -> str:
        """The rest, with U+FFFD for what is incomplete."""
        piece = self._tokenizer.decode(self._context + self._pending)[self._num_emitted :]
        self._num_emitted += len(piece)
        return piece


class StopTexts:
    """Holds text back as long as a stop text may be beginning in it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def append(self, piece: str) -> tuple[str, bool]:
        """Takes more text; returns what may be shown, and whether a stop text was found (then nothing may follow)."""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """What was held back and is no stop text after all."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins, but is not all of, `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True, slots=True)
class TokenOutcome:
    """What one token did to its sequence.

    Attributes:
        text: text that may be shown now.
        completion: the whole answer, if this token ended it.
    """

    text: str
    completion: Completion | None


class _Answer:
    """One sample's text so far."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.detokenizer = Detokenizer(tokenizer)
        self.stops = StopTexts(params.stop)
        self.text = ""


class OutputProcessor:
    """Text side of all unfinished sequences."""

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: frozenset[int], max_tokens: int) -> None:
        """Makes a processor.

        Args:
            tokenizer: the model's.
            stop_token_ids: the union of what model, generation settings and tokenizer name as end tokens.
            max_tokens: longest sequence in tokens, prompt and answer.
        """
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._max_tokens = max_tokens
        self._answers: dict[int, _Answer] = {}

    def append(self, sequence: Sequence) -> TokenOutcome:
        """Processes the last token of a sequence."""
        params = sequence.group.params
        answer = self._answers.get(sequence.seq_id)
        if answer is None:
            answer = self._answers[sequence.seq_id] = _Answer(self._tokenizer, params)
        token_id = sequence.token_ids[-1]
        if token_id in params.stop_token_ids or (token_id in self._stop_token_ids and not params.ignore_eos):
            shown, stopped = self._end(answer)
            return self._outcome(sequence, answer, shown, FinishReason.STOP, cut=stopped, end_tokens=1)
        shown, stopped = answer.stops.append(answer.detokenizer.append(token_id))
        if stopped:
            return self._outcome(sequence, answer, shown, FinishReason.STOP, cut=True)
        full = params.max_tokens is not None and sequence.num_output_tokens >= params.max_tokens
        if full or sequence.num_tokens >= self._max_tokens:
            rest, stopped = self._end(answer)
            return self._outcome(sequence, answer, shown + rest, FinishReason.LENGTH, cut=stopped)
        answer.text += shown
        return TokenOutcome(shown, None)

    def cancel(self, sequence: Sequence) -> TokenOutcome:
        """Ends a sequence as it stands."""
        answer = self._answers.get(sequence.seq_id) or _Answer(self._tokenizer, sequence.group.params)
        shown, stopped = self._end(answer)
        return self._outcome(sequence, answer, shown, FinishReason.CANCELLED, cut=stopped)

    @staticmethod
    def _end(answer: _Answer) -> tuple[str, bool]:
        """The last text of an answer, and whether its flushed bytes complete a stop text."""
        shown, stopped = answer.stops.append(answer.detokenizer.flush())
        return shown + answer.stops.flush(), stopped

    def _outcome(
        self, sequence: Sequence, answer: _Answer, shown: str, reason: FinishReason, *, cut: bool, end_tokens: int = 0
    ) -> TokenOutcome:
        self._answers.pop(sequence.seq_id, None)
        text = answer.text + shown
        num_tokens = sequence.num_output_tokens
        output_ids = sequence.token_ids[sequence.group.num_prompt_tokens : sequence.num_tokens - end_tokens]
        token_ids = self._ids_of(text, output_ids) if cut else output_ids
        return TokenOutcome(shown, Completion(sequence.index, text, tuple(token_ids), reason, num_tokens))

    def _ids_of(self, text: str, token_ids: list[int]) -> list[int]:
        """Ids for the beginning of an answer that a stop text has cut: generated ones as far as they go."""
        for count in range(len(token_ids), 0, -1):
            decoded = self._tokenizer.decode(token_ids[:count])
            if text.startswith(decoded):
                return token_ids[:count] + self._tokenizer.encode(text[len(decoded) :])
        return self._tokenizer.encode(text)
