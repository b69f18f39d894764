"""An executor that answers from a script and keeps its memory in blocks like a model does.

What a model keeps of a token are its keys and values; this one keeps the token itself. It reads each sequence back through its block
table, and goes on with what it finds there. So a block that is shared, found again or copied wrongly would show in the answers.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chatpaged.demo_texts import ANSWERS, CRASH, LOOP, REPEAT, DemoAnswer
from chatpaged.engine.executor import BlockExchange, ModelCode, StepResult
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind, SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.engine.tokenizer import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"
CONTEXT = 4096
"""Tokens of the longest sequence."""
_HEADER = f"{START}assistant\n"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a step takes, in seconds.

    Attributes:
        step: whatever is in it.
        sequence: more for each sequence.
        prompt_token: more for each token of a prompt.
    """

    step: float = 0.012
    sequence: float = 0.0006
    prompt_token: float = 0.00025

    def seconds(self, output: SchedulerOutput) -> float:
        """The time for one step."""
        return self.step + self.sequence * len(output.rows) + self.prompt_token * max(0, output.num_tokens - len(output.rows))


INSTANT = Pace(0.0, 0.0, 0.0)


class DemoExecutor:
    """Satisfies `ModelExecutor`."""

    def __init__(self, tokenizer: Tokenizer, *, pace: Pace, num_blocks: int, block_size: int, swap_space: int = 0) -> None:
        """Makes an executor.

        Args:
            tokenizer: the demo's.
            pace: how long steps take.
            num_blocks: blocks of the pool, the null block included.
            block_size: tokens of a block.
            swap_space: bytes of memory below the pool.
        """
        self.code = ModelCode(name="demo, without a model")
        self.num_blocks = num_blocks
        self.block_bytes = 45 * 1024 * block_size  # what the starter model takes
        self.vocab_size = tokenizer.vocab_size
        self.max_model_len = CONTEXT
        self.max_num_batched_tokens = 128
        self.fingerprint = b"demo"
        self.stop_token_ids = frozenset({tokenizer.control_tokens[END]})
        self._tokenizer = tokenizer
        self._pace = pace
        self._block_size = block_size
        self._slots = array("i", [0]) * (num_blocks * block_size)
        self.num_host_blocks = swap_space // self.block_bytes
        self.host_is_file = False
        self.facts: Mapping[str, str] = {"model": "demo"}
        self._host = array("i", [0]) * (self.num_host_blocks * block_size)
        self._start_id, self._end_id = (tokenizer.control_tokens[text] for text in (START, END))
        self._header_length = len(self._ids(_HEADER))
        self._newline_id = self._ids("\n")[0]
        self._scripts = {answer: array("i", [*self._ids(answer.text.strip()), self._end_id]) for answer in (*ANSWERS, LOOP)}

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode_parts(self._tokenizer.split_control(text))

    # --- the step ----------------------------------------------------------------------------------------------------------

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Moves blocks, writes the new tokens into them, and says the next ones.

        Raises:
            RuntimeError: the question is `crash`.
        """
        begin = time.perf_counter()
        self.move(output.operations)
        moved = time.perf_counter()
        for row in output.rows:
            self._write(row)
        written = time.perf_counter()
        drawn = tuple(self._draw(row) if row.samples else () for row in output.rows)
        sampled = time.perf_counter()
        time.sleep(max(0.0, self._pace.seconds(output) - (sampled - begin)))
        return StepResult(
            token_ids=drawn,
            operations=moved - begin,
            prepare=written - moved,
            forward=time.perf_counter() - sampled,
            sample=sampled - written,
        )

    def connect(self, exchange: BlockExchange) -> None:
        """The demo keeps no files."""

    def move(self, operations: Iterable[BlockOperation]) -> float:
        """See `ModelExecutor.move`."""
        begin = time.perf_counter()
        memories = {
            BlockOperationKind.COPY: (self._slots, self._slots),
            BlockOperationKind.SWAP_OUT: (self._slots, self._host),
            BlockOperationKind.SWAP_IN: (self._host, self._slots),
        }
        for operation in operations:
            source, destination = memories[operation.kind]
            destination[self._span(operation.destination)] = source[self._span(operation.source)]
        return time.perf_counter() - begin

    def _span(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)

    def _write(self, row: ScheduledRow) -> None:
        for position, token_id in enumerate(row.token_ids, row.start):
            self._slots[row.block_table[position // self._block_size] * self._block_size + position % self._block_size] = token_id

    def _read(self, row: ScheduledRow) -> array[int]:
        """All tokens of a sequence, as its blocks have them."""
        token_ids = array("i")
        for block in row.block_table:
            token_ids += self._slots[self._span(block)]
        return token_ids[: row.end]

    def close(self) -> None:
        """Nothing to give back."""

    # --- the answer --------------------------------------------------------------------------------------------------------

    def _draw(self, row: ScheduledRow) -> tuple[int, ...]:
        token_ids = self._read(row)
        header = _last_index(token_ids, self._start_id, len(token_ids))
        said = token_ids[header + self._header_length :] if header >= 0 else array("i")
        return tuple(self._next(token_ids, said, header, sample, row.samples[0].uniform) for sample in row.samples)

    def _next(self, token_ids: array[int], said: array[int], header: int, sample: SampleRow, uniform: float) -> int:
        """The token after what has been said: by this request, and before it where an answer is taken up again."""
        own = token_ids[len(token_ids) - sample.position :]
        begun = self._begun(said) or self._begun(own)
        prompt = token_ids[: len(token_ids) - sample.position]
        script, at = begun or (self._scripts[self._choose(prompt, header, sample.index, uniform)], sample.position)
        token_id = script[min(at, len(script) - 1)]
        return self._newline_id if sample.changes is not None and token_id in sample.changes.banned else token_id

    def _begun(self, said: array[int]) -> tuple[array[int], int] | None:
        """The answer that begins so, and how far it is."""
        found = (script for script in self._scripts.values() if said and script[: len(said)] == said)
        return next(((script, len(said)) for script in found), None)

    def _choose(self, prompt: array[int], header: int, index: int, uniform: float) -> DemoAnswer:
        """The answer to a question, first the one whose words are in it. Samples of one request get different ones."""
        question = self._question(prompt, header)
        if question == CRASH:
            raise RuntimeError("the demo was asked to crash")
        if question == REPEAT:
            return LOOP
        matching = [answer for answer in ANSWERS if any(re.search(rf"\b{word}", question) for word in answer.words)]
        others = [answer for answer in ANSWERS if answer not in matching]
        seed = hashlib.blake2b(prompt.tobytes() + repr(uniform).encode(), digest_size=8).digest()
        random.Random(seed).shuffle(others)  # noqa: S311 - no secret
        order = [*matching, *others]
        return order[index % len(order)]

    def _question(self, prompt: Sequence[int], header: int) -> str:
        """What the user has said last, in small letters."""
        before = _last_index(prompt, self._start_id, header)
        text = self._tokenizer.decode(prompt[before + 1 : header if header >= 0 else len(prompt)])
        return text.removeprefix("user\n").strip().casefold()


def _last_index(token_ids: Sequence[int], token_id: int, end: int) -> int:
    """The last place of a token before `end`; -1 if it is not there."""
    return next((i for i in range(end - 1, -1, -1) if token_ids[i] == token_id), -1)
