"""System prompts of presets: where all their chats begin alike, read before anybody asks, pinned, and again after each loading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chatpaged.amounts import memory_size
from chatpaged.chat_template import ChatMessage, ChatTemplate
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.engine_host import HostState
from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.history import common_prefix
from chatpaged.preset_prompts import PresetPrompt, beginning_of_chats
from chatpaged.session_model import SessionModel, SessionOptions
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import Notice, WorkspaceEvent
from tests.byte_tokenizer import byte_template, byte_tokenizer
from tests.cli.runner import DEADLINE
from tests.scripted_backend import ScriptedBackend

SYSTEM = "You answer in German, whatever you are asked, and in whole sentences."
GERMAN = PresetPrompt("german", SYSTEM, preload=True)


def byte_model(template: str | None = None) -> SessionModel:
    tokenizer = byte_tokenizer()
    return SessionModel("m", tokenizer, byte_template(tokenizer) if template is None else ChatTemplate(template, tokenizer))


# --- the beginning ---------------------------------------------------------------------------------------------------------


def test_the_beginning_is_all_that_comes_before_the_question() -> None:
    model = byte_model()
    assert model.template is not None
    beginning = beginning_of_chats(model, SYSTEM)
    prompt = model.template.render([ChatMessage("system", SYSTEM), ChatMessage("user", "Why?")])
    assert prompt.token_ids[: len(beginning)] == beginning
    assert SYSTEM in model.tokenizer.decode(beginning)
    assert model.tokenizer.decode(prompt.token_ids[len(beginning) :]).startswith("Why?")


def test_without_a_template_chats_have_nothing_in_common() -> None:
    model = byte_model()
    assert beginning_of_chats(SessionModel("m", model.tokenizer, None), SYSTEM) == ()


def test_without_a_system_prompt_the_templates_own_counts() -> None:
    with_default = "{% if messages[0].role != 'system' %}Be nice. {% endif %}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    model = byte_model(with_default)
    assert model.tokenizer.decode(beginning_of_chats(model, None)) == "Be nice. ["
    assert model.tokenizer.decode(beginning_of_chats(model, "Be short.")) == "[Be short.]["


def test_a_template_without_a_place_for_it_has_it_before_the_question() -> None:
    for template in (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.content }}]{% endfor %}",
        "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}",
    ):
        model = byte_model(template)
        assert model.tokenizer.decode(beginning_of_chats(model, "Be short.")) == "[Be short.\n\n"


def test_arguments_of_the_template_count() -> None:
    model = byte_model("{{ mode }}{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert model.tokenizer.decode(beginning_of_chats(model, "S", {"mode": "fast"})) == "fast[S]["
    with pytest.raises(InvalidRequestError, match="no argument 'speed'"):
        beginning_of_chats(model, "S", {"speed": 1})


def test_questions_of_any_kind_begin_so_with_real_templates(real_tokenizer: Path) -> None:
    tokenizer = Tokenizer.from_directory(real_tokenizer)
    template = ChatTemplate.from_directory(real_tokenizer, tokenizer)
    assert template is not None
    beginning = beginning_of_chats(SessionModel("m", tokenizer, template), SYSTEM)
    assert SYSTEM in tokenizer.transcribe(beginning)
    for text in ("Why?", " spaced", "\n\nlines", "12", "<|im_end|>", "漢字", "```python", "."):
        ids = template.render([ChatMessage("system", SYSTEM), ChatMessage("user", text)]).token_ids
        # A text may grow together with the line end before it.
        assert common_prefix(ids, beginning) >= len(beginning) - 1


# --- kept by an engine -----------------------------------------------------------------------------------------------------


class World:
    """A workspace, and what it has told."""

    def __init__(self, backend: ScriptedBackend, options: SessionOptions | None) -> None:
        self.backend = backend
        self.events: list[WorkspaceEvent] = []
        self.workspace = Workspace(backend, None, options=options)
        self.workspace.subscribe(self.events.append)

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(event.text, event.severity) for event in self.events if isinstance(event, Notice)]

    async def until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 - a test waits for whatever it likes
                await asyncio.sleep(0.002)

        await asyncio.wait_for(wait(), DEADLINE)

    async def told(self, count: int = 1) -> tuple[str, str]:
        await self.until(lambda: len(self.notices) >= count)
        return self.notices[count - 1]

    async def pins(self) -> dict[str, int]:
        return await self.workspace.host.engine.call(lambda llm: llm.scheduler.blocks.retained.pins())

    async def cached_tokens(self, question: str = "Why?") -> int:
        """Of the first prompt of a chat that is begun now."""
        chat = self.workspace.new_chat(system=SYSTEM)
        self.workspace.send(chat, question)
        await self.until(lambda: not chat.is_busy)
        assert chat.reply is not None
        assert chat.reply.metrics is not None
        return chat.reply.metrics.cached_tokens


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]], backend: ScriptedBackend | None = None, options: SessionOptions | None = None
) -> None:
    async def main() -> None:
        world = World(backend if backend is not None else ScriptedBackend(), options)
        try:
            await scenario(world)
        finally:
            await world.workspace.close()

    asyncio.run(main())


def num_full_blocks(system: str = SYSTEM) -> int:
    return len(beginning_of_chats(byte_model(), system)) // 16


@pytest.mark.parametrize("options", [None, SessionOptions(salt=b"private")], ids=["shared", "private"])
def test_the_first_chat_finds_a_preloaded_system_prompt(options: SessionOptions | None) -> None:
    async def scenario(world: World) -> None:
        world.workspace.presets.keep(GERMAN)
        count = num_full_blocks()
        assert count >= 4
        assert await world.told() == (f"preloaded german: {count} blocks ({memory_size(count * 720 * 1024)})", "information")
        assert await world.pins() == {}
        assert await world.cached_tokens() == 16 * count

    run(scenario, options=options)


def test_what_is_kept_is_kept_by_the_next_engine_and_the_next_model_too() -> None:
    async def scenario(world: World) -> None:
        world.workspace.presets.keep(PresetPrompt("german", SYSTEM, pin=True, preload=True))
        text, _ = await world.told()
        assert text.endswith(", pinned")
        await world.workspace.reload()
        assert await world.told(2) == (text, "information")
        assert await world.pins() == {"preset german": num_full_blocks()}
        assert await world.cached_tokens() == 16 * num_full_blocks()
        await world.workspace.use_model(ScriptedBackend(name="other"))
        assert await world.told(3) == (text, "information")

    run(scenario)


def test_a_chat_with_a_preset_that_pins_has_its_blocks_pinned_without_a_word() -> None:
    async def scenario(world: World) -> None:
        wish = PresetPrompt("german", SYSTEM, pin=True)
        world.workspace.presets.keep(wish)
        world.workspace.presets.keep(wish)
        assert await world.cached_tokens() == 0
        assert await world.pins() == {"preset german": num_full_blocks()}
        assert await world.cached_tokens("How?") == 16 * num_full_blocks()
        world.workspace.presets.keep(PresetPrompt("german", "Short, but longer than a block.", pin=True))
        await world.workspace.host.engine.call(lambda _: None)
        await world.until(lambda: not world.workspace.presets.num_open)
        assert await world.pins() == {"preset german": num_full_blocks("Short, but longer than a block.")}
        assert world.notices == []

    run(scenario)


def test_at_most_a_quarter_of_the_pool_is_pinned_and_a_note_says_so() -> None:
    async def scenario(world: World) -> None:
        world.workspace.presets.keep(PresetPrompt("german", SYSTEM, pin=True, preload=True))
        count = num_full_blocks()
        text, severity = await world.told()
        assert severity == "warning"
        assert text == (
            f"preloaded german: {count} blocks ({memory_size(count * 720 * 1024)}), 3 of {count} blocks pinned: "
            "at most a quarter of the pool can be, 3 blocks for all that is pinned"
        )
        world.workspace.presets.keep(PresetPrompt("other", "x" * 40, pin=True))
        assert (await world.told(2))[0].startswith("other: 0 of 3 blocks pinned: at most a quarter of the pool can be")

    run(scenario, ScriptedBackend(num_blocks=13))


@pytest.mark.parametrize(
    ("wish", "config", "reason"),
    [
        (PresetPrompt("a", SYSTEM, preload=True, model="other"), None, "it is made for other, and this is scripted"),
        (PresetPrompt("a", None, preload=True), None, "fills no block of 16"),
        (PresetPrompt("a", "x" * 9000, pin=True, preload=True), None, "too long for the context: 9016 tokens > 8192"),
        (GERMAN, EngineConfig(block_size=16, enable_prefix_caching=False), "with --no-prefix-caching chats share no blocks"),
    ],
    ids=["model", "short", "long", "no caching"],
)
def test_why_a_preset_is_not_preloaded(wish: PresetPrompt, config: EngineConfig | None, reason: str) -> None:
    async def scenario(world: World) -> None:
        world.workspace.presets.keep(wish)
        text, _ = await world.told()
        assert text.startswith(f"{wish.name} is not preloaded: ")
        assert reason in text
        assert await world.cached_tokens() == 0
        assert await world.pins() == {}

    run(scenario, ScriptedBackend(config=config))


def test_the_named_model_is_preloaded() -> None:
    async def scenario(world: World) -> None:
        world.workspace.presets.keep(PresetPrompt("german", SYSTEM, preload=True, model="scripted"))
        assert (await world.told())[0].startswith("preloaded german: ")

    run(scenario)


def test_an_engine_that_cannot_be_loaded_is_told_by_its_host_alone() -> None:
    async def scenario(world: World) -> None:
        world.backend.fail = ModelError("damaged")
        world.workspace.presets.keep(GERMAN)
        await world.until(lambda: world.workspace.host.state is HostState.FAILED)
        await world.until(lambda: not world.workspace.presets.num_open)
        assert world.notices == []
        world.backend.fail = None
        await world.workspace.reload()
        assert (await world.told())[0].startswith("preloaded german: ")

    backend = ScriptedBackend()
    backend.fail = ModelError("damaged")
    run(scenario, backend)


def test_an_engine_that_dies_meanwhile_is_told_by_its_host_alone() -> None:
    async def scenario(world: World) -> None:
        world.backend.pace.crash = RuntimeError("boom")
        world.workspace.presets.keep(GERMAN)
        await world.until(lambda: world.workspace.host.state is HostState.DEAD)
        await world.until(lambda: not world.workspace.presets.num_open)
        assert world.notices == []
        world.backend.pace.crash = None
        await world.workspace.reload()
        assert (await world.told())[0].startswith("preloaded german: ")

    run(scenario)


def test_chats_go_before_a_system_prompt_that_nobody_waits_for() -> None:
    async def scenario(world: World) -> None:
        await world.until(lambda: world.workspace.host.state is HostState.READY)
        world.backend.pace.hold()
        world.workspace.presets.keep(PresetPrompt("long", SYSTEM * 20, preload=True))
        chat = world.workspace.new_chat()
        world.workspace.look_at([chat.id])
        world.workspace.send(chat, "Why?")
        await world.until(lambda: chat.reply is not None)
        world.backend.pace.free()
        await world.until(lambda: not chat.is_busy)
        assert world.notices == [] or world.notices[0][0].startswith("preloaded long: ")
        await world.told()

    run(scenario)
