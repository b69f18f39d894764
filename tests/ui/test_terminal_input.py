"""What terminals send."""

from __future__ import annotations

import asyncio
import os
import pty
import time
import tty
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.events import Key, Paste
from textual.message import Message

from chatpaged.ui.terminal_input import TerminalDriver, TerminalParser
from tests.ui.patient_pilot import SECONDS

START, END = "\x1b[200~", "\x1b[201~"


def told(events: Iterable[Message]) -> list[str | tuple[str]]:
    """Names of keys, and pasted texts in tuples."""
    return [event.key if isinstance(event, Key) else (event.text,) for event in events if isinstance(event, Key | Paste)]


def parsed(*chunks: str) -> list[str | tuple[str]]:
    parser = TerminalParser()
    return told(event for chunk in (*chunks, "") for event in parser.feed(chunk))


@pytest.mark.parametrize(  # I9
    ("data", "key"),
    [
        ("\r", "enter"),
        ("\x1b\r", "alt+enter"),  # most terminals, tmux
        ("\n", "ctrl+j"),  # all terminals
        ("\x1b[13;2u", "shift+enter"),  # kitty's protocol
        ("\x1b[13;3u", "alt+enter"),
        ("\x1b[106;5u", "ctrl+j"),
        ("\x1b[27;2;13~", "shift+enter"),  # xterm's
        ("\x1b[27;3;13~", "alt+enter"),
        ("\x1b", "escape"),
        ("\x1b[A", "up"),
        ("x", "x"),
    ],
)
def test_keys(data: str, key: str) -> None:
    assert parsed(data) == [key]


@pytest.mark.parametrize(  # I7
    "text",
    [
        "a\rb\r\nc",
        "",
        "\x1b[31mred\x1b[0m and a long line that goes on for a while\rmore\r",
        "\x1b\x1b\x1b",
        "\x1b[20",
        START,
        "ünïcödé 👩‍💻",
    ],
)
def test_a_paste_is_one_event_wherever_it_is_cut(text: str) -> None:
    data = f"x{START}{text}{END}y\r"
    for cut in range(1, len(data)):
        assert parsed(data[:cut], data[cut:]) == ["x", (text,), "y", "enter"], cut
    assert parsed(*data) == ["x", (text,), "y", "enter"]


@given(st.text(alphabet="ab\x1b[2016~\r\n", max_size=40).filter(lambda text: END not in text + END[:-1]), st.data())
def test_no_paste_becomes_keys(text: str, data: st.DataObject) -> None:
    stream = f"{START}{text}{END}"
    cuts = sorted(data.draw(st.lists(st.integers(2, len(stream)), max_size=5)))
    chunks = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parsed(*(chunk for chunk in chunks if chunk)) == [(text,)]


def test_a_large_paste_is_quick() -> None:  # I8
    text = "lorem ipsum dolor sit amet\r" * 40_000
    data = f"{START}{text}{END}"
    begin = time.perf_counter()
    assert parsed(*(data[i : i + 4096] for i in range(0, len(data), 4096))) == [(text,)]
    assert time.perf_counter() - begin < 0.3


def test_what_only_begins_like_a_paste_is_not_held_for_ever() -> None:
    parser = TerminalParser()
    assert told(parser.feed("a\x1b[2")) == ["a"]
    end = time.monotonic() + SECONDS
    found: list[str | tuple[str]] = []
    while not found and time.monotonic() < end:
        found += told(parser.tick())
    assert found  # as Textual reads an incomplete sequence
    assert told(parser.feed("b"))[-1] == "b"


def test_bytes_that_are_no_text_are_survived() -> None:
    found: list[Message] = []

    class Driver(TerminalDriver):
        def process_message(self, message: Message) -> None:
            found.append(message)
            if isinstance(message, Key) and message.key == "q":
                self.exit_event.set()

    async def main() -> None:
        master, slave = pty.openpty()
        try:
            tty.setraw(slave)
            driver = Driver(App())
            driver.fileno = slave
            os.write(master, b"a\xff\xe4b\xc3\xa9q")
            await asyncio.wait_for(asyncio.to_thread(driver.run_input_thread), SECONDS)
        finally:
            os.close(master)
            os.close(slave)

    asyncio.run(main())
    assert "".join(event.character or "" for event in found if isinstance(event, Key)) == "a\ufffd\ufffdbéq"
