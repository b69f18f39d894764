"""Tiers and files as users meet them, on the starter model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chatpaged.chat_template import ChatMessage
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import RequestResult
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.session import ChatSession, SessionModel
from tests.cli.runner import run_inside

pytestmark = pytest.mark.starter
BLOCK = 16
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


def load(model: Path, directory: Path | None = None, **options: Any) -> LLMEngine:
    files = {"disk_cache": 2**30, "disk_cache_directory": directory} if directory is not None else {}
    return LLMEngine.from_pretrained(model, EngineConfig(**{"kv_blocks": 300, **files, **options}))


def ask(engine: LLMEngine, text: str, params: SamplingParams = GREEDY) -> RequestResult:
    return engine.generate([ChatMessage("user", text)], params)


def test_a_chat_of_three_turns_goes_on_after_a_restart(starter_model: Path, directory: Path) -> None:
    def session_with(llm: LLMEngine, session: ChatSession | None = None) -> ChatSession:
        model = SessionModel("starter", llm.tokenizer, llm.chat_template)
        return ChatSession(model, session.conversation if session is not None else None)

    with load(starter_model, directory) as llm:
        chat = session_with(llm)
        for text in ("Tell me about the sea. " * 10, "And about the moon?", "What do they have to do with each other?"):
            chat.answer(llm, chat.draft(text), GREEDY)
        last = chat.last_turn
        assert last is not None
        warm = chat.answer(llm, chat.draft("Thank you."), GREEDY)
    chat.branch(chat.conversation.path()[-3].id)
    with load(starter_model, directory) as llm:
        again = session_with(llm, chat)
        cold = again.answer(llm, again.draft("Thank you."), GREEDY)
    assert cold.metrics is not None
    # The very last token of an answer is never computed.
    assert cold.metrics.cached_tokens >= (len(last.token_ids) - 1) // BLOCK * BLOCK >= 192
    assert cold.metrics.swap_in == cold.metrics.cached_tokens // BLOCK
    assert [completion.token_ids for completion in cold.completions] == [completion.token_ids for completion in warm.completions]


@pytest.mark.parametrize("option", ["swap_space", "disk_cache"])
def test_three_chats_that_do_not_fit_together(starter_model: Path, directory: Path, option: str) -> None:  # B11
    texts = [f"{word} " * 362 for word in ("sea", "moon", "rain")]  # 25 blocks each
    options = {"swap_space": 256 * 2**20} if option == "swap_space" else {}
    with load(starter_model, directory if option == "disk_cache" else None, kv_blocks=40, **options) as llm:
        first = [ask(llm, text, SamplingParams(temperature=0, max_tokens=1)) for text in texts]
        again = ask(llm, texts[0], SamplingParams(temperature=0, max_tokens=1))
    tokens = first[0].metrics.prompt_tokens
    assert 24 * BLOCK < tokens <= 25 * BLOCK
    assert again.metrics.swap_in > 0
    assert again.metrics.prefill_tokens == tokens - (tokens - 1) // BLOCK * BLOCK
    assert again.completions[0].token_ids == first[0].completions[0].token_ids


def test_a_pool_that_is_too_small_for_all_keeps_every_chat(starter_model: Path) -> None:  # C2, C8
    rows = [f"{number}" + " a" * 99 for number in range(4)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    texts: dict[str, list[str]] = {}
    for name, kv_blocks, swap_space in (("roomy", 1000, 0), ("small", 20, 0), ("swap", 20, 2**27)):
        with load(starter_model, kv_blocks=kv_blocks, swap_space=swap_space) as llm:
            results = llm.generate_many([(llm.render([ChatMessage("user", row)]), params) for row in rows])
            texts[name] = [result.text for result in results]
            counters = llm.snapshot().counters
        assert (counters["preemptions"] > 0) == (name != "roomy")
        assert (counters["swap_in"] > 0) == (name == "swap")
    assert texts["small"] == texts["swap"] == texts["roomy"]


def test_every_chat_knows_its_own_word(starter_model: Path, directory: Path) -> None:  # B9
    """Four chats with a word each, asked over and over on a pool for one of them, and after a restart."""
    words = ("tangerine", "submarine", "volcano", "saxophone")
    prompts = [f"My secret word is {word}. Remember it well. What is my secret word?" + " Please." * 40 for word in words]
    solo: list[str] = []
    with load(starter_model, enable_prefix_caching=False) as llm:
        solo = [ask(llm, prompt).text for prompt in prompts]
    for _ in range(2):
        with load(starter_model, directory, kv_blocks=16, swap_space=6 * 368640, max_num_seqs=2) as llm:
            for round_number in range(6):
                order = prompts[round_number % 4 :] + prompts[: round_number % 4]
                cancelled = llm.add_request([ChatMessage("user", order[0])], GREEDY)
                for _ in range(round_number * 3):
                    llm.step()
                llm.abort(cancelled)
                results = llm.generate_many([(llm.render([ChatMessage("user", prompt)]), GREEDY) for prompt in order])
                said = {prompt: result.text for prompt, result in zip(order, results, strict=True)}
                assert [said[prompt] for prompt in prompts] == solo
            assert llm.snapshot().counters["swap_in"] > 0


def test_a_chat_comes_before_a_batch(starter_model: Path) -> None:  # C17
    """Its first token is there after one step and its own prefill; the batch says what it would have said."""
    rows = [f"Write a line about number {number}." for number in range(30)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with load(starter_model, kv_blocks=60, max_num_seqs=4, swap_space=2**26) as llm:
        ids = [llm.render([ChatMessage("user", row)]).token_ids for row in rows]
        alone = [llm.generate(prompt, params).text for prompt in ids[:6]]
        llm.forget_cached()
        names = [llm.add_request(prompt, params, priority=1) for prompt in ids]
        texts = dict.fromkeys(names, "")
        for _ in range(25):
            for output in llm.step():
                texts[output.request_id] += "".join(delta.text for delta in output.deltas)
        assert len(llm.scheduler.running) == 4
        chat = llm.add_request([ChatMessage("user", "Hello! " * 100)], params, interactive=True)
        steps, reading = 0, 0
        answered = False
        while llm.has_unfinished:
            outputs = llm.step()
            steps += not answered
            step = llm.last_step
            reading += not answered and step is not None and step.num_tokens > step.num_decode_tokens
            for output in outputs:
                if output.request_id == chat:
                    answered = answered or bool(output.deltas)
                else:
                    texts[output.request_id] += "".join(delta.text for delta in output.deltas)
        counters = llm.snapshot().counters
    assert steps == reading  # every step until then has read its prompt
    assert counters["preemptions"] >= 1
    assert [texts[name] for name in names[:6]] == alone


def test_ask_opens_warm_in_the_next_process(starter_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: one process after the other, the cache where it always is."""
    assert starter_model.exists()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("chatpaged.paths.blocks_dir", lambda: tmp_path / "blocks")
    options = ("--json", "--temperature", "0", "--max-tokens", "16", "--disk-cache", "64M")
    first = run_inside("ask", *options, "Tell me about the sea. " * 20).json
    second = run_inside("ask", "-c", *options, "And the moon?").json
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert second["usage"]["cached_tokens"] == known // BLOCK * BLOCK
    assert second["engine"]["swap_in"] == known // BLOCK
    private = run_inside("ask", "--private", *options, "Tell me about the sea. " * 20).json
    assert private["usage"]["cached_tokens"] == 0
    assert private["text"] == first["text"]
    count = len(list((tmp_path / "blocks").rglob("*.kv")))
    run_inside("ask", "--private", *options, "Tell me about the moon. " * 20)
    assert len(list((tmp_path / "blocks").rglob("*.kv"))) == count
    assert count > known // BLOCK
    assert run_inside("cache", "verify").status == 0
