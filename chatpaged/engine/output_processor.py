"""From token ids to answers: text, reasoning, stop texts, end tokens, lengths, answers that go round in circles."""

from __future__ import annotations

from dataclasses import dataclass

from chatpaged.engine.detokenizer import Detokenizer
from chatpaged.engine.outputs import Completion, FinishReason, TokenLogprobs
from chatpaged.engine.reasoning import ReasoningMarkers
from chatpaged.engine.reasoning_splitter import ReasoningSplitter
from chatpaged.engine.repetition import RepetitionDetector
from chatpaged.engine.sequence import Sequence
from chatpaged.engine.stop_texts import StopTexts
from chatpaged.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenOutcome:
    """What one token did to its sequence.

    Attributes:
        text: text that may be shown now.
        completion: the whole answer, if this token ended it.
        reasoning: likewise text of the model's reasoning.
        repeats: how often the end of the answer has repeated itself, once that is out of the ordinary; else 0.
    """

    text: str
    completion: Completion | None
    reasoning: str = ""
    repeats: int = 0


class _Answer:
    """One sample's text so far."""

    def __init__(self, tokenizer: Tokenizer, markers: ReasoningMarkers | None, sequence: Sequence) -> None:
        thinking = sequence.group.thinking
        self.detokenizer = Detokenizer(tokenizer)
        self.splitter = ReasoningSplitter(markers if thinking is not None else None, inside=bool(thinking))
        self.stops = StopTexts(sequence.group.params.stop)
        self.repetition = RepetitionDetector()
        self.text = ""
        self.reasoning = ""
        self.logprobs: list[TokenLogprobs] = []
        self.stopped = False
        """Whether a stop text has been found."""
        self.num_before = 0
        """Tokens up to the one that the answer's text begins after, or in."""
        self.head = ""
        """Text of the answer that this very token held."""

    def add(self, piece: str, num_tokens: int, *, may_stop: bool) -> tuple[str, str]:
        """Takes more of the reply. Returns the reasoning and the text that may be shown."""
        was_in_answer = self.splitter.in_answer
        split = self.splitter.append(piece)
        if self.splitter.in_answer and not was_in_answer and self.splitter.saw_marker:
            self.num_before, self.head = num_tokens, split.answer
        text = split.answer
        if may_stop and text:
            text, self.stopped = self.stops.append(text)
        return self._keep(split.reasoning, text)

    def end(self) -> tuple[str, str]:
        """The last of it."""
        split = self.splitter.append(self.detokenizer.flush())
        rest = self.splitter.flush()
        text, self.stopped = self.stops.append(split.answer + rest.answer)
        return self._keep(split.reasoning + rest.reasoning, text + self.stops.flush())

    def _keep(self, reasoning: str, text: str) -> tuple[str, str]:
        self.reasoning += reasoning
        self.text += text
        return reasoning, text


class OutputProcessor:
    """Text side of all unfinished sequences."""

    def __init__(
        self, tokenizer: Tokenizer, stop_token_ids: frozenset[int], max_tokens: int, markers: ReasoningMarkers | None = None
    ) -> None:
        """Makes a processor.

        Args:
            tokenizer: the model's.
            stop_token_ids: the union of what model, generation settings and tokenizer name as end tokens.
            max_tokens: longest sequence in tokens, prompt and answer.
            markers: what the model writes around its reasoning, if it does.
        """
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._max_tokens = max_tokens
        self._markers = markers
        ids = {*markers.start_ids, *markers.end_ids, *markers.answer_start_ids} if markers is not None else set()
        self._hidden_markers = {i: text for text, i in tokenizer.control_tokens.items() if i in ids and tokenizer.is_hidden(i)}
        """Special tokens that markers consist of: decoded text lacks them."""
        self._answers: dict[int, _Answer] = {}

    def append(self, sequence: Sequence, logprobs: TokenLogprobs | None = None) -> TokenOutcome:
        """Processes the last token of a sequence.

        Args:
            sequence: has got a new token.
            logprobs: what the executor reports of it.
        """
        params = sequence.group.params
        answer = self._answers.get(sequence.seq_id)
        if answer is None:
            answer = self._answers[sequence.seq_id] = _Answer(self._tokenizer, self._markers, sequence)
        if logprobs is not None:
            answer.logprobs.append(logprobs)
        token_id = sequence.token_ids[-1]
        if token_id in params.stop_token_ids or (token_id in self._stop_token_ids and not params.ignore_eos):
            return self._finish(sequence, answer, answer.end(), FinishReason.STOP, end_tokens=1)
        piece = self._piece(answer, token_id)
        news = answer.add(piece, sequence.num_output_tokens, may_stop=sequence.num_output_tokens >= params.min_tokens)
        if answer.stopped:
            return self._finish(sequence, answer, news, FinishReason.STOP)
        repeats = answer.repetition.append(token_id)
        reason = self._limit_reached(sequence, repeats)
        if reason is None:
            return TokenOutcome(news[1], None, news[0], repeats)
        rest = answer.end()
        return self._finish(sequence, answer, (news[0] + rest[0], news[1] + rest[1]), reason, repeats=repeats)

    def cancel(self, sequence: Sequence, reason: FinishReason = FinishReason.CANCELLED) -> TokenOutcome:
        """Ends a sequence as it stands."""
        answer = self._answers.get(sequence.seq_id) or _Answer(self._tokenizer, self._markers, sequence)
        return self._finish(sequence, answer, answer.end(), reason)

    def _piece(self, answer: _Answer, token_id: int) -> str:
        """Text that one more token has made certain, a marker's tokens written out as long as they may be ones."""
        if token_id in self._hidden_markers and not answer.splitter.in_answer:
            return answer.detokenizer.split() + self._hidden_markers[token_id]
        return answer.detokenizer.append(token_id)

    def _limit_reached(self, sequence: Sequence, repeats: int) -> FinishReason | None:
        params = sequence.group.params
        if repeats and params.stop_on_repeat:
            return FinishReason.REPETITION
        full = params.max_tokens is not None and sequence.num_output_tokens >= params.max_tokens
        return FinishReason.LENGTH if full or sequence.num_tokens >= self._max_tokens else None

    def _finish(
        self,
        sequence: Sequence,
        answer: _Answer,
        news: tuple[str, str],
        reason: FinishReason,
        *,
        end_tokens: int = 0,
        repeats: int = 0,
    ) -> TokenOutcome:
        self._answers.pop(sequence.seq_id, None)
        output_ids = sequence.token_ids[sequence.group.num_prompt_tokens : sequence.num_tokens - end_tokens]
        completion = Completion(
            sequence.index,
            answer.text,
            tuple(self._cut_ids(answer, output_ids) if answer.stopped else output_ids),
            reason,
            sequence.num_output_tokens,
            answer.reasoning if answer.splitter.has_reasoning else None,
            answer.splitter.in_answer or not answer.splitter.has_reasoning,
            tuple(answer.logprobs),
        )
        return TokenOutcome(news[1], completion, news[0], repeats)

    def _cut_ids(self, answer: _Answer, token_ids: list[int]) -> list[int]:
        """Ids of a reply that a stop text has cut: generated ones as far as they go."""
        before, inside = token_ids[: answer.num_before], token_ids[answer.num_before :]
        text = answer.text.removeprefix(answer.head)
        for count in range(len(inside), 0, -1):
            decoded = self._tokenizer.decode(inside[:count])
            if before and not answer.head:
                decoded = decoded.lstrip("\r\n")  # as line ends after reasoning are
            if text.startswith(decoded):
                return before + inside[:count] + self._tokenizer.encode(text[len(decoded) :])
        return before + self._tokenizer.encode(text)
