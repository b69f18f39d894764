"""The engine panel on a scripted engine at work: what it shows, that it adds up, and that all of it is reached by key and by mouse."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widget import Widget

from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.executor import StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine_rows import ChatFacts, RowState
from chatpaged.engine_view import Cell, EngineView
from chatpaged.ui.widgets.block_map import BlockMap
from chatpaged.ui.widgets.chat_table import ChatTable
from chatpaged.ui.widgets.engine_panel import EnginePanel
from tests.engine.test_llm_engine import engine_of
from tests.ui.conftest import Snapshot
from tests.ui.engine_scene import CODE, SYSTEM, PanelApp, ScreenApp, scene, steady, work
from tests.ui.snapshots import until

Test = Callable[[Pilot[Any]], Coroutine[Any, Any, None]]


def run(app: App[Any], test: Test, size: tuple[int, int] = (120, 60)) -> None:
    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await test(pilot)

    asyncio.run(main())


def panel_of(app: PanelApp | ScreenApp) -> EnginePanel:
    return app.panel if isinstance(app, PanelApp) else app.engine.query_one(EnginePanel)


def lines_of(widget: Widget) -> list[str]:
    return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


def part(app: PanelApp | ScreenApp, name: str) -> list[str]:
    return lines_of(panel_of(app).query_one(f"#engine-{name}"))


def numbers(line: str) -> list[int]:
    """The counts at the end of a line of the table; `-` is none."""
    return [0 if word == "-" else int(word.replace(",", "")) for word in re.findall(r"(?<=\s)(-?[\d,]+|-)(?=\s|$)", line)]


def check_columns(app: PanelApp, view: EngineView) -> None:
    """What stands in the table adds up, line by line as a reader would add it, and so do the legend's counts."""
    lines = part(app, "chats")
    table = [numbers(line)[-3:] for line in lines[1:] if len(numbers(line)) >= 3]
    *parts, total = table
    assert [sum(column) for column in zip(*parts, strict=True)] == total
    legend = " ".join(part(app, "legend"))
    counts = {name: int(count.replace(",", "")) for count, name in re.findall(r"([\d,]+) (in use|shared|cached|free|null)", legend)}
    own, shared, cached = total
    assert (counts["in use"], counts["free"], counts["null"]) == (own, view.snapshot.free_blocks, 1)
    assert own + shared + cached + counts["free"] + counts["null"] == view.num_blocks
    assert f"{view.num_blocks} ×" in part(app, "memory")[0]  # noqa: RUF001 - what is shown


class Paced(ScriptedExecutor):
    """Takes as many steps as it is allowed to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = threading.Semaphore(0)

    def execute(self, output: SchedulerOutput) -> StepResult:
        self.steps.acquire()
        return super().execute(output)


# --- before, and without work ----------------------------------------------------------------------------------------


def test_while_the_engine_loads_the_panel_says_so(snapshot: Snapshot) -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(None)
        await pilot.pause()
        assert shown("loading", "columns") == [True, False]
        snapshot(app, "engine_loading")
        app.panel.show(scene())
        await pilot.pause()
        assert shown("loading", "columns") == [False, True]
        app.panel.show(None)
        await pilot.pause()
        assert shown("loading", "columns") == [True, False]

    def shown(*names: str) -> list[bool]:
        return [app.panel.query_one(f"#engine-{name}").display for name in names]

    run(app, test, (100, 24))


def test_a_view_that_comes_before_the_panel_is_on_the_screen_is_shown_when_it_is() -> None:
    app = PanelApp()
    app.panel.show(scene())

    async def test(_: Pilot[Any]) -> None:
        assert part(app, "status") == ["4 running  2 waiting  0 preempted", "55.5 tok/s", CODE]

    run(app, test)


def test_an_idle_engine_shows_zeros() -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(EngineView.of(engine_of().snapshot(), ()))
        await pilot.pause()
        assert part(app, "status") == ["0 running  0 waiting  0 preempted", "0.0 tok/s", "scripted"]
        assert "No chat is open." in part(app, "chats")
        assert part(app, "split")[0].endswith("no step yet")
        assert part(app, "batch")[0].startswith("Batch size 0")
        assert [line.split()[-1] for line in part(app, "figures")[1:]] == ["0"] * 7
        assert len(part(app, "sharing")) == 4
        assert not app.panel.query_one("#engine-tiers").display
        assert part(app, "sharing")[3].split() == ["Prefix", "hit", "rate", "0%", "0", "tokens"]

    run(app, test)


def test_an_engine_that_has_become_idle_has_no_batch() -> None:
    engine = engine_of()
    engine.generate("hello")
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(EngineView.of(engine.snapshot(), ()))
        await pilot.pause()
        assert part(app, "batch")[0].startswith("Batch size 0")
        assert part(app, "tokens")[0].startswith("Tokens a step 0")
        assert "▁" in part(app, "tokens")[2] or "█" in part(app, "tokens")[2]

    run(app, test)


# --- at work -----------------------------------------------------------------------------------------------------------


def test_each_chat_has_its_row_and_the_columns_add_up() -> None:
    app = PanelApp()
    view = scene()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(view)
        await pilot.pause()
        check_columns(app, view)
        text = "\n".join(part(app, "chats"))
        for row in view.rows:
            assert row.title in text or row.title[:12] in text
        assert re.search(r"◐ Fix the failing test\s+reading \d+%", text)
        assert re.search(r"writing x2 +10 +10 +-", text)
        assert {row.state for row in view.rows} == {RowState.IDLE, RowState.WRITING, RowState.READING, RowState.WAITING}
        split = " ".join(part(app, "split"))
        assert all(name in split for name in ("schedule", "moves", "prepare", "forward", "sample", "process"))
        assert part(app, "figures")[4].split() == ["Waits", "for", "a", "prefix", "0"]
        assert re.fullmatch(r"Copies on write +1", part(app, "figures")[5])

    run(app, test)


def test_the_legend_and_the_table_say_the_same_of_a_chat() -> None:
    engine, chats = work()
    alone = ChatFacts(id="alone", title="Alone", cached_blocks=engine.snapshot().sequences[0].blocks)
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        for in_view in ("alone", "c0", "c1", "c2"):
            view = EngineView.of(steady(engine.snapshot()), [*chats, alone], in_view=in_view)
            app.panel.show(view)
            await pilot.pause()
            row = view.row(in_view)
            assert row is not None
            lines = part(app, "legend")
            told = " ".join(lines[next(i for i, line in enumerate(lines) if line.startswith(row.title[:8])) + 1 :])
            counts = {name: int(count) for count, name in re.findall(r"(\d+) (own|shared|cached)", told)}
            assert counts == {"own": row.own, "shared": row.shared, "cached": row.cached}

    run(app, test)


def test_the_lines_below_the_chats_explain_themselves() -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(scene())
        await pilot.pause()
        table = app.panel.query_one(ChatTable)
        lines = lines_of(table)
        for title, words in (("No open chat", "no open chat"), ("Counted twice", "several chats"), ("All", "the pool")):
            y = next(y for y, line in enumerate(lines) if line.startswith(title))
            await pilot.hover(table, (2, y))
            assert words in str(table.tooltip)
        await pilot.hover(table, (2, 1))
        assert table.tooltip is None

    run(app, test)


def test_six_chats_with_room_for_two_add_up_on_the_screen_at_every_refresh() -> None:
    """Case C16, through the engine thread."""
    app = PanelApp()
    seen: set[RowState] = set()
    executor = Paced([97], num_blocks=65, vocab_size=258)

    async def test(pilot: Pilot[Any]) -> None:
        async with AsyncEngine(lambda _: engine_of(executor, max_num_seqs=2)) as engine:
            params = SamplingParams(max_tokens=60, ignore_eos=True)

            async def chat(i: int) -> None:
                async for _ in engine.generate(SYSTEM + "abcdef"[i] * 40, params, request_id=f"r{i}"):
                    pass

            tasks = [asyncio.create_task(chat(i)) for i in range(6)]
            chats = [ChatFacts(id=f"c{i}", title=f"Chat {i}", request_id=f"r{i}") for i in range(6)]
            refreshes = 0
            while not all(task.done() for task in tasks) or not refreshes:
                # Asked for before the engine may go on, since it stands still in the middle of a step.
                asked = asyncio.create_task(engine.snapshot())
                await asyncio.sleep(0)
                executor.steps.release(3)
                view = EngineView.of(await asked, chats, in_view="c0")
                view.check()
                app.panel.show(view)
                await pilot.pause()
                check_columns(app, view)
                seen.update(row.state for row in view.rows)
                refreshes += 1
            await asyncio.gather(*tasks)

    run(app, test)
    assert seen >= {RowState.WAITING, RowState.WRITING, RowState.IDLE}


def test_who_gives_way_in_a_small_pool_is_told() -> None:
    app = PanelApp()
    engine = engine_of(num_blocks=13, max_num_seqs=4)
    for i in range(3):
        engine.add_request("abc"[i] * 40, SamplingParams(max_tokens=90, ignore_eos=True), request_id=f"r{i}")
    chats = [ChatFacts(id=f"c{i}", title=f"Chat {i}", request_id=f"r{i}") for i in range(3)]

    async def test(pilot: Pilot[Any]) -> None:
        told = False
        while engine.has_unfinished:
            engine.step()
            view = EngineView.of(engine.snapshot(), chats)
            view.check()
            if any(row.state is RowState.PREEMPTED for row in view.rows) and not told:
                app.panel.show(view)
                await pilot.pause()
                check_columns(app, view)
                told = any("preempted" in line for line in part(app, "chats"))
                assert re.search(r"Preemptions +[1-9]", "\n".join(part(app, "figures")))
        assert told

    run(app, test)


def test_requests_of_no_chat_and_the_lower_tier_have_their_place() -> None:
    app = PanelApp()
    engine, chats = work()
    view = EngineView.of(replace(engine.snapshot(), tier_blocks=7), chats[:2])

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(view)
        await pilot.pause()
        check_columns(app, view)
        assert any(line.startswith("Other reque") for line in part(app, "chats"))
        assert any(re.search(r"7 in swap space", line) for line in part(app, "legend"))
        assert re.fullmatch(r"In swap space +4.9 MiB 7 blocks", part(app, "sharing")[4])

    run(app, test)


def below() -> EngineView:
    """A view of an engine that has pinned blocks, swap space and a disk."""
    engine, chats = work()
    rested = tuple((SYSTEM + "Where shall we go? " * 9).encode())
    assert engine.pin("c0", rested).pinned
    snapshot = steady(engine.snapshot())
    moved = {"swap_out": 41, "swap_in": 6, "evictions": 35, "pin_yields": 3, "tier_declined": 2, "tier_ms_saved": 12_345}
    disk = {"disk_pending": 4, "disk_writes": 1, "disk_reads": 5, "disk_drops": 7, "disk_faults": 8}
    snapshot = replace(snapshot, tier_blocks=30, counters={**snapshot.counters, **moved, **disk})
    view = EngineView.of(snapshot, [replace(chats[0], is_pinned=True), *chats[1:]], in_view="c0")
    view.check()
    return view


def test_what_is_pinned_swapped_and_on_the_disk_is_told() -> None:
    app = PanelApp()
    view = below()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(view)
        await pilot.pause()
        check_columns(app, view)
        pinned, idle = view.snapshot.pinned_blocks, len(view.idle_pinned)
        assert pinned > idle > 0
        assert re.fullmatch(rf"Pinned +[\d.]+ MiB {pinned} blocks", part(app, "sharing")[4])
        assert any(re.match(rf"▣ +{idle} pinned \(cached\)", line) for line in part(app, "legend"))
        assert any(re.search(r"Greek islands in May +pinned$", line) for line in part(app, "chats"))
        told = [re.sub(" +", " ", line) for line in part(app, "tiers")]
        assert told == [
            "Swap and disk",
            "Swapped out 29 MiB 41 blocks",
            "Swapped in 4.2 MiB 6 blocks",
            "Written to disk 720 KiB 1 block",
            "Read from disk 3.5 MiB 5 blocks",
            "Waiting for disk 2.8 MiB 4 blocks",
            "Disk too slow or full 4.9 MiB 7 blocks",
            "Unreadable files 8",
            "Quicker to compute 2",
            "Pins given up 3",
            "Time saved 12.3 s",
        ]
        app.panel.show(scene())
        await pilot.pause()
        assert not app.panel.query_one("#engine-tiers").display
        assert len(part(app, "sharing")) == 4

    run(app, test)


def test_in_little_room_a_pinned_chat_has_a_mark() -> None:
    app = PanelApp()
    app.panel.styles.width = 24

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(below())
        await pilot.pause()
        assert any(re.search(r"Greek islands.* ▣$", line) for line in part(app, "chats"))
        assert any("pinned (cached)" in line for line in part(app, "legend"))
        assert any(re.match(r"Swapped out +29 MiB", line) for line in part(app, "tiers"))

    run(app, test, (60, 60))


def test_titles_are_never_markup() -> None:
    app = PanelApp()
    chats = [ChatFacts(id="a", title="[red]no[/red] \x1b[2J\nnew")]

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(EngineView.of(engine_of().snapshot(), chats))
        await pilot.pause()
        assert any("[red]no[/red] [2J new" in line for line in part(app, "chats"))

    run(app, test)


def test_nothing_is_painted_again_when_nothing_has_changed() -> None:
    app = PanelApp()
    view = scene()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(view)
        await pilot.pause()
        await pilot.pause()
        painted: list[str] = []
        for widget in app.panel.walk_children(Widget):
            if type(widget).__module__.startswith("chatpaged."):
                watch(widget, painted)
        app.panel.show(scene())
        await pilot.pause()
        assert painted == []
        more = replace(view.snapshot, counters={**view.snapshot.counters, "evictions": 5})
        app.panel.show(replace(view, snapshot=more))
        await pilot.pause()
        assert painted == ["engine-figures 7"]

    def watch(widget: Widget, painted: list[str]) -> None:
        render_line = widget.render_line

        def noted(y: int) -> Any:
            painted.append(f"{widget.id} {y}")
            return render_line(y)

        widget.render_line = noted  # type: ignore[method-assign]

    run(app, test, (120, 90))


def test_a_hidden_panel_costs_nothing_and_is_up_to_date_when_it_is_shown() -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(scene())
        await pilot.pause()
        app.panel.display = False
        await pilot.pause()
        layouts: list[object] = []
        refresh_layout = app.screen._refresh_layout

        def noted(*args: Any, **options: Any) -> None:
            layouts.append(args)
            refresh_layout(*args, **options)

        app.screen._refresh_layout = noted  # type: ignore[method-assign]
        idle = EngineView.of(engine_of().snapshot(), ())
        for _ in range(3):
            app.panel.show(idle)
            await pilot.pause()
        assert layouts == []
        app.panel.display = True
        await until(pilot, lambda: "".join(part(app, "status")[:1]).startswith("0 running"), "what is new")

    run(app, test)


# --- by key and by mouse -----------------------------------------------------------------------------------------------


def lit(app: PanelApp | ScreenApp) -> str:
    """The chat whose blocks are told in the legend."""
    return part(app, "legend")[2]


def test_keys_walk_through_the_chats_light_up_their_blocks_and_open_them() -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(scene())
        await pilot.pause()
        block_map = app.panel.query_one(BlockMap)
        bright = block_map.look(Cell.USED).color
        app.panel.query_one(ChatTable).focus()
        await pilot.pause()
        assert lit(app) == "Proof that √2 is irrational"
        await pilot.press("down", "down")
        await pilot.pause()
        assert lit(app) == "Fix the failing test"
        others = {segment.style.color for y in range(4) for segment in block_map.render_line(y) if segment.style}
        assert bright not in others
        await pilot.press("enter")
        await pilot.press("end", "enter", "home", "up", "enter")
        await pilot.pause()
        assert app.selected == ["c3", "c5", "c0"]
        app.panel.query_one(ChatTable).blur()
        await pilot.pause()
        assert lit(app) == "Proof that √2 is irrational"
        again = {segment.style.color for y in range(4) for segment in block_map.render_line(y) if segment.style}
        assert bright in again

    run(app, test)


def test_a_chat_below_the_edge_is_scrolled_to() -> None:
    app = PanelApp()
    chats = [ChatFacts(id=f"c{i}", title=f"Chat {i}") for i in range(40)]

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(EngineView.of(engine_of().snapshot(), chats))
        await pilot.pause()
        table = app.panel.query_one(ChatTable)
        table.focus()
        await pilot.pause()
        await pilot.press("end")
        await until(pilot, lambda: app.panel.scroll_y > 40, "scrolling")
        last = table.region.y + 1 + 2 * 39
        assert app.panel.region.y <= last < app.panel.region.bottom
        await pilot.press("home")
        await until(pilot, lambda: table.region.y + 1 >= app.panel.region.y, "scrolling back")

    run(app, test, (100, 24))


def test_the_mouse_lights_up_and_opens_chats() -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(scene())
        await pilot.pause()
        await pilot.hover(ChatTable, offset=(6, 6))
        await pilot.pause()
        assert app.panel.query_one(ChatTable).cursor == "c1"
        assert lit(app).startswith("日本語")
        await pilot.hover("#engine-batch")
        await pilot.pause()
        assert lit(app) == "Proof that √2 is irrational"
        await pilot.click(ChatTable, offset=(6, 8))
        await pilot.pause()
        assert app.selected == ["c3"]
        await pilot.hover(ChatTable, offset=(6, 0))
        await pilot.click(ChatTable, offset=(6, 14))
        await pilot.pause()
        assert app.selected == ["c3"]

    run(app, test)


def test_a_cell_tells_whose_block_it_is() -> None:
    app = PanelApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(scene())
        await pilot.pause()
        block_map = app.panel.query_one(BlockMap)
        await pilot.hover(BlockMap, offset=(2, 0))
        await pilot.pause()
        told = str(block_map.tooltip)
        assert told.startswith("Block 1: shared\n  Greek islands in May, kept for later\n  Proof that √2 is irrational\n")
        await pilot.click(BlockMap, offset=(2, 0))
        await pilot.pause()
        assert lit(app) == "Greek islands in May"
        await pilot.click(BlockMap, offset=(2, 0))
        await pilot.pause()
        assert lit(app) == "Proof that √2 is irrational"
        await pilot.click(BlockMap, offset=(0, 0))
        await pilot.pause()
        assert lit(app) == "Proof that √2 is irrational"
        await pilot.hover("#rest")
        await pilot.pause()
        assert block_map.tooltip is None

    run(app, test)


def test_a_cell_of_several_blocks_tells_all_of_them() -> None:
    app = PanelApp()
    engine = engine_of(num_blocks=2000)
    for i in range(9):
        engine.add_request(SYSTEM + "x" * i, SamplingParams(max_tokens=50, ignore_eos=True), request_id=f"r{i}")
    for _ in range(9):
        engine.step()
    chats = [ChatFacts(id=f"c{i}", title=f"Chat {i}", request_id=f"r{i}") for i in range(8)]

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(EngineView.of(engine.snapshot(), chats))
        await pilot.pause()
        await pilot.hover(BlockMap, offset=(0, 0))
        await pilot.pause()
        told = str(app.panel.query_one(BlockMap).tooltip).split("\n")
        assert re.fullmatch(r"Blocks 0 to \d: 1 reserved, never used, \d shared", told[0])
        assert told[1:] == [f"  Chat {i}" for i in range(6)] + ["  and 3 more"]
        assert any(line.startswith("1 cell = ") for line in part(app, "legend"))

    run(app, test)


def test_the_whole_screen_opens_a_chat_or_goes_back() -> None:
    for keys, result in ((("down", "enter"), "c2"), (("escape",), None)):
        app = ScreenApp()

        async def test(pilot: Pilot[Any], app: ScreenApp = app, keys: tuple[str, ...] = keys, result: str | None = result) -> None:
            app.engine.show(scene())
            await pilot.pause()
            await pilot.press(*keys)
            await until(pilot, lambda: app.results, "the result")
            assert app.results == [result]

        run(app, test)


# --- how it looks --------------------------------------------------------------------------------------------------------


def look(app: PanelApp | ScreenApp, size: tuple[int, int], check: Callable[[], None], view: EngineView | None = None) -> None:
    async def test(pilot: Pilot[Any]) -> None:
        (app.panel if isinstance(app, PanelApp) else app.engine).show(view if view is not None else scene())
        await pilot.pause()
        await pilot.pause()
        check()

    run(app, test, size)


def test_picture_of_the_panel(snapshot: Snapshot) -> None:
    app = PanelApp()
    look(app, (110, 68), lambda: snapshot(app, "engine_panel"))


def test_picture_of_the_screen(snapshot: Snapshot) -> None:
    app = ScreenApp()
    look(app, (120, 40), lambda: snapshot(app, "engine_screen"))


def test_picture_in_a_light_theme(snapshot: Snapshot) -> None:
    app = ScreenApp()
    app.theme = "textual-light"
    look(app, (120, 40), lambda: snapshot(app, "engine_screen_light"))


def test_picture_without_colours(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = ScreenApp()
    look(app, (120, 40), lambda: snapshot(app, "engine_screen_monochrome"))


def test_picture_for_all_kinds_of_colour_vision(snapshot: Snapshot) -> None:
    app = ScreenApp(map_colors="colorblind")
    look(app, (120, 40), lambda: snapshot(app, "engine_screen_colorblind"))


def test_picture_on_a_small_screen(snapshot: Snapshot) -> None:
    app = ScreenApp()
    look(app, (60, 20), lambda: snapshot(app, "engine_screen_60x20"))


def test_pictures_of_what_is_below_the_pool(snapshot: Snapshot) -> None:
    app = ScreenApp()
    look(app, (120, 48), lambda: snapshot(app, "engine_screen_tiers"), below())
    letters = PanelApp(map_colors="letters")
    look(letters, (44, 80), lambda: snapshot(letters, "engine_panel_tiers_letters"), below())


def large() -> tuple[LLMEngine, list[ChatFacts]]:
    """20,000 blocks."""
    return work(20_000, max_num_seqs=8)


def test_picture_of_a_large_pool(snapshot: Snapshot) -> None:
    engine, chats = large()
    app = ScreenApp()
    look(app, (120, 40), lambda: snapshot(app, "engine_screen_large"), EngineView.of(steady(engine.snapshot()), chats, in_view="c2"))


@pytest.mark.parametrize("theme", ["ansi-dark", "nord", "solarized-light"])
def test_other_themes_do(theme: str) -> None:
    app = ScreenApp()
    app.theme = theme
    look(app, (100, 40), lambda: None)


def test_every_size_does_also_when_it_changes() -> None:
    """Case I19."""
    view = scene()
    for make in (PanelApp, ScreenApp):
        app = make()

        async def test(pilot: Pilot[Any], app: PanelApp | ScreenApp = app) -> None:
            target = app.panel if isinstance(app, PanelApp) else app.engine
            target.show(view)
            for size in ((40, 12), (20, 5), (300, 100), (80, 24), (31, 30), (96, 12), (100, 30), (1, 1), (60, 20)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                target.show(view)
                await pilot.pause()
            assert part(app, "status")[0].startswith("4 running")

        run(app, test, (120, 40))


def test_the_panel_is_of_use_at_forty_columns() -> None:
    app = ScreenApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.engine.show(scene())
        await pilot.pause()
        width = panel_of(app).query_one(ChatTable).size.width
        assert width >= 32
        assert any(re.search(r"reading \d+% +8 +7 +-", line) for line in part(app, "chats"))
        assert all(len(line) <= width for name in ("chats", "legend", "figures", "split", "status") for line in part(app, name))

    run(app, test, (40, 12))


@pytest.mark.parametrize(
    ("map_colors", "legend", "blocks", "split"),
    [("theme", "■", "x ◆ ◆", "█"), ("letters", "u", "0 S S", "sopfdt"), ("colorblind", "■", "x ◆ ◆", "█")],
)
def test_the_panel_tells_states_apart_as_it_is_set(map_colors: str, legend: str, blocks: str, split: str) -> None:
    app = PanelApp(map_colors=map_colors)

    async def test(pilot: Pilot[Any]) -> None:
        app.panel.show(scene())
        await pilot.pause()
        assert part(app, "legend")[0].startswith(legend)
        assert part(app, "map")[0].startswith(blocks)
        assert set(part(app, "split")[1]) <= set(split)

    run(app, test)
