"""`chatpaged run` in real terminals: in tmux, as a user has it, and on a bare one, for what is written to it in the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from chatpaged.conversation import Conversation, NodeState
from chatpaged.store import Store
from tests.cli.runner import DEADLINE, REPOSITORY
from tests.cli.scripted_model import make_model
from tests.e2e.bare_terminal import BareTerminal
from tests.e2e.tmux import HAS_TMUX, Tmux, surroundings
from tests.e2e.troubled_app import IMPORTS, NOISE, SLOW_UNTIL, TROUBLE

needs_tmux = pytest.mark.skipif(not HAS_TMUX, reason="tmux is not installed")
WELCOME, READY, WRITING = "What shall we talk about?", "is ready", "Esc stops"
DEAD = "The engine has stopped"
TROUBLED = "tests.e2e.troubled_app"
SECONDS = 60.0
LIST_WIDTH = 30
ENDLESS = ("--temperature", "0", "--ignore-eos", "--threads", "1")  # one thread: others may be at work on this machine
CTRL_Q, PROMPT_MARK = "\x11", "\u276f"
COLOR = re.compile(r"\x1b\[[0-9;:]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])\b[0-9;:]*m")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the application keeps everything; short, since a socket's name must be."""
    return tmp_path / "h"


def kept(home: Path) -> dict[str, Conversation]:
    """All conversations, by what they begin with."""
    with Store(home / "data" / "chatpaged" / "conversations.db") as store:
        found = [store.load(info.id) for info in store.sessions()]
    return {conversation.path()[0].content: conversation for conversation in found}


def letters(text: str) -> str:
    """A text without spaces, borders and ends of lines: what can be compared with what a screen shows of it."""
    return re.sub(r"[^A-Za-z0-9]+", "", text)


def slow(until: Path) -> dict[str, str]:
    """Surroundings in which answers are written slowly until there is a file."""
    return {TROUBLE: "slow", SLOW_UNTIL: str(until)}


def drawn(text: str) -> bool:
    """Whether anything in a text was drawn by the application."""
    return any(part in text for part in ("╭", "│", "New chat", "tok/s", "Commands"))


def answer_on(screen: str) -> str:
    """The answer that a screen shows right of the list of chats, from below its header to above the prompt."""
    lines = [line[LIST_WIDTH:] for line in screen.partition("╭")[0].splitlines() if WRITING not in line]
    heads = [i for i, line in enumerate(lines) if re.search(r" \d\d:\d\d\b", line)]
    return letters("".join(lines[heads[-1] + 1 :])) if heads and "You" not in lines[heads[-1]] else ""


# --- as a user has it --------------------------------------------------------------------------------------------------


@needs_tmux
@pytest.mark.starter
def test_two_chats_one_stopped_the_end_and_again(home: Path, starter_model: Path) -> None:  # I5, C9, J1
    sea, moon = "Tell me about the sea.", "Tell me about the moon."
    seen = home / "seen"
    with Tmux(home, environment=slow(seen)) as terminal:
        terminal.run("run", *ENDLESS, "--max-tokens", "120", module=TROUBLED)
        terminal.wait(WELCOME, READY)
        assert terminal.state("alternate_on") == "1"
        terminal.type(sea, "Enter")
        terminal.until(lambda screen: WRITING in screen and answer_on(screen), "an answer")
        terminal.press("C-n")
        terminal.wait(WELCOME, sea)
        terminal.type(moon, "Enter")
        # Both are being answered: each has its speed in the list.
        terminal.until(
            lambda screen: len(re.findall(r"^ +(?:\d+ tok/s|writing) ", screen, re.MULTILINE)) == 2 and answer_on(screen), "two answers"
        )
        terminal.press("Escape")
        terminal.wait("stopped:")
        stopped = answer_on(terminal.wait_gone(WRITING))
        seen.touch()
        terminal.press("M-Down")
        terminal.wait("limit reached")
        terminal.wait_gone(WRITING)
        idle(terminal.process())
        terminal.press("C-q")
        assert terminal.status() == 0
        terminal.assert_as_before()
        assert not drawn(terminal.history())
        chats = kept(home)
        assert set(chats) == {sea, moon}
        assert [chats[name].path()[1].finish_reason for name in (sea, moon)] == ["length", "cancelled"]
        assert stopped.startswith(letters(chats[moon].path()[1].content))

        terminal.run("run", *ENDLESS, "--max-tokens", "120")
        terminal.wait(WELCOME, sea, moon)  # offered
        terminal.press("M-Down")
        terminal.wait("stopped:")
        terminal.press("M-Down")
        screen = terminal.wait("limit reached")
        assert letters(chats[sea].path()[1].content)[-80:] in answer_on(screen)
        terminal.process().send_signal(signal.SIGTERM)
        assert terminal.status() == 143
        terminal.assert_as_before()


def idle(process: psutil.Process) -> None:
    """Waits until a process takes next to no processor time."""
    end = time.monotonic() + SECONDS
    share = 1.0
    while share > 0.4:
        assert time.monotonic() < end, f"it still takes {share:.0%} of a core"
        before, begin = process.cpu_times(), time.monotonic()
        time.sleep(0.5)  # the span that is measured
        after = process.cpu_times()
        share = (after.user + after.system - before.user - before.system) / (time.monotonic() - begin)


@needs_tmux
@pytest.mark.starter
def test_killed_in_an_answer_and_gone_on_with(home: Path, starter_model: Path) -> None:  # J2
    question = "Tell me about mountains."
    seen: list[tuple[float, str]] = []
    with Tmux(home, environment=slow(home / "never")) as terminal:
        terminal.run("run", *ENDLESS, "--max-tokens", "400", module=TROUBLED)
        terminal.wait(WELCOME, READY)
        terminal.type(question, "Enter")

        def look(screen: str) -> bool:
            seen.append((time.monotonic(), answer_on(screen)))
            return any(len(text) > 20 and when < seen[-1][0] - 2 for when, text in seen)

        terminal.until(look, "an answer that has been there for two seconds")
        process = terminal.process()
        killed = time.monotonic()
        process.kill()
        terminal.until(lambda _: not terminal.has_process(), "the end")
    old = max((text for when, text in seen if when < killed - 1.5), key=len)  # half a second for the screen and the disk
    message, answer = kept(home)[question].path()
    assert (message.content, answer.state) == (question, NodeState.INTERRUPTED)
    assert old
    assert letters(answer.content).startswith(old)

    with Tmux(home) as terminal:
        terminal.run("run", "-c", *ENDLESS, "--max-tokens", "20")
        terminal.wait(question, "interrupted:", "● SmolLM2")
        terminal.press("C-Up")
        terminal.wait("o Go on")
        terminal.press("o")
        terminal.wait("limit reached")
        terminal.press("C-q")
        assert terminal.status() == 0
    longer = kept(home)[question].path()[-1].content
    assert longer.startswith(answer.content)
    assert len(longer) > len(answer.content)


@needs_tmux
@pytest.mark.starter
def test_an_engine_that_stops_is_loaded_again(home: Path, starter_model: Path) -> None:  # I13
    with Tmux(home, environment={TROUBLE: "engine"}) as terminal:
        terminal.run("run", *ENDLESS, "--max-tokens", "20", module=TROUBLED)
        terminal.wait(WELCOME, READY)
        terminal.type("Hello there.", "Enter")
        terminal.wait(DEAD, "the device has gone")
        terminal.press("Enter")
        terminal.wait_gone(DEAD)
        terminal.wait("● SmolLM2")
        terminal.type("Hello again.", "Enter")
        terminal.wait("Hello again.", "limit reached")
        terminal.press("C-q")
        assert terminal.status() == 0
        terminal.assert_as_before()
    [chat] = kept(home).values()
    assert [node.content for node in chat.path() if node.role == "user"] == ["Hello there.", "Hello again."]


# --- how it ends, byte by byte -----------------------------------------------------------------------------------------


def opened(home: Path, environment: Mapping[str, str] | None = None) -> BareTerminal:
    """The demo, once it is ready."""
    terminal = BareTerminal(home, "run", "--demo", environment=environment)
    terminal.wait(WELCOME)
    terminal.wait(READY)
    return terminal


def test_the_end_leaves_the_terminal_as_it_was(home: Path) -> None:  # I13
    with opened(home) as terminal:
        terminal.send(CTRL_Q)
        assert terminal.end() == 0
        terminal.assert_as_before()
        assert terminal.after_the_screen().strip() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_keeps_the_answer_and_the_terminal(home: Path, number: signal.Signals) -> None:  # I13
    with opened(home) as terminal:
        terminal.send("Say something long.\r")
        terminal.wait(WRITING)
        terminal.process.send_signal(number)
        assert terminal.end() == 143
        terminal.assert_as_before()
        assert "Traceback" not in terminal.after_the_screen()
    [chat] = kept(home).values()
    assert chat.path()[0].content == "Say something long."


def test_a_widget_that_fails_is_told_on_the_normal_screen(home: Path) -> None:  # I13
    with opened(home, environment={TROUBLE: "widget"}) as terminal:
        terminal.send("\x1b[18~")  # F7
        assert terminal.end() == 1
        terminal.assert_as_before()
        told = terminal.after_the_screen()
        assert "Traceback (most recent call last)" in told
        assert "RuntimeError: a widget has failed" in told
        assert told.rstrip().endswith("chatpaged run -c goes on")


def test_an_engine_that_stops_leaves_the_application_and_in_the_end_the_terminal(home: Path) -> None:  # I13
    with opened(home, environment={TROUBLE: "engine"}) as terminal:
        terminal.send("Hello.\r")
        at = terminal.wait(DEAD)
        terminal.send("\r")
        at = terminal.wait("●", since=at)
        terminal.send("Hello again.\r")
        terminal.wait("tok/s", since=at)
        terminal.send(CTRL_Q)
        assert terminal.end() == 0
        terminal.assert_as_before()


def test_nothing_heavy_is_imported_before_the_window_is_there(home: Path, tmp_path: Path) -> None:
    names = tmp_path / "names"
    with BareTerminal(home, "run", environment={TROUBLE: "imports", IMPORTS: str(names)}) as terminal:
        terminal.until(names.exists)
        assert WELCOME.encode() in terminal.written
        terminal.send(CTRL_Q)
        assert terminal.end() == 0
    loaded = set(names.read_text().split())
    assert {"textual", "chatpaged"} <= loaded
    assert loaded.isdisjoint({"torch", "transformers", "safetensors", "numpy", "huggingface_hub", "jinja2", "requests", "httpx"})


@needs_tmux
@pytest.mark.parametrize("busy", [True, False])
def test_a_terminal_that_goes_away_ends_the_application(home: Path, busy: bool) -> None:  # I13
    with Tmux(home) as terminal:
        demo(terminal)
        terminal.wait(WELCOME, READY)
        terminal.type("Show me a long plan.", "Enter")
        terminal.wait(WRITING)
        if not busy:
            terminal.wait_gone(WRITING)
        process = terminal.process()
    process.wait(SECONDS)  # raises when it is still there
    [chat] = kept(home).values()
    assert len(chat.path()) == 2


# --- terminals of all kinds --------------------------------------------------------------------------------------------


def demo(terminal: Tmux, *arguments: str) -> None:
    terminal.run("run", "--demo", *arguments, module=TROUBLED)
    terminal.until(lambda _: terminal.state("alternate_on") == "1", "the application")


def ask(terminal: Tmux, text: str = "Show me code.") -> None:
    terminal.type(text, "Enter")
    terminal.wait(WRITING)


@needs_tmux
def test_no_color_and_small_windows(home: Path) -> None:  # I19
    with Tmux(home, environment={"NO_COLOR": "1"}) as terminal:
        demo(terminal)
        terminal.wait(WELCOME, READY)
        ask(terminal)
        for columns, rows in ((40, 12), (20, 5), (100, 30)):
            terminal.resize(columns, rows)
            screen = terminal.wait("demo" if columns == 100 else PROMPT_MARK)
            assert len(screen.splitlines()) <= rows
        terminal.wait_gone(WRITING)
        assert COLOR.findall(terminal.screen(escapes=True)) == []
        terminal.press("C-q")
        assert terminal.status() == 0


@needs_tmux
@pytest.mark.parametrize("term", ["screen", "vt100", "xterm-16color"])
def test_poor_terminals(home: Path, term: str) -> None:
    with Tmux(home, term=term) as terminal:
        demo(terminal)
        terminal.wait(WELCOME, READY, "New chat", "Help")
        ask(terminal)
        terminal.press("C-q")
        assert terminal.status() == 0
        terminal.assert_as_before()


@needs_tmux
@pytest.mark.parametrize("size", [(40, 12), (20, 5)])
def test_begun_in_a_small_window(home: Path, size: tuple[int, int]) -> None:  # I19
    with Tmux(home, size=size) as terminal:
        demo(terminal)
        terminal.wait(PROMPT_MARK)
        terminal.type("Hi", "Enter")
        terminal.until(
            lambda _: any(chat.path()[-1].state is NodeState.COMPLETE for chat in kept(home).values() if len(chat.path()) == 2),
            "the answer in the store",
        )
        terminal.press("C-q")
        terminal.resize(100, 30)
        assert terminal.status() == 0


@needs_tmux
def test_resized_while_everybody_prints(home: Path) -> None:  # I5, I19, I20
    with Tmux(home, environment={TROUBLE: "noise"}) as terminal:
        demo(terminal)
        terminal.wait(WELCOME, READY)
        ask(terminal, "Write a lot.")
        for number in range(50):
            terminal.resize(30 + 37 * number % 90, 8 + 11 * number % 30)
            assert "NOISE" not in terminal.screen()
        terminal.resize(100, 30)
        terminal.wait("New chat", "Help")
        screen = terminal.wait_gone(WRITING)
        assert "NOISE" not in screen
        assert not drawn(terminal.history())
        terminal.press("F12")
        terminal.wait("NOISE")
        terminal.press("Escape", "C-q")
        assert terminal.status() == 0
        assert "NOISE" not in terminal.screen()
        terminal.assert_as_before()
    log = (home / "state" / "chatpaged" / "log.txt").read_text()
    assert [text for text in NOISE if text not in log] == []


def test_others_write_to_the_store_meanwhile(home: Path, tmp_path: Path) -> None:  # J3
    model = make_model(tmp_path / "model")
    with opened(home) as terminal:
        terminal.send("Say something long.\r")
        terminal.wait(WRITING)
        command = [sys.executable, "-m", "tests.cli.scripted_model", "ask", "--model", str(model), "--max-tokens", "4"]
        asked = [f"number {number}" for number in range(8)]
        processes = [
            subprocess.Popen([*command, text], cwd=REPOSITORY, env=surroundings(home), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            for text in asked
        ]
        assert [process.wait(DEADLINE) for process in processes] == [0] * len(asked)
        terminal.send(CTRL_Q)
        assert terminal.end() == 0
    chats = kept(home)
    assert set(chats) == {*asked, "Say something long."}
    assert all(chats[text].path()[1].content for text in asked)
