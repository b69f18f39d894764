"""A process that is killed while it answers: what was said is in the store, and what came is there but for the last second."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from chatpaged.conversation import NodeState
from chatpaged.session_reply import SAVE_SECONDS
from chatpaged.store import Store
from tests.test_session import GREEDY, World

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
ROOT = Path(__file__).parent.parent
# What both do: each token is told when it is drawn, and again once it has been taken in, with the time and whether all is on disk that was
# given to the store. One write, so that two threads do not mix their lines.
TELLING = """
import os, sys, time

def script(row, sample):
    os.write(1, f"drawn {sample.position + 1}\\n".encode())
    time.sleep(0.01)
    return b"abcdefghij"[sample.position % 10]

def taken(count, on_disk):
    os.write(1, f"taken {count} {time.monotonic()} {int(on_disk)}\\n".encode())
"""
ANSWERER = """
from pathlib import Path
from tests.test_session import GREEDY, World

world = World(Path(sys.argv[1]), script=script)
session = world.session()
os.write(1, b"ready\\n")
reply = session.start(world.llm, session.draft("question"), GREEDY)
count = 0
for output in session.stream(world.llm, reply):
    count += sum(delta.num_tokens for delta in output.deltas)
    taken(count, True)
"""
# The same as the application does it: the engine and the store on threads of their own.
BEHIND = """
import asyncio
from pathlib import Path
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.session import ChatSession
from chatpaged.store_background import BackgroundStore
from tests.test_session import GREEDY, World

async def main():
    path = Path(sys.argv[1])
    store = BackgroundStore(path, on_error=print)
    world = World(path.with_name("not-used.db"), script=script)
    session = ChatSession(world.model, store=store)
    async with AsyncEngine(lambda _: world.llm) as engine:
        facts = await engine.wait_loaded()
        await asyncio.wrap_future(store.opened)
        os.write(1, b"ready\\n")
        draft = session.draft("question")
        reply = session.begin(draft, GREEDY, request_id="r", seed=1, block_size=facts.block_size)
        count = 0
        async for output in engine.generate(draft.prompt, GREEDY, request_id="r"):
            reply.take(output)
            count += sum(delta.num_tokens for delta in output.deltas)
            taken(count, store.flush(0.0))

asyncio.run(main())
"""
_RNG = random.Random(5)
MOMENTS = [_RNG.uniform(0, 2.5) for _ in range(6)]


def due(taken: list[tuple[int, float, bool]]) -> int:
    """How many tokens must be on disk, by the clock of the process that took them, however seldom it was let run.

    With a token that comes `SAVE_SECONDS` after another, the store is given that other one, if it has not been before.
    """
    num = 0
    for (_, before, _), (_, _, on_disk) in pairwise(taken):
        if on_disk:
            num = max([num, *(count for count, when, _ in taken if when <= before - SAVE_SECONDS)])
    return num


@pytest.mark.parametrize(
    ("program", "moment"), [*((ANSWERER, moment) for moment in MOMENTS), *((BEHIND, moment) for moment in MOMENTS[:4])]
)
def test_a_killed_answer_is_kept_and_goes_on(tmp_path: Path, program: str, moment: float) -> None:  # J2
    path = tmp_path / "conversations.db"
    process = subprocess.Popen([sys.executable, "-c", TELLING + program, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    lines = [line.split() for line in process.stdout.read().split(b"\n")[:-1]]
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    drawn = max((int(line[1]) for line in lines if line[0] == b"drawn"), default=0)
    taken = [(int(line[1]), float(line[2]), line[3] == b"1") for line in lines if line[0] == b"taken"]

    with Store(path) as store:
        sessions = store.sessions()
        assert len(sessions) <= 1
        if not sessions:  # killed before the question was kept
            assert not any(on_disk for _, _, on_disk in taken)
            return
        conversation = store.load(sessions[0].id)
    nodes = conversation.path()
    assert nodes[0].content == "question"
    if len(nodes) == 1:
        assert due(taken) == 0
        return
    ids = nodes[1].token_ids
    assert nodes[1].state is NodeState.INTERRUPTED
    assert ids is not None
    assert max(due(taken), 1) <= len(ids) <= drawn
    assert nodes[1].content == bytes(ids).decode()

    world = World(path)
    session = world.session(conversation)
    answer = session.answer(world.llm, session.draft_continue(), GREEDY).nodes[0]
    assert answer.content == nodes[1].content + "abcdefghij"
    assert world.stored(session).path() == (nodes[0], answer)
