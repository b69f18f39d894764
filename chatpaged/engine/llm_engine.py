"""The engine, one synchronous step at a time.

```python
with LLMEngine.from_pretrained(Path("models/my-model")) as engine:
    result = engine.generate("Once upon a time", SamplingParams(max_tokens=20))
    chat = engine.generate([ChatMessage("user", "Hello!")])
    print(result.text, chat.text)
```

One thread owns an engine. Many requests run at once: add them, then call `step` until nothing is unfinished.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from chatpaged.chat_template import ChatMessage, ChatTemplate, RenderedPrompt
from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_pool import BlockPool
from chatpaged.engine.config import EngineConfig, SchedulerConfig
from chatpaged.engine.engine_tiers import CLOSE_SECONDS, EngineTiers
from chatpaged.engine.executor import NO_TOKEN, ModelCode, ModelExecutor, StepResult
from chatpaged.engine.gc_pause import collector_paused
from chatpaged.engine.limits import check_request
from chatpaged.engine.output_processor import OutputProcessor, TokenOutcome
from chatpaged.engine.outputs import Completion, Delta, FinishReason, RequestOutput, TokenLogprobs, merge_outputs
from chatpaged.engine.prompts import Prompt, render_prompt
from chatpaged.engine.reasoning import starts_inside
from chatpaged.engine.request_clock import RequestClock
from chatpaged.engine.retained_prefixes import PinResult, PrefixKeys
from chatpaged.engine.sampling_params import SamplingParams, new_seed
from chatpaged.engine.scheduler import Scheduler
from chatpaged.engine.scheduler_output import SchedulerOutput
from chatpaged.engine.sequence import Keep, SequenceGroup
from chatpaged.engine.sequence import Sequence as TokenSequence
from chatpaged.engine.snapshot import EngineSnapshot, GraphCounters, StepTiming, take_snapshot
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.engine.weight_files import check_directory
from chatpaged.engine.whole_answers import WholeAnswers
from chatpaged.errors import ChatpagedError, InvalidRequestError

_KEPT_STEPS = 128


class LLMEngine(WholeAnswers):
    """Scheduler, model and text processing put together."""

    def __init__(
        self,
        executor: ModelExecutor,
        tokenizer: Tokenizer,
        config: EngineConfig | None = None,
        *,
        chat_template: ChatTemplate | None = None,
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        """Puts an engine together from parts; `from_pretrained` does so for a model directory.

        Args:
            executor: the model with its KV pool.
            tokenizer: the model's.
            config: limits. What it leaves open comes from the executor.
            chat_template: needed for prompts that are messages.
            stop_token_ids: end tokens on top of the executor's and the tokenizer's.
        """
        self.config = config if config is not None else EngineConfig()
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._executor = executor
        self._tiers = EngineTiers.open(executor, self.config)
        blocks = BlockManager(
            BlockPool(executor.num_blocks),
            self.config.block_size,
            enable_prefix_caching=self.config.enable_prefix_caching,
            fingerprint=executor.fingerprint,
            tier=self._tiers.lower,
        )
        self.scheduler = Scheduler(_scheduler_config(self.config, executor), blocks, policy=self._tiers.policy)
        self._stop_token_ids = frozenset(stop_token_ids) | executor.stop_token_ids | tokenizer.stop_token_ids
        self._markers = chat_template.markers if chat_template is not None else None
        self._processor = OutputProcessor(tokenizer, self._stop_token_ids, self.scheduler.max_tokens, self._markers)
        self._clocks: dict[str, RequestClock] = {}
        self._steps: deque[StepTiming] = deque(maxlen=_KEPT_STEPS)
        self._graphs = GraphCounters()
        self._names = (f"request-{number}" for number in itertools.count())

    @classmethod
    def from_pretrained(
        cls,
        directory: Path,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        chat_template: ChatTemplate | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Loads a model directory: `config.json`, safetensors, `tokenizer.json`.

        Args:
            directory: the model.
            config: engine options.
            tokenizer: the model's, if it has been read already.
            chat_template: one to use in place of the model's.
            progress: is told, in a few words, what is being done.

        Raises:
            ModelError: something is missing, damaged or not supported.
            MemoryBudgetError: weights or KV pool do not fit the free memory; found out before allocating.
        """
        check_directory(directory)  # torch takes seconds to import: what is damaged is refused before
        with collector_paused():
            # The one place from which torch is reached.
            from chatpaged.engine.model_executor.model_runner import ModelRunner  # noqa: PLC0415, TID251

        config = config if config is not None else EngineConfig()
        tokenizer = tokenizer if tokenizer is not None else Tokenizer.from_directory(directory)
        template = chat_template if chat_template is not None else ChatTemplate.from_directory(directory, tokenizer)
        executor = ModelRunner.load(directory, config, progress=progress)
        return cls(executor, tokenizer, config, chat_template=template)

    # --- requests ------------------------------------------------------------------------------------------------------

    def render(self, prompt: Prompt) -> RenderedPrompt:
        """Turns a prompt into token ids without running it.

        Raises:
            InvalidRequestError: the prompt is empty, or the chat template refuses the messages.
            ModelError: messages were given, but the model has no chat template.
        """
        return render_prompt(prompt, self.tokenizer, self.chat_template)

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        interactive: bool = False,
        salt: bytes = b"",
        keep: Keep = Keep.FILE,
        split_reasoning: bool = True,
    ) -> str:
        """Queues a request.

        Args:
            prompt: plain text, token ids or messages.
            params: how to sample and when to stop.
            request_id: a name not in use; one is made up when it is missing.
            priority: lower is more urgent.
            interactive: somebody reads along: steps are kept short enough for a smooth stream.
            salt: only requests with the same salt share computed blocks, and these never reach a disk.
            keep: which of its blocks are worth a file.
            split_reasoning: tell the model's reasoning from its answer, where it marks it; plain text is never split.

        Returns:
            The request's id.

        Raises:
            InvalidRequestError: empty prompt, unknown token ids in prompt or parameters, or a request id that is in use.
            PromptTooLongError: the prompt fits neither the context nor the pool.
        """
        if request_id is None:
            request_id = next(name for name in self._names if name not in self._clocks)
        if request_id in self._clocks:
            raise InvalidRequestError(f"request id {request_id!r} is in use")
        rendered = self.render(prompt)
        if not 0 <= min(rendered.token_ids) <= max(rendered.token_ids) < self._executor.vocab_size:
            raise InvalidRequestError(f"a token id of the prompt is not between 0 and {self._executor.vocab_size - 1}")
        params = params if params is not None else SamplingParams()
        check_request(params, priority=priority, salt=salt, vocab_size=self._executor.vocab_size)
        group = SequenceGroup(
            request_id,
            rendered.token_ids,
            params,
            params.seed if params.seed is not None else new_seed(),
            priority=priority,
            interactive=interactive,
            salt=salt,
            keep=keep,
            end_token_ids=tuple(sorted(self._stop_token_ids | set(params.stop_token_ids))),
            thinking=self._thinking(prompt, rendered) if split_reasoning else None,
        )
        self.scheduler.add(group)
        self._clocks[request_id] = RequestClock(time.perf_counter())
        return request_id

    def _thinking(self, prompt: Prompt, rendered: RenderedPrompt) -> bool | None:
        if self._markers is None or isinstance(prompt, str):
            return None
        if isinstance(prompt, RenderedPrompt) or any(isinstance(item, ChatMessage) for item in prompt):
            return rendered.in_reasoning
        return starts_inside(self._markers, rendered.text)

    def set_priority(self, request_id: str, priority: int, *, interactive: bool) -> None:
        """Changes how urgent a request is; takes effect with the next step."""
        self.scheduler.set_priority(request_id, priority, interactive=interactive)

    def seed_of(self, request_id: str) -> int | None:
        """The seed of an unfinished request's first sample, drawn or given."""
        group = self.scheduler.group(request_id)
        return group.seed if group else None

    def abort(self, request_id: str) -> RequestOutput | None:
        """Cancels a request; its blocks are free at once. Returns its last output, or None if it is not running any more."""
        group = self.scheduler.group(request_id)
        return self._end_early(group, FinishReason.CANCELLED) if group is not None else None

    def _end_early(self, group: SequenceGroup, reason: FinishReason, error: ChatpagedError | None = None) -> RequestOutput:
        deltas = []
        for sequence in self.scheduler.abort(group.request_id):
            outcome = self._processor.cancel(sequence, reason)
            deltas.append(Delta(sequence.index, outcome.text, (), outcome.completion, outcome.reasoning))
        # Where the prompt has not been read, nothing is forked yet.
        missing = range(len(group.sequences), group.params.n)
        deltas += (Delta(index, "", (), Completion(index, "", (), reason, 0)) for index in missing)
        return replace(self._finished_output(group, deltas), error=error)

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has work to do."""
        return self.scheduler.has_unfinished

    # --- the step ------------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Computes one step; returns the news of every request that has any."""
        begin = time.perf_counter()
        output = self.scheduler.schedule()
        if not output.rows:
            self._tiers.move(output.operations)
            return []
        self._note_start(begin)
        scheduled = time.perf_counter()
        with self._tiers.at_work():
            result = self._executor.execute(output)
        executed = time.perf_counter()
        news: dict[str, tuple[SequenceGroup, list[Delta]]] = {}
        failed: list[SequenceGroup] = []
        grown = self.scheduler.update(output, result.token_ids)
        # In the order of rows and their samples, as the executor's results are.
        reports = itertools.chain.from_iterable(result.logprobs) if result.logprobs else itertools.repeat(None)
        for sequence, logprobs in zip(grown, reports, strict=False):
            _, deltas = news.setdefault(sequence.group.request_id, (sequence.group, []))
            if sequence.token_ids[-1] == NO_TOKEN:
                sequence.token_ids.pop()
                failed.append(sequence.group)
            else:
                token_ids = (sequence.token_ids[-1],)
                outcome = self._process(sequence, logprobs, executed)
                deltas.append(Delta(sequence.index, outcome.text, token_ids, outcome.completion, outcome.reasoning, outcome.repeats))
        outputs = [self._fail(group, deltas) if group in failed else self._request_output(group, deltas) for group, deltas in news.values()]
        self._record(output, result, begin, scheduled, executed)
        return outputs

    def _fail(self, group: SequenceGroup, deltas: list[Delta]) -> RequestOutput:
        """Ends a request whose logits are not numbers; the others know nothing of it."""
        error = ChatpagedError("the model computed no numbers (NaN or infinity): damaged weights, or a --dtype that is too narrow")
        last = RequestOutput(request_id=group.request_id, deltas=tuple(deltas))
        return merge_outputs(last, self._end_early(group, FinishReason.ERROR, error))

    def _process(self, sequence: TokenSequence, logprobs: TokenLogprobs | None, now: float) -> TokenOutcome:
        self._clocks[sequence.group.request_id].first_tokens.setdefault(sequence.index, now)
        outcome = self._processor.append(sequence, logprobs)
        if outcome.completion is not None:
            self.scheduler.finish(sequence)
        return outcome

    def _note_start(self, now: float) -> None:
        for sequence in self.scheduler.running:
            clock = self._clocks[sequence.group.request_id]
            clock.started = now if clock.started is None else clock.started

    def _record(self, output: SchedulerOutput, result: StepResult, begin: float, scheduled: float, executed: float) -> None:
        end = time.perf_counter()
        num_decode = sum(len(row.token_ids) == 1 and bool(row.samples) for row in output.rows)
        self.scheduler.budget.observe(num_decode, output.num_tokens - num_decode, end - begin)
        if num_decode == 0:
            self._tiers.policy.observe_prefill(output.num_tokens, result.forward)
        self._tiers.observe(output.operations, result.operations)
        self._graphs.count(result.padding)
        self._steps.append(
            StepTiming(
                schedule=scheduled - begin,
                operations=result.operations,
                prepare=result.prepare,
                forward=result.forward,
                sample=result.sample,
                process=end - executed,
                num_seqs=len(output.rows),
                num_tokens=output.num_tokens,
                num_decode_tokens=num_decode,
            )
        )

    def _request_output(self, group: SequenceGroup, deltas: list[Delta]) -> RequestOutput:
        if group.is_finished:
            return self._finished_output(group, deltas)
        return RequestOutput(request_id=group.request_id, deltas=tuple(deltas))

    def _finished_output(self, group: SequenceGroup, deltas: list[Delta]) -> RequestOutput:
        metrics = self._clocks.pop(group.request_id).metrics(group, time.perf_counter())
        return RequestOutput(request_id=group.request_id, deltas=tuple(deltas), finished=True, metrics=metrics)

    # --- what stays ------------------------------------------------------------------------------------------------------

    def look_at(self, token_ids: Sequence[int] | PrefixKeys | None, salt: bytes = b"") -> None:
        """Says which chat somebody looks at: its blocks make room last.

        Args:
            token_ids: of the chat, or the `prefix_keys` of them; None when it is none.
            salt: that of its requests.
        """
        if token_ids is not None and not isinstance(token_ids, PrefixKeys):
            token_ids = self.prefix_keys(token_ids, salt)
        self.scheduler.blocks.look_at(token_ids)

    def pin(self, name: str, token_ids: Sequence[int], salt: bytes = b"") -> PinResult:
        """Keeps the full blocks of a token sequence in the pool, from its beginning on, as soon as they are there.

        Args:
            name: whose they are; takes the place of what was pinned under this name.
            token_ids: the sequence. At most a quarter of the pool can be pinned.
            salt: that of its requests.
        """
        return self.scheduler.blocks.retained.pin(name, self.prefix_keys(token_ids, salt))

    def unpin(self, name: str) -> bool:
        """Lets go of what is pinned under a name. Returns whether anything was."""
        return self.scheduler.blocks.retained.unpin(name)

    def work_ahead(self) -> bool:
        """Does a little of what may be wanted later, while nothing is unfinished. Returns whether there is more.

        Blocks of the chat in view come up from lower tiers, and what is worth a file is written.
        """
        return self._tiers.work_ahead(self.scheduler.blocks)

    @property
    def can_save(self) -> bool:
        """Whether the disk keeps up with what `work_ahead` writes."""
        return self._tiers.lower.can_save

    # --- looking in ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> EngineSnapshot:
        """Everything a memory panel needs, as it is between two steps."""
        now = time.perf_counter()
        speeds = {sequence.seq_id: self._clocks[sequence.group.request_id].speed(sequence, now) for sequence in self.scheduler.running}
        steps = tuple(self._steps)
        return take_snapshot(
            self.scheduler, code=str(self.code), block_bytes=self.block_bytes, steps=steps, speeds=speeds, graphs=self._graphs
        )

    def prefix_keys(self, token_ids: Sequence[int], salt: bytes = b"") -> PrefixKeys:
        """What a token sequence is found under in the prefix cache: computed once, it makes asking `cached_blocks` cheap."""
        return self.scheduler.blocks.prefix_keys(token_ids, salt)

    def cached_blocks(self, tokens: Sequence[int] | PrefixKeys, salt: bytes = b"") -> tuple[int, ...]:
        """The blocks that hold the beginning of a token sequence now, in use or not. Asking keeps nothing alive and counts nowhere.

        Args:
            tokens: token ids, or the `prefix_keys` of them.
            salt: that of the request; `prefix_keys` know theirs.
        """
        keys = tokens if isinstance(tokens, PrefixKeys) else self.prefix_keys(tokens, salt)
        return self.scheduler.blocks.cached_blocks(keys)

    @property
    def code(self) -> ModelCode:
        """What the model runs on."""
        return self._executor.code

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block."""
        return self._executor.block_bytes

    @property
    def last_step(self) -> StepTiming | None:
        """Size and seconds of the last step."""
        return self._steps[-1] if self._steps else None

    def forget_cached(self) -> int:
        """Empties the prefix cache. Returns how many blocks were in it."""
        return self.scheduler.blocks.forget_cached()

    def check_invariants(self) -> None:
        """Audits all bookkeeping.

        Raises:
            RuntimeError: something does not add up.
        """
        self.scheduler.check_invariants()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Writes blocks that are worth a file and gives the model's memory back. The engine cannot be used afterwards.

        Args:
            seconds: for writing; what is not written then is computed again.
        """
        self._tiers.close(self.scheduler.blocks, seconds)
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _scheduler_config(config: EngineConfig, executor: ModelExecutor) -> SchedulerConfig:
    limit = executor.max_model_len
    if config.max_model_len is not None and config.max_model_len > limit:
        raise InvalidRequestError(f"max_model_len {config.max_model_len} is more than the model's context of {limit}")
    tokens = config.max_num_batched_tokens
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=tokens if tokens is not None else max(executor.max_num_batched_tokens, config.max_num_seqs),
        max_model_len=config.max_model_len if config.max_model_len is not None else limit,
    )
