"""A process that is killed while it answers: what was said is in the store, and what came is there but for the last second."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chatpaged.conversation import NodeState
from chatpaged.store import Store
from tests.test_session import GREEDY, World

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
ROOT = Path(__file__).parent.parent
ANSWERER = """
import sys, time
from pathlib import Path
from tests.test_session import GREEDY, World

def script(row, sample):
    time.sleep(0.01)
    return b"abcdefghij"[sample.position % 10]

world = World(Path(sys.argv[1]), script=script)
session = world.session()
print("ready", flush=True)
reply = session.start(world.llm, session.draft("question"), GREEDY)
count = 0
for output in session.stream(world.llm, reply):
    count += sum(delta.num_tokens for delta in output.deltas)
    print(count, time.time(), flush=True)
"""
# The same as the application does it: the engine and the store on threads of their own.
BEHIND = """
import asyncio, sys, time
from pathlib import Path
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.session import ChatSession
from chatpaged.store_background import BackgroundStore
from tests.test_session import GREEDY, World

def script(row, sample):
    time.sleep(0.01)
    return b"abcdefghij"[sample.position % 10]

async def main():
    path = Path(sys.argv[1])
    store = BackgroundStore(path, on_error=print)
    world = World(path.with_name("not-used.db"), script=script)
    session = ChatSession(world.model, store=store)
    async with AsyncEngine(lambda _: world.llm) as engine:
        facts = await engine.wait_loaded()
        await asyncio.wrap_future(store.opened)
        print("ready", flush=True)
        draft = session.draft("question")
        reply = session.begin(draft, GREEDY, request_id="r", seed=1, block_size=facts.block_size)
        count = 0
        async for output in engine.generate(draft.prompt, GREEDY, request_id="r"):
            reply.take(output)
            count += sum(delta.num_tokens for delta in output.deltas)
            print(count, time.time(), flush=True)

asyncio.run(main())
"""
MOMENTS = [random.Random(5).uniform(0, 2.5) for _ in range(6)]


@pytest.mark.parametrize(
    ("program", "moment"), [*((ANSWERER, moment) for moment in MOMENTS), *((BEHIND, moment) for moment in MOMENTS[:4])]
)
def test_a_killed_answer_is_kept_and_goes_on(tmp_path: Path, program: str, moment: float) -> None:  # J2
    path = tmp_path / "conversations.db"
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    killed = time.time()
    lines = process.stdout.read().split(b"\n")[:-1]
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    told = [(int(count), float(when)) for count, when in (line.split() for line in lines)]
    due = max((count for count, when in told if when < killed - 1), default=0)

    with Store(path) as store:
        sessions = store.sessions()
        if not told:
            assert len(sessions) <= 1  # killed before or after the question was kept
            return
        conversation = store.load(sessions[0].id)
    nodes = conversation.path()
    assert nodes[0].content == "question"
    if len(nodes) == 1:
        assert due == 0
        return
    ids = nodes[1].token_ids
    assert nodes[1].state is NodeState.INTERRUPTED
    assert ids is not None
    assert due <= len(ids) <= told[-1][0] + 1
    assert nodes[1].content == bytes(ids).decode()

    world = World(path)
    session = world.session(conversation)
    answer = session.answer(world.llm, session.draft_continue(), GREEDY).nodes[0]
    assert answer.content == nodes[1].content + "abcdefghij"
    assert world.stored(session).path() == (nodes[0], answer)
