"""System prompts of presets that the engine keeps: read before anybody asks, pinned, and again after each loading.

```text
keep ──> wait until it is loaded ──> beginning_of_chats ──> LLMEngine.pin ──> a request over exactly these tokens ──> a note
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatpaged.amounts import counted, memory_size
from chatpaged.backends import is_model
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.engine_state import EngineFacts
from chatpaged.engine.limits import check_prompt_fits
from chatpaged.engine.retained_prefixes import PinResult
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine_host import EngineHost
from chatpaged.errors import ChatpagedError, EngineDeadError
from chatpaged.history import common_prefix
from chatpaged.messages import ChatMessage
from chatpaged.session_model import SessionModel, SessionOptions
from chatpaged.task_set import TaskSet
from chatpaged.workspace_events import Severity

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine

_PRIORITY = 9
"""Behind every chat."""
# Two questions that begin with different tokens in any vocabulary: what comes before them is the same in all chats.
_QUESTIONS = ("a", "1")
Tell = Callable[[str, Severity], None]
"""Hears what has become of a wish."""


@dataclass(frozen=True, slots=True)
class PresetPrompt:
    """What is wanted of a preset's system prompt.

    Attributes:
        name: the preset.
        system: the system prompt with which its chats begin.
        pin: its blocks are to stay in the pool.
        preload: it is to be read before anybody asks, and what that cost is to be told.
        model: the model it is made for, where the wish holds for this one only.
    """

    name: str
    system: str | None
    pin: bool = False
    preload: bool = False
    model: str | None = None

    @property
    def pin_name(self) -> str:
        """Under what it is pinned."""
        return f"preset {self.name}"


def beginning_of_chats(model: SessionModel, system: str | None, arguments: Mapping[str, object] | None = None) -> tuple[int, ...]:
    """The token ids with which every chat begins that has this system prompt, whatever is asked in it.

    None for a model without a chat template. Where the template has no place for a system prompt, they end in the user's first
    message, before which it is put.

    Args:
        model: whom the chats are held with.
        system: the system prompt; None leaves it to the template, which may have one of its own.
        arguments: what the template gets besides the messages.

    Raises:
        InvalidRequestError: the template refuses such messages.
    """
    template = model.template
    if template is None:
        return ()
    before = [ChatMessage("system", system)] if system is not None else []
    first, second = (template.render([*before, ChatMessage("user", text)], arguments=arguments).token_ids for text in _QUESTIONS)
    return first[: common_prefix(first, second)]


class PresetPrompts:
    """The wishes, and whoever sees to them. Lives on the event loop."""

    def __init__(self, host: EngineHost, options: SessionOptions, tell: Tell) -> None:
        """Makes one without wishes.

        Args:
            host: gives the engine of now.
            options: what holds for every prompt of a chat.
            tell: hears what has become of wishes.
        """
        self._host = host
        self._options = options
        self._tell = tell
        self._wishes: dict[tuple[str, bool], PresetPrompt] = {}
        self._engine: AsyncEngine | None = None
        self._tasks = TaskSet()

    @property
    def num_open(self) -> int:
        """Wishes, and rounds of them, that are being seen to."""
        return len(self._tasks)

    def keep(self, wish: PresetPrompt) -> None:
        """Has a system prompt kept by the engine of now, as soon as it is loaded, and by every later one.

        Takes the place of an earlier wish of the same kind for the same preset.
        """
        place = (wish.name, wish.preload)
        if self._wishes.get(place) == wish:
            return
        self._wishes[place] = wish
        self._engine = self._host.engine
        self._tasks.start(self._see_to(self._engine, wish))

    def follow(self) -> None:
        """The host has changed: if it has another engine, that one knows nothing of the wishes yet."""
        if self._wishes and self._host.engine is not self._engine:
            self._engine = self._host.engine
            self._tasks.start(self._see_to_all(self._engine))

    async def _see_to_all(self, engine: AsyncEngine) -> None:
        for wish in list(self._wishes.values()):
            await self._see_to(engine, wish)

    async def _see_to(self, engine: AsyncEngine, wish: PresetPrompt) -> None:
        """The top of the work for one wish: whatever fails is told."""
        try:
            facts = await engine.wait_loaded()
        except ChatpagedError:
            return  # the host has heard of it, and tells everybody
        model = self._host.model
        if model is None or engine is not self._host.engine:
            return
        try:
            await self._fulfil(engine, facts, model, wish)
        except EngineDeadError:
            pass  # likewise
        except ChatpagedError as error:
            self._tell(f"{wish.name} is not {'preloaded' if wish.preload else 'pinned'}: {error}", "warning")

    async def _fulfil(self, engine: AsyncEngine, facts: EngineFacts, model: SessionModel, wish: PresetPrompt) -> None:
        if wish.model is not None and not await asyncio.to_thread(is_model, self._host.backend, wish.model):
            self._tell(f"{wish.name} is not preloaded: it is made for {wish.model}, and this is {model.name}", "information")
            return
        reason = await engine.call(_reason_against)
        token_ids: tuple[int, ...] = ()
        if not reason:
            token_ids = await asyncio.to_thread(beginning_of_chats, model, wish.system, self._options.arguments)
            if len(token_ids) < facts.block_size:
                reason = f"what its chats begin with, {counted(len(token_ids), 'token')}, fills no block of {facts.block_size}"
        if reason:
            if wish.preload:
                self._tell(f"{wish.name} is not preloaded: {reason}", "information")
            return
        check_prompt_fits(len(token_ids), context=facts.max_model_len, num_blocks=facts.num_blocks, block_size=facts.block_size)
        salt = self._options.salt
        pinned = await engine.call(lambda llm: llm.pin(wish.pin_name, token_ids, salt)) if wish.pin else None
        if wish.preload:
            await self._read(engine, token_ids)
            there = await engine.call(lambda llm: len(llm.cached_blocks(token_ids, salt)))
            told = f"preloaded {wish.name}: {counted(there, 'block')} ({memory_size(there * facts.block_bytes)})"
            self._tell(", ".join((told, *_told_of(pinned))), "warning" if _is_cut(pinned) else "information")
        elif _is_cut(pinned):
            self._tell(": ".join((wish.name, *_told_of(pinned))), "warning")

    async def _read(self, engine: AsyncEngine, token_ids: tuple[int, ...]) -> None:
        """Has the engine compute blocks. What it would answer is thrown away."""
        outputs = engine.generate(
            token_ids,
            SamplingParams(temperature=0.0, max_tokens=1),
            priority=_PRIORITY,
            interactive=False,
            salt=self._options.salt,
            keep=self._options.keep,
        )
        async for _ in outputs:
            pass


def _reason_against(llm: LLMEngine) -> str:
    return "" if llm.config.enable_prefix_caching else "with --no-prefix-caching chats share no blocks"


def _is_cut(pinned: PinResult | None) -> bool:
    return pinned is not None and pinned.pinned < pinned.wanted


def _told_of(pinned: PinResult | None) -> tuple[str, ...]:
    """What to say of pinning, if anything."""
    if pinned is None:
        return ()
    if not _is_cut(pinned):
        return ("pinned",)
    limit = f"at most a quarter of the pool can be, {counted(pinned.limit, 'block')} for all that is pinned"
    return (f"{pinned.pinned} of {counted(pinned.wanted, 'block')} pinned: {limit}",)
