"""A scripted engine at work on several chats, for tests and pictures of the engine panel."""

from __future__ import annotations

from dataclasses import replace

from textual.app import App, ComposeResult
from textual.widgets import Static

from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.snapshot import EngineSnapshot, StepTiming
from chatpaged.engine_rows import ChatFacts
from chatpaged.engine_view import EngineView
from chatpaged.ui.screens.engine import EngineScreen
from chatpaged.ui.widgets.engine_panel import EnginePanel
from tests.engine.test_llm_engine import engine_of

SYSTEM = "You are a helpful assistant. " * 4
CODE = "native AVX-512 · int4 weights · fp16 KV"
STEP = StepTiming(
    schedule=0.0004,
    operations=0.0001,
    prepare=0.0009,
    forward=0.0201,
    sample=0.0012,
    process=0.0008,
    num_seqs=1,
    num_tokens=1,
    num_decode_tokens=1,
)
TITLES = (
    "Greek islands in May",
    "Proof that √2 is irrational",
    "日本語で俳句を書いて",
    "Fix the failing test",
    "Bread without yeast",
    "Names for a cat",
)


def steady(snapshot: EngineSnapshot) -> EngineSnapshot:
    """A snapshot without what the clock says, of a model: the same work gives the same picture."""
    steps = tuple(
        replace(STEP, num_seqs=step.num_seqs, num_tokens=step.num_tokens, num_decode_tokens=step.num_decode_tokens)
        for step in snapshot.steps
    )
    sequences = tuple(replace(sequence, tokens_per_second=18.5 if sequence.tokens_per_second else 0.0) for sequence in snapshot.sequences)
    return replace(snapshot, code=CODE, steps=steps, sequences=sequences, block_bytes=720 * 1024)


def work(num_blocks: int = 161, *, max_num_seqs: int = 4, steps: int = 70) -> tuple[LLMEngine, list[ChatFacts]]:
    """Six chats with one system prompt: one rests, others write, one of them two answers, one is read, one waits."""
    executor = ScriptedExecutor([97 + i for i in range(26)], num_blocks=num_blocks, vocab_size=258, max_num_batched_tokens=24)
    executor.block_bytes = 720 * 1024
    engine = engine_of(executor, max_num_seqs=max_num_seqs)
    rested = tuple((SYSTEM + "Where shall we go? " * 9).encode())
    engine.generate(rested, SamplingParams(max_tokens=40, ignore_eos=True))
    engine.generate("something else " * 12, SamplingParams(max_tokens=4, ignore_eos=True))
    for i, text in enumerate(("Prove it. " * 12, "5-7-5 " * 9)):
        engine.add_request(SYSTEM + text, SamplingParams(max_tokens=400, ignore_eos=True, n=1 + i), request_id=f"r{i + 1}")
    for _ in range(steps):
        engine.step()
    engine.add_request(SYSTEM + "def test(): ... " * 14, SamplingParams(max_tokens=400, ignore_eos=True), request_id="r3")
    for _ in range(4):
        engine.step()
    engine.add_request(SYSTEM + "How?", SamplingParams(max_tokens=400, ignore_eos=True), request_id="r4")
    engine.add_request("Mew", SamplingParams(max_tokens=400, ignore_eos=True), request_id="r5")
    for _ in range(2):
        engine.step()
    kept = engine.cached_blocks(rested)
    chats = [ChatFacts(id="c0", title=TITLES[0], cached_blocks=kept, cached_tokens=112)]
    chats += [ChatFacts(id=f"c{i}", title=TITLES[i], request_id=f"r{i}") for i in range(1, 6)]
    return engine, chats


def scene(in_view: str = "c1") -> EngineView:
    """A view in the middle of work."""
    engine, chats = work()
    view = EngineView.of(steady(engine.snapshot()), chats, in_view=in_view)
    view.check()
    return view


class PanelApp(App[None]):
    """A conversation that is not there, beside the panel."""

    CSS = """
    Screen { layout: horizontal; }
    #rest { width: 1fr; height: 1fr; color: $text-muted; content-align: center middle; }
    """

    def __init__(self, *, map_colors: str = "theme") -> None:
        super().__init__()
        self.panel = EnginePanel(map_colors=map_colors)
        self.selected: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static("conversation", id="rest")
        yield self.panel

    def on_engine_panel_chat_selected(self, message: EnginePanel.ChatSelected) -> None:
        self.selected.append(message.chat_id)


class ScreenApp(App[None]):
    """The engine on the whole screen."""

    def __init__(self, *, map_colors: str = "theme") -> None:
        super().__init__()
        self.engine = EngineScreen(map_colors=map_colors)
        self.results: list[str | None] = []

    def on_mount(self) -> None:
        self.push_screen(self.engine, self.results.append)
