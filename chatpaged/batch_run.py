"""Runs the rows of a batch through an engine: some wait, many run, each is written when it is done.

However long the input is, only a few rows are held: those that run, as many again that wait for a place, and, where the output has to be
in the order of the input, those that wait for an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from chatpaged.batch_output import Answered, OutputRows
from chatpaged.batch_rows import INVALID_ROW, BadRow, BatchRow
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import Completion, RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.sequence import Keep
from chatpaged.errors import ChatpagedError, InvalidRequestError, ModelError, PromptTooLongError
from chatpaged.messages import RenderedPrompt

TOO_LONG, NO_TEMPLATE, FAILED = "prompt_too_long", "model_error", "failed"
_CODES: dict[type[ChatpagedError], str] = {PromptTooLongError: TOO_LONG, InvalidRequestError: INVALID_ROW, ModelError: NO_TEMPLATE}
# For each row that may run: rows that were given to the engine, and rows between the first and the last that is not written yet.
_QUEUED = 2
_WINDOW = 64

Render = Callable[[BatchRow], RenderedPrompt]


@dataclass(slots=True)
class BatchCounts:
    """How far a batch is.

    Attributes:
        ok: rows answered.
        failed: rows that could not be.
        prompt_tokens: of the rows answered.
        cached_tokens: those of them that were not computed, since an earlier row had the same beginning.
        prefill_tokens: those that were.
        completion_tokens: of their answers.
        generated: tokens of answers so far, unfinished ones included.
    """

    ok: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    completion_tokens: int = 0
    generated: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were found in the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True)
class _Running:
    row: BatchRow
    place: int
    seed: int
    completions: list[Completion] = field(default_factory=list)


class BatchRun:
    """One batch on one engine, which is used for nothing else meanwhile.

    Attributes:
        counts: how far it is.
    """

    def __init__(
        self,
        engine: LLMEngine,
        output: OutputRows,
        write: Callable[[bytes], None],
        *,
        render: Render,
        defaults: SamplingParams,
        ordered: bool = False,
    ) -> None:
        """Makes a run.

        Args:
            engine: it is given requests and stepped.
            output: makes the lines.
            write: takes each line, complete, at once.
            render: turns a row into a prompt.
            defaults: hold where a row does not say otherwise.
            ordered: write rows in the order they come in, not as they are done.
        """
        self._engine = engine
        self._output = output
        self._render = render
        self._defaults = defaults
        self._writer = _InOrder(write) if ordered else None
        self._write = write
        self._limit = _QUEUED * engine.config.max_num_seqs
        self._window = _WINDOW * engine.config.max_num_seqs
        self._running: dict[str, _Running] = {}
        self._num_taken = 0
        self.counts = BatchCounts()

    def run(self, rows: Iterable[BatchRow | BadRow], after_step: Callable[[BatchCounts], None] = lambda _: None) -> None:
        """Runs all rows.

        Args:
            rows: read when there is room for more.
            after_step: is called now and then, to tell the user.

        Raises:
            ChatpagedError: the engine cannot go on. A row that fails is a line of the output instead.
        """
        rows = iter(rows)
        while self._feed(rows) or self._running:
            for news in self._engine.step():
                self._take(news)
            after_step(self.counts)

    def _feed(self, rows: Iterator[BatchRow | BadRow]) -> bool:
        """Gives the engine rows until there is no room, or there are none. Returns whether it has work."""
        while len(self._running) < self._limit and (self._writer is None or self._num_taken - self._writer.num_written < self._window):
            row = next(rows, None)
            if row is None:
                return False
            place = self._num_taken
            self._num_taken += 1
            bad = row if isinstance(row, BadRow) else self._start(row, place)
            if bad is not None:
                self._fail(bad, place)
        return True

    def _start(self, row: BatchRow, place: int) -> BadRow | None:
        try:
            params = replace(self._defaults, **row.sampling)
            split = not isinstance(row.prompt, str)
            request_id = self._engine.add_request(self._render(row), params, keep=Keep.SHARED, split_reasoning=split)
        except ChatpagedError as error:
            return _bad(row, error)
        self._running[request_id] = _Running(row, place, self._engine.seed_of(request_id) or 0)
        return None

    def _take(self, news: RequestOutput) -> None:
        running = self._running[news.request_id]
        running.completions += news.completions
        self.counts.generated += sum(delta.num_tokens for delta in news.deltas)
        if not news.finished:
            return
        del self._running[news.request_id]
        if news.error is not None or news.metrics is None:
            self._fail(_bad(running.row, news.error), running.place)
            return
        counts, metrics = self.counts, news.metrics
        counts.ok += 1
        counts.prompt_tokens += metrics.prompt_tokens
        counts.cached_tokens += metrics.cached_tokens
        counts.prefill_tokens += metrics.prefill_tokens
        counts.completion_tokens += metrics.completion_tokens
        running.completions.sort(key=lambda done: done.index)
        self._put(running.place, self._output.answer(running.row, Answered(running.completions, metrics, running.seed)))

    def _fail(self, bad: BadRow, place: int) -> None:
        self.counts.failed += 1
        self._put(place, self._output.failure(bad))

    def _put(self, place: int, line: bytes) -> None:
        if self._writer is None:
            self._write(line)
        else:
            self._writer.put(place, line)


class _InOrder:
    """Writes lines in the order of their places; one whose turn has not come is held."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._held: dict[int, bytes] = {}
        self.num_written = 0

    def put(self, place: int, line: bytes) -> None:
        """Takes a line, and writes those whose turn it is."""
        self._held[place] = line
        while self.num_written in self._held:
            self._write(self._held.pop(self.num_written))
            self.num_written += 1


def _bad(row: BatchRow, error: Exception | None) -> BadRow:
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)
    return BadRow(row.number, row.custom_id, code, str(error) if error is not None else "the engine gave no answer")
