"""What the engine does with its memory and its time, live."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatpaged.amounts import memory_size
from chatpaged.engine.sequence import SequenceStatus
from chatpaged.engine_view import Cell, EngineView
from chatpaged.ui.short_texts import one_line
from chatpaged.ui.widgets.block_map import BlockMap
from chatpaged.ui.widgets.chat_table import ChatTable
from chatpaged.ui.widgets.engine_figures import figures, sharing, tiers
from chatpaged.ui.widgets.engine_status import EngineStatus
from chatpaged.ui.widgets.figures import Figures, Heading
from chatpaged.ui.widgets.map_legend import MapLegend
from chatpaged.ui.widgets.step_charts import StepSeries, TimeSplit

WITHOUT = "The engine is loading its model.\nThe map of its memory will be here."
_WIDE = 96
_STEPS_FOR_TIME = 16
_NAMED = 6
_STATES = {
    Cell.NULL: "reserved, never used",
    Cell.FREE: "free",
    Cell.LOWER: "in swap space",
    Cell.CACHED: "cached",
    Cell.PINNED: "cached and pinned",
    Cell.USED: "in use",
    Cell.SHARED: "shared",
}


class EnginePanel(VerticalScroll):
    """The engine at a glance: block map, chats, steps, figures. Beside a conversation, or over the whole screen."""

    DEFAULT_CSS = """
    EnginePanel {
        width: 42; min-width: 24; height: 1fr; padding: 0 1; background: $surface; scrollbar-size-vertical: 1;
        #engine-loading { display: none; width: 1fr; height: auto; color: $foreground 60%; margin: 1 0; }
        #engine-columns, #engine-left, #engine-right { height: auto; width: 1fr; }
        #engine-chats, #engine-batch, #engine-tokens, #engine-split, #engine-sharing, #engine-figures, #engine-tiers { margin-top: 1; }
        #engine-memory, #engine-legend { margin-top: 1; }
        &.-wide {
            padding: 1 2;
            #engine-columns { layout: horizontal; }
            #engine-left { padding-right: 4; }
            #engine-right { width: 42; }
            #engine-batch { margin-top: 1; }
        }
        &.-loading {
            #engine-status, #engine-columns { display: none; }
            #engine-loading { display: block; }
        }
    }
    """

    class ChatSelected(Message):
        """A chat is to be opened."""

        def __init__(self, chat_id: str) -> None:
            super().__init__()
            self.chat_id = chat_id

    def __init__(self, *, map_colors: str = "theme", id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        """Makes the panel, which says that the engine is loading until `show` is called.

        Args:
            map_colors: the setting `app.map_colors`.
            id: of the widget.
            classes: of the widget.
        """
        super().__init__(id=id, classes=classes)
        self.add_class("-loading")
        self._view: EngineView | None = None
        self._lit: str | None = None
        self._is_stale = False
        self._picked = range(0)
        self._loading = Static(Content(WITHOUT), id="engine-loading", markup=False)
        self._status = EngineStatus(id="engine-status")
        self._memory = Heading("Memory", id="engine-memory")
        self._map = BlockMap(map_colors=map_colors, id="engine-map")
        self._legend = MapLegend(self._map, id="engine-legend")
        self._chats = ChatTable(id="engine-chats")
        self._batch = StepSeries("Batch size", id="engine-batch")
        self._tokens = StepSeries("Tokens a step", id="engine-tokens", classes="-second")
        self._split = TimeSplit(id="engine-split")
        self._split.set_class(map_colors == "colorblind", "-colorblind")
        self._sharing = Figures("Sharing", id="engine-sharing")
        self._figures = Figures("Since the start", id="engine-figures")
        self._tiers = Figures("Swap and disk", id="engine-tiers")
        self._tiers.display = False

    def compose(self) -> ComposeResult:
        """All parts."""
        yield self._loading
        yield self._status
        with Vertical(id="engine-columns"):
            with Vertical(id="engine-left"):
                yield self._memory
                yield self._map
                yield self._legend
                yield self._chats
            with Vertical(id="engine-right"):
                yield self._batch
                yield self._tokens
                yield self._split
                yield self._sharing
                yield self._figures
                yield self._tiers

    def on_mount(self) -> None:
        """Whether there are colours is known now."""
        self._split.uses_letters = self._map.uses_letters

    # --- what is shown -------------------------------------------------------------------------------------------------

    def show(self, view: EngineView | None, without: str = WITHOUT) -> None:
        """Shows the engine as it is now; None: there is none yet.

        Args:
            view: the engine.
            without: what is said while there is none.
        """
        self._view = view
        if view is None:
            self._loading.update(Content(without))
        self._is_stale = not self.size  # hidden: nothing is made that nobody sees
        if self._is_stale:
            return
        self.set_class(view is None, "-loading")
        if view is not None:
            self._show_parts(view)

    def _show_parts(self, view: EngineView) -> None:
        snapshot = view.snapshot
        self._status.show(view)
        self._memory.show(
            f"{view.num_blocks:,} × {memory_size(snapshot.block_bytes)} = {memory_size(view.num_blocks * snapshot.block_bytes)}"  # noqa: RUF001
        )
        self._show_map()
        self._chats.show(view)
        running = view.count(SequenceStatus.RUNNING)
        self._batch.show(view.batch_series, snapshot.batch_size if running else 0)
        self._tokens.show(view.token_series, snapshot.step_tokens if running else 0)
        last = snapshot.steps[-_STEPS_FOR_TIME:]
        self._split.show(view.time_split, sum(step.total for step in last) / len(last) if last else 0.0)
        self._sharing.show(sharing(view))
        self._figures.show(figures(view))
        moved = tiers(view)
        self._tiers.display = bool(moved)
        self._tiers.show(moved)

    def _show_map(self) -> None:
        if self._view is not None:
            if self._view.row(self._lit) is None:
                self._lit = None
            self._map.show(self._view.cells(self._lit), lit=self._lit is not None)
            self._legend.show(self._view, self._lit if self._lit is not None else self._view.in_view)

    # --- pointing and choosing -----------------------------------------------------------------------------------------

    @on(ChatTable.Lit)
    def _light_chat(self, message: ChatTable.Lit) -> None:
        message.stop()
        self._lit = message.chat_id
        self._show_map()

    @on(ChatTable.Selected)
    def _select_chat(self, message: ChatTable.Selected) -> None:
        message.stop()
        self.post_message(self.ChatSelected(message.chat_id))

    @on(BlockMap.Pointed)
    def _tell_blocks(self, message: BlockMap.Pointed) -> None:
        message.stop()
        self._map.tooltip = Content(_told(self._view, message.blocks)) if self._view is not None and message.blocks else None

    @on(BlockMap.Picked)
    def _pick_blocks(self, message: BlockMap.Picked) -> None:
        """Points at a chat that has the block; clicked again, at the next one."""
        message.stop()
        chats = [row.id for row in self._view.holders(message.blocks) if row.id] if self._view is not None else []
        if chats:
            again = message.blocks == self._picked and self._chats.cursor in chats
            self._picked = message.blocks
            self._chats.point_at(chats[(chats.index(self._chats.cursor or "") + 1) % len(chats)] if again else chats[0])

    def on_resize(self, event: events.Resize) -> None:
        """Two columns where there is room; the map takes a part of the height."""
        wide = event.size.width >= _WIDE
        self.set_class(wide, "-wide")
        self._map.max_lines = max(4, event.size.height // 2 - 4) if wide else min(12, max(4, event.size.height // 3))
        if self._is_stale:
            self.show(self._view)


def _told(view: EngineView, blocks: range) -> str:
    """What blocks are, and whose."""
    cells = view.cells("")[blocks.start : blocks.stop]
    if len(blocks) == 1:
        lines = [f"Block {blocks.start}: {_STATES[Cell(cells[0])]}"]
    else:
        counts = ", ".join(f"{cells.count(cell)} {name}" for cell, name in _STATES.items() if cells.count(cell))
        lines = [f"Blocks {blocks.start} to {blocks.stop - 1}: {counts}"]
    holders = view.holders(blocks)
    for row in holders[:_NAMED]:
        verb = ", kept for later" if row.blocks.isdisjoint(blocks) else ""
        lines.append(f"  {one_line(row.title)[:40] or 'other requests'}{verb}")
    if len(holders) > _NAMED:
        lines.append(f"  and {len(holders) - _NAMED} more")
    return "\n".join(lines)
