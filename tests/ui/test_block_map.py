from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.color import Color
from textual.pilot import Pilot
from textual.theme import BUILTIN_THEMES

from chatpaged.engine_view import Cell
from chatpaged.ui.widgets.block_map import BlockMap, Grid

ALL = bytes(Cell)


class MapApp(App[None]):
    def __init__(self, map_colors: str = "theme") -> None:
        super().__init__()
        self.map = BlockMap(map_colors=map_colors)
        self.told: list[tuple[str, range]] = []

    def compose(self) -> ComposeResult:
        yield self.map

    def on_block_map_pointed(self, message: BlockMap.Pointed) -> None:
        self.told.append(("pointed", message.blocks))

    def on_block_map_picked(self, message: BlockMap.Picked) -> None:
        self.told.append(("picked", message.blocks))


def run(app: MapApp, test: Callable[[Pilot[Any]], Coroutine[Any, Any, None]], size: tuple[int, int] = (40, 12)) -> None:
    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await test(pilot)

    asyncio.run(main())


def text(app: MapApp) -> list[str]:
    return [app.map.render_line(y).text.rstrip() for y in range(app.map.size.height)]


def colors(app: MapApp) -> list[Any]:
    """The colour of each cell of the first line, where all differ."""
    return [segment.style.color for segment in app.map.render_line(0) if segment.style is not None and segment.text.strip()]


@given(st.integers(1, 30_000), st.integers(1, 200), st.integers(1, 60))
def test_a_grid_has_a_place_for_each_block_and_each_place_few(num_blocks: int, width: int, max_lines: int) -> None:
    grid = Grid.fit(num_blocks, width, max_lines)
    assert grid.lines <= max_lines
    assert grid.columns * grid.cell_width <= max(width, grid.cell_width)
    assert (grid.lines - 1) * grid.columns * grid.blocks < num_blocks <= grid.lines * grid.columns * grid.blocks
    assert grid.blocks == 1 or num_blocks > width * max_lines
    assert Grid.fit(num_blocks, width, max_lines, scaled_width=2).lines <= max_lines
    seen = [
        block
        for y in range(grid.lines)
        for x in range(0, grid.columns * grid.cell_width, grid.cell_width)
        for block in grid.blocks_at(x, y, num_blocks)
    ]
    assert seen == list(range(num_blocks))


def test_beside_the_grid_there_is_nothing() -> None:
    grid = Grid.fit(10, 9, 5)
    assert (grid.columns, grid.lines, grid.cell_width) == (4, 3, 2)
    assert (grid.blocks_at(8, 0, 10), grid.blocks_at(0, 3, 10), grid.blocks_at(-1, 0, 10)) == (range(0), range(0), range(0))
    assert grid.blocks_at(7, 1, 10) == range(7, 8)
    assert not grid.blocks_at(7, 2, 10)


def test_one_cell_a_block_with_its_shape() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.map.show(ALL)
        await pilot.pause()
        assert text(app) == ["x · ▾ □ ▣ ■ ◆ □ ▣ ■ ◆"]
        app.map.show(ALL * 4)
        await pilot.pause()
        assert text(app)[0] == "x · ▾ □ ▣ ■ ◆ □ ▣ ■ ◆ x · ▾ □ ▣ ■ ◆ □ ▣"
        app.map.show(bytes([Cell.FREE]) * 160 + bytes([Cell.USED]) * 160)
        await pilot.pause()
        assert text(app) == ["·" * 40] * 4 + ["■" * 40] * 4

    run(app, test)


def several() -> bytes:
    free, used, mine, cached = (bytes([cell]) for cell in (Cell.FREE, Cell.USED, Cell.CHAT_CACHED, Cell.CACHED))
    return (free * 8 + used + free * 7 + used * 4 + free * 4 + used * 7 + mine + cached * 8) * 8


def test_a_cell_for_several_blocks_shows_what_matters_most_and_how_full_they_are() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.map.max_lines = 1
        app.map.show(several())
        await pilot.pause()
        assert app.map.grid.blocks == 8
        assert text(app) == ["·▁▄██" * 8]
        looks = [app.map.sample(cell)[1].color for cell in (Cell.FREE, Cell.USED, Cell.CHAT_CACHED, Cell.CACHED)]
        assert len(set(looks)) == 4
        # Runs of one colour: free, used (two cells), the chat's, cached.
        assert colors(app)[:4] == looks

    run(app, test)


def test_letters_for_several_blocks_are_followed_by_how_full_they_are() -> None:
    app = MapApp("letters")

    async def test(pilot: Pilot[Any]) -> None:
        app.map.max_lines = 1
        app.map.show(several())
        await pilot.pause()
        assert app.map.grid.blocks == 16
        # 1 of 16 full, 12, 8, 5, 16.
        assert text(app) == ["u1C7c5u3C9" * 4]

    run(app, test)


def test_states_differ_by_letters_where_there_are_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.map.show(ALL)
        await pilot.pause()
        assert text(app) == ["0 . l c p u s C P U S"]
        assert len(set(text(app)[0].split())) == len(Cell)

    run(app, test)


def test_colours_follow_the_theme() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.map.show(ALL)
        await pilot.pause()
        dark = colors(app)
        app.theme = "textual-light"
        await pilot.pause()
        assert colors(app) != dark

    run(app, test)


def test_colours_can_be_such_that_everybody_tells_them_apart() -> None:
    app = MapApp("colorblind")

    async def test(pilot: Pilot[Any]) -> None:
        app.map.show(ALL)
        await pilot.pause()
        assert app.map.look(Cell.USED).color == Color.parse("#0072B2").rich_color
        app.theme = "ansi-dark"
        await pilot.pause()
        assert text(app)

    run(app, test)


def test_in_every_theme_the_colours_of_blocks_in_use_are_told_apart() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        for name in BUILTIN_THEMES:
            app.theme = name
            await pilot.pause()
            looks = [app.map.look(cell).color for cell in (Cell.USED, Cell.SHARED, Cell.CHAT_USED)]
            channels = [look.get_truecolor() for look in looks if look is not None]
            for one, other in itertools.combinations(channels, 2):
                assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 60, name

    run(app, test)


def test_pointing_at_a_chat_dims_the_others() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.map.show(ALL)
        await pilot.pause()
        before = colors(app)
        app.map.show(ALL, lit=True)
        await pilot.pause()
        after = colors(app)
        changed = [old != new for old, new in zip(before, after, strict=True)]
        assert changed == [cell < Cell.CHAT_CACHED for cell in Cell]
        app.theme = "ansi-dark"
        await pilot.pause()
        await pilot.pause()
        dim = [bool(segment.style and segment.style.dim) for segment in app.map.render_line(0) if segment.text.strip()]
        assert dim == [cell < Cell.CHAT_CACHED for cell in Cell]

    run(app, test)


def test_only_lines_that_changed_are_painted() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        cells = bytearray([Cell.FREE] * 100)
        app.map.show(bytes(cells))
        await pilot.pause()
        painted: list[int] = []
        render_line = app.map.render_line

        def noted(y: int) -> Any:
            painted.append(y)
            return render_line(y)

        app.map.render_line = noted  # type: ignore[method-assign]
        app.map.show(bytes(cells))
        await pilot.pause()
        assert painted == []
        cells[25] = Cell.USED
        app.map.show(bytes(cells))
        await pilot.pause()
        assert painted == [1]

    run(app, test)


def test_the_mouse_finds_blocks() -> None:
    app = MapApp()

    async def test(pilot: Pilot[Any]) -> None:
        app.map.show(ALL)
        await pilot.pause()
        await pilot.hover(BlockMap, offset=(4, 0))
        await pilot.hover(BlockMap, offset=(5, 0))
        await pilot.click(BlockMap, offset=(6, 0))
        await pilot.click(BlockMap, offset=(38, 0))
        await pilot.hover(offset=(3, 8))
        await pilot.pause()
        assert [entry for entry in app.told if entry[0] == "picked"] == [("picked", range(3, 4))]
        pointed = [blocks for kind, blocks in app.told if kind == "pointed"]
        assert pointed[0] == range(2, 3)
        assert not pointed[-1]

    run(app, test)
