"""An engine with all its tiers, from its options to its end, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chatpaged import paths
from chatpaged.engine import engine_tiers
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.block_pool import chain
from chatpaged.engine.block_tiers import NoTier
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind, SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.sequence import Keep
from chatpaged.engine.tier_policy import TierKind
from chatpaged.errors import InvalidRequestError
from tests.byte_tokenizer import byte_tokenizer

FIVE = SamplingParams(max_tokens=5, ignore_eos=True)
TEXT = "abcdefghijklmnopqrstuvwxyz" * 2  # 52 tokens; three full blocks


def engine_of(
    directory: Path | None, *, num_blocks: int = 33, num_host_blocks: int = 0, executor: ScriptedExecutor | None = None
) -> LLMEngine:
    executor = executor or ScriptedExecutor(list(b"Hello"), num_blocks=num_blocks, num_host_blocks=num_host_blocks, vocab_size=258)
    files: dict[str, Any] = {} if directory is None else {"disk_cache": 10**7, "disk_cache_directory": directory}
    return LLMEngine(executor, byte_tokenizer(), EngineConfig(**files))


def files_in(directory: Path) -> int:
    return len(list(directory.rglob("*.kv")))


def test_what_a_chat_computes_is_written_at_the_end_and_found_by_the_next(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        assert engine.generate(TEXT, FIVE).metrics.cached_tokens == 0
        assert files_in(tmp_path) == 0
    assert files_in(tmp_path) == 3
    with engine_of(tmp_path) as engine:
        metrics = engine.generate(TEXT, FIVE).metrics
        assert (metrics.cached_tokens, metrics.swap_in) == (48, 3)
        counters = engine.snapshot().counters
    assert (counters["swap_in"], counters["disk_reads"]) == (3, 3)


def test_what_nobody_wants_again_is_not_written(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        for text, keep in (
            ("once " * 10, Keep.SHARED),
            ("never " * 10, Keep.MEMORY),
            ("twice " * 10, Keep.SHARED),
            ("twice " * 10, Keep.SHARED),
        ):
            engine.add_request(text, FIVE, keep=keep)
            while engine.has_unfinished:
                engine.step()
        engine.add_request(TEXT, FIVE, salt=b"private")
        while engine.has_unfinished:
            engine.step()
    assert files_in(tmp_path) == 3  # the blocks that were found a second time


def test_a_batch_that_gave_way_is_written(tmp_path: Path) -> None:
    with engine_of(tmp_path, num_blocks=9) as engine:
        for letter in "abc":
            engine.add_request(letter * 40, SamplingParams(max_tokens=30, ignore_eos=True), keep=Keep.SHARED)
        while engine.has_unfinished:
            engine.step()
        assert engine.snapshot().counters["preemptions"] > 0
        assert engine.snapshot().counters["disk_pending"] + engine.snapshot().counters["disk_writes"] > 0


def test_host_memory_takes_what_makes_room() -> None:
    with engine_of(None, num_blocks=9, num_host_blocks=16) as engine:
        for text in (TEXT, TEXT.upper(), TEXT.title(), TEXT):
            metrics = engine.generate(text, FIVE).metrics
        assert metrics.swap_in > 0
        snapshot = engine.snapshot()
        assert snapshot.tier_blocks > 0
        assert snapshot.counters["swap_out"] > 0


def test_a_chat_in_view_comes_up_while_nobody_asks(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        engine.generate(TEXT, FIVE)
    with engine_of(tmp_path) as engine:
        ids = engine.render(TEXT).token_ids
        engine.look_at(ids)
        while engine.work_ahead():
            pass
        assert engine.snapshot().counters["swap_in"] == 3
        metrics = engine.generate(TEXT, FIVE).metrics
        assert (metrics.cached_tokens, metrics.swap_in) == (48, 0)
        engine.look_at(None)


def test_pins(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        result = engine.pin("chat", engine.render(TEXT).token_ids)
        assert (result.wanted, result.pinned, result.limit) == (3, 3, 8)
        engine.generate(TEXT, FIVE)
        assert engine.snapshot().pinned_blocks == 3
        assert engine.unpin("chat")
        assert engine.snapshot().pinned_blocks == 0


def test_pins_that_gave_way_come_up_again(tmp_path: Path) -> None:
    with engine_of(tmp_path, num_blocks=13, num_host_blocks=32) as engine:
        ids = engine.render(TEXT).token_ids
        engine.generate(TEXT, FIVE)
        assert engine.pin("chat", ids).pinned == 3
        engine.generate("z" * 180, FIVE)  # all twelve blocks
        assert engine.snapshot().counters["pin_yields"] == 3
        while engine.work_ahead():
            pass
        assert engine.snapshot().pinned_blocks == 3
        assert len(engine.cached_blocks(ids)) == 3
        engine.check_invariants()


def test_a_limit_below_a_block_is_refused(tmp_path: Path) -> None:
    config = EngineConfig(disk_cache=10, disk_cache_directory=tmp_path)
    with pytest.raises(InvalidRequestError, match=r"holds no block.*--disk-cache"):
        LLMEngine(ScriptedExecutor(list(b"Hello"), vocab_size=258), byte_tokenizer(), config)


def test_without_a_prefix_cache_there_are_no_files(tmp_path: Path) -> None:
    executor = ScriptedExecutor(list(b"Hello"), vocab_size=258)
    config = EngineConfig(disk_cache=10**7, disk_cache_directory=tmp_path, enable_prefix_caching=False)
    with LLMEngine(executor, byte_tokenizer(), config) as engine:
        engine.generate(TEXT, FIVE)
        engine.look_at(engine.render(TEXT).token_ids)
        assert not engine.work_ahead()
    assert files_in(tmp_path) == 0


def test_a_directory_that_cannot_be_made_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with engine_of(tmp_path / "file") as engine:
        assert engine.generate(TEXT, FIVE).completions[0].num_tokens == 5
        assert not engine.can_save
    assert "nothing is kept in the cache on disk" in caplog.text


def test_the_directory_of_the_user_is_taken_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "blocks_dir", lambda: tmp_path)
    with LLMEngine(ScriptedExecutor(list(b"Hello"), vocab_size=258), byte_tokenizer(), EngineConfig(disk_cache=10**7)) as engine:
        engine.generate(TEXT, FIVE)
    assert files_in(tmp_path) == 3


class Broken(ScriptedExecutor):
    """Breaks off in a step."""

    def execute(self, output: SchedulerOutput) -> StepResult:
        if self.outputs:
            raise RuntimeError("cosmic rays")
        return super().execute(output)


def test_after_a_step_that_broke_off_nothing_is_written(tmp_path: Path) -> None:
    executor = Broken(list(b"Hello"), vocab_size=258)
    with pytest.raises(RuntimeError), engine_of(tmp_path, executor=executor) as engine:
        engine.generate(TEXT, FIVE)
    assert files_in(tmp_path) == 0


class BrokenMoves(ScriptedExecutor):
    """Breaks off in a step that only moves blocks."""

    def move(self, operations: Iterable[BlockOperation]) -> float:
        moved = list(operations)
        if any(operation.kind is BlockOperationKind.LOAD for operation in moved):
            raise RuntimeError("cosmic rays")
        return super().move(moved)


def test_after_moves_that_broke_off_nothing_is_written(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        engine.generate(TEXT, FIVE)
    executor = BrokenMoves(list(b"Hello"), vocab_size=258)
    with engine_of(tmp_path, executor=executor) as engine:
        engine.generate(TEXT.upper(), FIVE)
        engine.look_at(engine.render(TEXT).token_ids)
        with pytest.raises(RuntimeError):
            engine.work_ahead()
    assert files_in(tmp_path) == 3


def test_the_end_waits_for_a_slow_disk_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tiers, "MAX_PENDING_BYTES", 2)
    with engine_of(tmp_path) as engine:
        engine.generate(TEXT * 4, FIVE)
    assert files_in(tmp_path) == 13
    engine = engine_of(tmp_path)
    engine.generate(TEXT.upper() * 4, FIVE)
    engine.close(0.0)
    assert files_in(tmp_path) < 26


def test_a_sequence_loads_over_several_steps_beside_a_stream(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        engine.generate(TEXT * 4, FIVE)
    with engine_of(tmp_path) as engine:
        engine.scheduler.policy.observe_moves(TierKind.HOST, 1, 1000.0)  # one block a step
        engine.add_request("stream", SamplingParams(max_tokens=40, ignore_eos=True), interactive=True)
        engine.step()
        returning = engine.add_request(TEXT * 4, FIVE, interactive=True)
        sizes = []
        while engine.scheduler.group(returning) is not None:
            before = engine.snapshot().counters["swap_in"]
            engine.step()
            engine.check_invariants()
            sizes.append(engine.snapshot().counters["swap_in"] - before)
        assert (max(sizes), sum(sizes)) == (1, 12)


def test_a_step_may_consist_of_moves_alone(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        engine.generate(TEXT * 4, FIVE)
    with engine_of(tmp_path) as engine:
        engine.scheduler.policy.observe_moves(TierKind.HOST, 1, 0.2)  # two blocks a step
        engine.add_request(TEXT * 4, FIVE, interactive=True)
        assert engine.step() == []
        assert engine.snapshot().counters["swap_in"] == 2
        assert engine.last_step is None
        while engine.has_unfinished:
            engine.step()
        assert engine.snapshot().counters["swap_in"] == 12


def test_while_nobody_asks_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tiers, "MAX_PENDING_BYTES", 2)

    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of(tmp_path)) as engine:
            async for _ in engine.generate(TEXT * 4, FIVE):
                pass
            while files_in(tmp_path) < 13:  # noqa: ASYNC110 - files make no event
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("option", ["swap_space", "disk_cache"])
def test_sizes_are_not_negative(option: str) -> None:
    with pytest.raises(InvalidRequestError, match=option):
        EngineConfig(**{option: -1})  # type: ignore[arg-type]


def test_no_tier() -> None:
    tier, prefix = NoTier(), chain(b"", (1,))
    assert tier.save(prefix, 1) is None
    assert tier.promote(prefix, 1) is None
    tier.touch([prefix])
