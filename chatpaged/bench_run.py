"""A workload through our engine: chats arrive, each later turn after the reply before it, and everything is noted."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chatpaged.bench_replies import Figures, Reply, check_replies, reply_figures
from chatpaged.bench_steps import ModelCost, StepTotals
from chatpaged.bench_workloads import Chat, Workload
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import RequestMetrics, RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import ChatpagedError, PromptTooLongError

Tell = Callable[[int], None]
"""Is told how many tokens there are, now and then."""


@dataclass(slots=True)
class _Turn:
    """A turn that is being answered. `prompt` is everything before the reply."""

    chat: Chat
    number: int
    prompt: tuple[int, ...]
    reply: Reply
    answer: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Memory:
    """Sums over the requests of a pass, and the most blocks that were in use."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0
    peak_blocks: int = 0

    def add(self, metrics: RequestMetrics) -> None:
        self.prompt_tokens += metrics.prompt_tokens
        self.cached_tokens += metrics.cached_tokens
        self.prefill_tokens += metrics.prefill_tokens
        self.preemptions += metrics.preemptions
        # Its blocks are free by now, so they are in no count of the pool any more.
        self.peak_blocks = max(self.peak_blocks, metrics.peak_blocks)


class OurEngine:
    """Runs workloads on an engine, which is used for nothing else meanwhile."""

    def __init__(
        self,
        engine: LLMEngine,
        cost: ModelCost | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._cost = cost
        self._clock = clock
        self._sleep = sleep

    def check_fits(self, workload: Workload) -> None:
        """Refuses a workload that would end in the middle.

        Raises:
            PromptTooLongError: a chat of it does not fit the context or the KV pool.
        """
        room = self._engine.scheduler.max_tokens
        if workload.longest > room:
            raise PromptTooLongError(f"{workload.name} has a chat of {workload.longest} tokens, and context or KV pool hold {room}")

    def run(self, workload: Workload, tell: Tell = lambda _: None) -> Figures:
        """One pass, with nothing cached before it.

        Raises:
            ChatpagedError: the engine cannot go on, or replies are cut short.
        """
        one = _Pass(self._engine, workload, self._clock, self._sleep)
        try:
            one.run(tell)
        finally:
            one.abort()
        check_replies(one.replies, workload.num_replies, workload.num_new_tokens, "the engine")
        memory = {name: getattr(one.memory, name) for name in _Memory.__slots__}
        return reply_figures(one.replies) | one.totals.figures(self._cost) | memory


class _Pass:
    """One pass while it runs."""

    def __init__(self, engine: LLMEngine, workload: Workload, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._engine = engine
        self._sleep = sleep
        self._live: dict[str, _Turn] = {}
        # By arrival, then in the order of the workload.
        self._coming = [(chat.arrival, place, chat) for place, chat in enumerate(workload.chats)]
        heapq.heapify(self._coming)
        self._system = workload.system
        self._num_tokens = 0
        self.replies: list[Reply] = []
        self.totals = StepTotals()
        self.memory = _Memory()
        engine.forget_cached()
        self._clock = clock
        self._start = clock()

    def run(self, tell: Tell) -> None:
        """Runs it to its end."""
        while self._coming or self._live:
            self._let_in()
            if self._live:
                self._step()
                tell(self._num_tokens)
            else:
                self._sleep(max(0.0, self._coming[0][0] - self._now()))

    def abort(self) -> None:
        """Cancels what is still running."""
        for request_id in self._live:
            self._engine.abort(request_id)

    def _now(self) -> float:
        return self._clock() - self._start

    def _let_in(self) -> None:
        while self._coming and self._coming[0][0] <= self._now():
            arrival, _, chat = heapq.heappop(self._coming)
            self._say(_Turn(chat, 0, self._system + chat.turns[0], Reply(arrival)))

    def _say(self, turn: _Turn) -> None:
        params = SamplingParams(temperature=0, max_tokens=turn.chat.new_tokens, ignore_eos=True)
        self._live[self._engine.add_request(turn.prompt, params)] = turn

    def _step(self) -> None:
        before = self._engine.last_step
        outputs = self._engine.step()
        now = self._now()
        pool = self._engine.scheduler.blocks.pool
        self.memory.peak_blocks = max(self.memory.peak_blocks, pool.num_usable - pool.num_free)
        sampled = kv_tokens = 0
        for output in outputs:
            turn = self._live[output.request_id]
            kv_tokens += len(turn.prompt) + len(turn.answer)
            sampled += self._take(output, turn, now)
        self._num_tokens += sampled
        step = self._engine.last_step
        if step is not None and step is not before:
            self.totals.add(step, sampled=sampled, kv_tokens=kv_tokens)

    def _take(self, output: RequestOutput, turn: _Turn, now: float) -> int:
        """Notes the news of a request; starts its chat's next turn. Returns how many tokens there were."""
        if output.error is not None:
            raise ChatpagedError(str(output.error)) from output.error
        tokens = [token_id for delta in output.deltas for token_id in delta.token_ids]
        turn.answer += tokens
        turn.reply.times += [now] * len(tokens)
        if output.finished and output.metrics is not None:
            del self._live[output.request_id]
            self.memory.add(output.metrics)
            self.replies.append(turn.reply)
            following = turn.number + 1
            if following < len(turn.chat.turns):
                prompt = turn.prompt + tuple(turn.answer) + turn.chat.turns[following]
                self._say(_Turn(turn.chat, following, prompt, Reply(arrived=now)))
        return len(tokens)
