from __future__ import annotations

from dataclasses import replace

import pytest

from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_pool import BlockPool
from chatpaged.engine.config import SchedulerConfig
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler import Scheduler
from chatpaged.engine.scheduler_output import LogitChanges, SampleRow, SchedulerOutput
from chatpaged.engine.sequence import SequenceGroup, SequenceStatus
from chatpaged.engine.token_budget import FIRST_PREFILL_TOKENS
from chatpaged.errors import PromptTooLongError
from tests.engine.shadow_kv import Harness


def lengths(output: SchedulerOutput) -> list[int]:
    return [len(row.token_ids) for row in output.rows]


def test_a_prompt_is_read_in_chunks_and_then_decoded() -> None:
    harness = Harness(max_num_batched_tokens=4)
    harness.add(range(10), max_tokens=3)
    outputs = [harness.step() for _ in range(5)]
    assert [lengths(output) for output in outputs] == [[4], [4], [2], [1], [1]]
    assert [bool(output.rows[0].samples) for output in outputs] == [False, False, True, True, True]
    assert not harness.scheduler.has_unfinished
    assert not harness.step().rows


def test_prompts_and_decodes_share_a_step_decodes_first() -> None:
    harness = Harness(max_num_batched_tokens=6)
    harness.add([1, 2], max_tokens=6)
    harness.step()
    harness.add([3] * 12, max_tokens=1)
    assert lengths(harness.step()) == [1, 5]
    # The second is older in the running queue than nobody, yet the decode still comes first.
    assert lengths(harness.step()) == [1, 5]
    assert lengths(harness.step()) == [1, 2]


def test_running_sequences_come_before_waiting_ones() -> None:
    harness = Harness(max_num_batched_tokens=4)
    harness.add([1] * 6)
    harness.add([2] * 2)
    assert lengths(harness.step()) == [4]
    assert lengths(harness.step()) == [2, 2]


def test_order_is_priority_then_arrival() -> None:
    harness = Harness(max_num_seqs=1)
    low, first, second = harness.add([1], priority=1), harness.add([2]), harness.add([3])
    harness.run()
    assert [sequence.group for sequence in harness.finished] == [first, second, low]


def test_priority_can_change_while_waiting() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add([0], max_tokens=2)
    harness.step()
    first, second = harness.add([1], priority=2), harness.add([2], priority=2)
    harness.scheduler.set_priority(second.request_id, 1, interactive=True)
    harness.scheduler.set_priority("unknown", 5, interactive=True)
    harness.run()
    assert [sequence.group for sequence in harness.finished[1:]] == [second, first]
    assert second.interactive


def test_no_more_than_max_num_seqs_run() -> None:
    harness = Harness(max_num_seqs=2)
    for token in range(4):
        harness.add([token], max_tokens=3)
    assert len(harness.step().rows) == 2
    harness.run()
    assert len(harness.finished) == 4


# --- samples from one prompt (cases C12, C13) ------------------------------------------------------------------------


def test_samples_are_forked_from_one_prefill() -> None:
    harness = Harness()
    group = harness.add(range(6), n=3, max_tokens=3)
    assert lengths(harness.step()) == [6]
    assert len(group.sequences) == 3
    assert lengths(harness.step()) == [1, 1, 1]
    harness.run()
    assert len(harness.finished) == 3
    assert group.counters.prefill_tokens == 6
    assert group.counters.cow == 2  # the last to write keeps the block
    assert group.is_finished


@pytest.mark.parametrize(("prompt_tokens", "copies"), [(31, 1), (32, 0)])
def test_only_a_partial_last_block_is_copied(prompt_tokens: int, copies: int) -> None:
    harness = Harness(num_blocks=16, block_size=16, max_num_batched_tokens=64)
    group = harness.add(range(prompt_tokens), n=2, max_tokens=3)
    harness.run()
    assert group.counters.cow == copies


def test_samples_without_a_seat_wait_and_find_the_prompt_in_the_cache() -> None:
    harness = Harness(max_num_seqs=2)
    group = harness.add(range(9), n=4, max_tokens=2)
    harness.step()
    assert [sequence.status for sequence in group.sequences] == [SequenceStatus.RUNNING] * 2 + [SequenceStatus.WAITING] * 2
    harness.run()
    assert len(harness.finished) == 4
    assert group.counters.prefill_tokens == 9
    assert harness.scheduler.counters.recovered_tokens == 16


def sample_rows_of(params: SamplingParams, end_token_ids: tuple[int, ...] = (4,)) -> list[SampleRow]:
    """What the first two tokens of a request are drawn with; the first one is 7."""
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=4, max_model_len=64)
    scheduler = Scheduler(config, BlockManager(BlockPool(20), 4))
    scheduler.add(SequenceGroup("r", (1, 2), params, seed=3, end_token_ids=end_token_ids))
    rows: list[SampleRow] = []
    for _ in range(2):
        output = scheduler.schedule()
        rows += output.rows[0].samples
        scheduler.update(output, [(7,)])
    return rows


def test_a_group_waits_for_seats_for_all_its_samples() -> None:
    harness = Harness(max_num_seqs=3)
    harness.add([1], max_tokens=3)
    harness.step()
    harness.add([2], n=3, max_tokens=1)
    assert len(harness.step().rows) == 1
    harness.run()
    assert len(harness.finished) == 4


def test_samples_draw_from_generators_of_their_own() -> None:
    params = SamplingParams(temperature=1, n=2)
    first, second = (SequenceGroup("r", (1,), params, seed=seed) for seed in (5, 6))
    assert first.generators[1].random() == second.generators[0].random()
    assert first.generators[0].random() != second.generators[1].random()


def test_uniform_numbers_are_drawn_only_for_sampling_steps() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=4, max_model_len=64)
    scheduler = Scheduler(config, BlockManager(BlockPool(20), 4))
    scheduler.add(SequenceGroup("r", tuple(range(6)), SamplingParams(temperature=0.5, top_k=-1, n=2, seed=3), seed=3))
    scheduler.update(scheduler.schedule(), [()])
    samples = scheduler.schedule().rows[0].samples
    expected = SequenceGroup("same", (1,), SamplingParams(n=2), seed=3).generators
    assert [sample.uniform for sample in samples] == [generator.random() for generator in expected]
    assert [(sample.index, sample.position, sample.top_k) for sample in samples] == [(0, 0, 0), (1, 0, 0)]


def test_most_requests_change_no_logits() -> None:
    assert sample_rows_of(SamplingParams())[0].changes is None
    assert sample_rows_of(SamplingParams(min_tokens=1), end_token_ids=())[0].changes is None


def test_penalties_get_the_tokens_they_look_at() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=1.2, presence_penalty=0.5, logit_bias={3: 1.0}, min_p=0.1, logprobs=2)
    first, second = sample_rows_of(params)
    assert first.changes == LogitChanges(repetition_penalty=1.2, presence_penalty=0.5, prompt_ids=(1, 2), output_ids=(), bias=((3, 1.0),))
    assert second.changes == replace(first.changes, output_ids=(7,))
    assert (first.min_p, first.logprobs) == (0.1, 2)
    answer_only = sample_rows_of(SamplingParams(frequency_penalty=0.5))[1]
    assert answer_only.changes == LogitChanges(frequency_penalty=0.5, output_ids=(7,))


def test_end_tokens_are_banned_until_the_least_length() -> None:
    first, second = sample_rows_of(SamplingParams(min_tokens=1), end_token_ids=(4, 9))
    assert first.changes == LogitChanges(banned=(4, 9))
    assert second.changes is None


# --- prompts that begin alike ------------------------------------------------------------------------------------------


def test_h9_rows_that_start_together_read_their_common_beginning_once() -> None:
    harness = Harness(num_blocks=100, max_num_seqs=8, max_num_batched_tokens=200)
    common = list(range(20))
    groups = [harness.add([*common, 100 + i], max_tokens=3) for i in range(8)]
    first = harness.step()
    assert lengths(first) == [21]
    second = harness.step()
    assert sorted(lengths(second)) == [1] * 8  # one decodes, seven read their last token
    harness.run()
    counters = harness.scheduler.counters
    assert counters.prefill_tokens == 21 + 7
    assert counters.prefix_waits == 7
    assert [group.counters.cached_tokens for group in groups] == [0] + [20] * 7


def test_others_pass_whoever_waits_for_a_beginning() -> None:
    harness = Harness(num_blocks=100, max_num_batched_tokens=12)
    first = harness.add(range(8), max_tokens=1)
    alike, other = harness.add([*range(8), 99], max_tokens=1), harness.add([7] * 3, max_tokens=1)
    assert [row.seq_id for row in harness.step().rows] == [group.sequences[0].seq_id for group in (first, other)]
    harness.run()
    assert alike.counters.cached_tokens == 8
    assert harness.scheduler.counters.prefill_tokens == 8 + 1 + 3


def test_nobody_waits_for_a_less_urgent_reader() -> None:
    harness = Harness(num_blocks=100, max_num_batched_tokens=8)
    harness.add(range(40), max_tokens=1, priority=5)
    harness.step()
    urgent = harness.add([*range(40), 99], max_tokens=1, priority=0)
    output = harness.step()
    assert [row.seq_id for row in output.rows] == [urgent.sequences[0].seq_id]
    harness.run()
    assert harness.scheduler.counters.prefix_waits == 0


def test_nobody_waits_without_a_prefix_cache() -> None:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=100, max_model_len=64)
    scheduler = Scheduler(config, BlockManager(BlockPool(50), 4, enable_prefix_caching=False))
    for name in "ab":
        scheduler.add(SequenceGroup(name, tuple(range(20)), SamplingParams(), seed=0))
    assert lengths(scheduler.schedule()) == [20, 20]


def test_whoever_waits_goes_on_when_the_reader_is_gone() -> None:
    harness = Harness(num_blocks=100, max_num_batched_tokens=8)
    first = harness.add(range(40), max_tokens=1)
    alike = harness.add([*range(40), 99], max_tokens=1)
    harness.step()
    harness.scheduler.abort(first.request_id)
    assert lengths(harness.step()) == [8]
    harness.run()
    assert alike.counters.cached_tokens == 8


# --- memory ----------------------------------------------------------------------------------------------------------


def test_a_sequence_without_a_block_gets_one_from_the_last_to_arrive() -> None:
    harness = Harness(num_blocks=5)
    first, second = harness.add([1] * 7, max_tokens=6), harness.add([2] * 7, max_tokens=6)
    harness.run()
    assert (first.counters.preemptions, second.counters.preemptions) == (0, 1)
    assert harness.scheduler.counters.preemptions == 1
    assert second.counters.recomputed_tokens + harness.scheduler.counters.recovered_tokens >= 7


def test_lower_priority_gives_way_before_fewer_tokens() -> None:
    harness = Harness(num_blocks=6, max_num_batched_tokens=32)
    keeps, gives = harness.add([1] * 3, max_tokens=12), harness.add([2] * 15, max_tokens=4, priority=1)
    harness.run()
    assert (keeps.counters.preemptions, gives.counters.preemptions > 0) == (0, True)


def test_among_equals_the_fewest_tokens_to_redo_give_way() -> None:
    harness = Harness(num_blocks=8, max_num_seqs=3, max_num_batched_tokens=40)
    harness.add([1] * 7, max_tokens=12)
    few, many = harness.add([2] * 2, max_tokens=12), harness.add([3] * 8, max_tokens=8)
    harness.step()
    assert len(harness.scheduler.running) == 3
    harness.run()
    assert few.counters.preemptions > 0
    assert many.counters.preemptions == 0


def test_an_urgent_request_takes_seat_and_blocks_from_background_work() -> None:
    harness = Harness(num_blocks=6, max_num_seqs=2)
    background = [harness.add([token] * 5, max_tokens=8, priority=9) for token in (1, 2)]
    harness.step()
    urgent = harness.add([3] * 9, max_tokens=2)
    output = harness.step()
    assert [len(row.token_ids) for row in output.rows if len(row.token_ids) > 1] == [9]
    harness.run()
    assert harness.finished[0].group is urgent
    assert sum(group.counters.preemptions for group in background) >= 1
    assert len(harness.finished) == 3


def test_an_urgent_prompt_is_read_before_the_rest_of_a_background_prompt() -> None:
    harness = Harness(num_blocks=40, max_num_batched_tokens=8, max_model_len=200)
    harness.add([1] * 100, priority=1)
    harness.step()
    harness.add([2] * 3, interactive=True)
    output = harness.step()
    assert [(len(row.token_ids), bool(row.samples)) for row in output.rows] == [(3, True), (5, False)]
    harness.run()


def test_equals_do_not_push_each_other_out() -> None:
    harness = Harness(num_blocks=4)
    first = harness.add([1] * 8, max_tokens=4)
    harness.step()
    harness.add([2] * 12, max_tokens=1)
    harness.run()
    assert first.counters.preemptions == 0


def test_a_victim_that_was_scheduled_already_is_taken_out_of_the_step() -> None:
    # The decode is handled first, and takes the last block; the urgent prompt then needs one.
    harness = Harness(num_blocks=5, block_size=4, max_num_batched_tokens=7)
    low = harness.add([1] * 8, max_tokens=8, priority=1)
    harness.step()
    harness.step()
    urgent = harness.add([2] * 12, max_tokens=3)
    harness.run()
    assert low.counters.preemptions >= 1
    assert harness.finished[0].group is urgent


def test_a_sequence_may_give_way_itself() -> None:
    harness = Harness(num_blocks=5, max_num_seqs=3)
    first = harness.add([1] * 6, max_tokens=10)
    second = harness.add([2] * 6, max_tokens=10)
    harness.run()
    assert first.counters.preemptions == 0
    assert second.counters.preemptions > 0


def test_a_partly_read_prompt_keeps_its_promise_of_blocks() -> None:
    harness = Harness(num_blocks=6, max_num_batched_tokens=4, max_num_seqs=3)
    harness.add([1] * 20, max_tokens=2)
    harness.step()
    harness.add([2] * 8, max_tokens=2)
    assert len(harness.step().rows) == 1
    harness.run()
    assert harness.scheduler.counters.preemptions == 0


def test_a_pool_that_only_one_sequence_fits_serves_all_one_after_another() -> None:
    harness = Harness(num_blocks=3)
    for token in range(4):
        harness.add([token] * 6, max_tokens=6)
    harness.run()
    assert len(harness.finished) == 4


def test_an_answer_may_use_the_pool_to_the_last_slot() -> None:
    harness = Harness(num_blocks=3)
    group = harness.add([1] * 5, max_tokens=100)
    harness.run()
    assert harness.finished[0].num_tokens == 13  # 12 slots, and a last token that is never computed
    assert group.counters.preemptions == 0


def test_impossible_state_is_an_error_of_ours() -> None:
    harness = Harness(num_blocks=2)
    harness.add([1] * 3, max_tokens=2)
    harness.step()
    harness.scheduler.running[0].token_ids += [0] * 20
    with pytest.raises(RuntimeError, match="although it has it for itself"):
        harness.scheduler.schedule()


def test_admission_without_blocks_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    harness.add([1, 2])
    monkeypatch.setattr(BlockManager, "append_slots", lambda *_: False)
    with pytest.raises(RuntimeError, match="admitted without blocks"):
        harness.scheduler.schedule()


# --- refusals (cases C1, D1) ----------------------------------------------------------------------------------------


def test_a_prompt_that_can_never_fit_the_pool_is_refused_with_numbers() -> None:
    harness = Harness(num_blocks=8, block_size=16, max_model_len=8192)
    with pytest.raises(PromptTooLongError) as error:
        harness.add(range(1030))
    assert "needs 65 blocks (1030 tokens), pool has 8 (128); use --kv-blocks ≥ 66 or a shorter prompt" in str(error.value)
    assert harness.scheduler.counters.refusals == 1
    assert not harness.scheduler.has_unfinished


@pytest.mark.parametrize(("num_tokens", "message"), [(63, None), (64, "leaves no room"), (65, "65 tokens > 64")])
def test_a_prompt_must_leave_room_in_the_context(num_tokens: int, message: str | None) -> None:
    harness = Harness(num_blocks=40, max_num_batched_tokens=64)
    if message is None:
        harness.add([1] * num_tokens)
        harness.run()
        assert harness.finished[0].num_tokens == 64
    else:
        with pytest.raises(PromptTooLongError, match=message):
            harness.add([1] * num_tokens)


def test_others_go_on_when_one_is_refused() -> None:
    harness = Harness(num_blocks=3)
    harness.add([1] * 5)
    with pytest.raises(PromptTooLongError):
        harness.add([1] * 20)
    harness.add([2] * 5)
    harness.run()
    assert len(harness.finished) == 2


# --- abort -----------------------------------------------------------------------------------------------------------


def test_abort_while_waiting_reading_decoding_and_preempted() -> None:
    harness = Harness(num_blocks=6, max_num_batched_tokens=8, max_num_seqs=3)
    waiting, reading = harness.add([1] * 4, priority=5), harness.add([2] * 20)
    harness.step()
    for group in (waiting, reading):
        assert len(harness.scheduler.abort(group.request_id)) == 1
        harness.scheduler.check_invariants()
    pool = harness.scheduler.blocks.pool
    assert pool.num_free == pool.num_usable
    assert harness.scheduler.abort("r0") == []


def test_abort_of_samples_of_which_one_has_finished() -> None:
    harness = Harness(max_num_seqs=3)
    group = harness.add(range(5), n=3, max_tokens=9)
    harness.step()
    harness.scheduler.finish(group.sequences[1])
    assert [sequence.index for sequence in harness.scheduler.abort(group.request_id)] == [0, 2]
    harness.scheduler.check_invariants()
    assert not harness.scheduler.has_unfinished


# --- sharing ---------------------------------------------------------------------------------------------------------


def test_a_full_hit_still_computes_a_token() -> None:
    harness = Harness()
    prompt = [1, 2, 3, 4, 1, 2, 3, 4]
    first = harness.add(prompt)
    harness.run()
    second = harness.add(prompt)
    assert lengths(harness.step()) == [4]
    harness.run()
    assert (first.counters.cached_tokens, second.counters.cached_tokens) == (0, 4)
    assert (second.counters.prefill_tokens, harness.scheduler.counters.prefix_hit_tokens) == (4, 4)
    assert harness.scheduler.counters.prefix_query_tokens == 16


def test_identical_prompts_in_one_batch_share_what_the_first_has_computed() -> None:
    harness = Harness(num_blocks=30, max_num_seqs=4, max_num_batched_tokens=8)
    groups = [harness.add([1] * 13, max_tokens=2) for _ in range(4)]
    harness.run()
    # The others wait until the first has read all that they have in common.
    assert [group.counters.cached_tokens for group in groups] == [0, 12, 12, 12]
    assert [group.counters.prefill_tokens for group in groups] == [13, 1, 1, 1]


def test_what_decoding_filled_is_found_by_the_next_turn() -> None:
    harness = Harness(num_blocks=20)
    harness.add([1] * 6, max_tokens=8)
    harness.run()
    history = harness.finished[0].token_ids
    second = harness.add([*history, 3, 3])
    harness.run()
    assert second.counters.cached_tokens == 12  # 13 tokens were computed: the last one never is


def test_counters_tell_reading_decoding_and_reading_again_apart() -> None:
    harness = Harness(num_blocks=5)
    harness.add([1] * 7, max_tokens=6)
    harness.add([2] * 7, max_tokens=6)
    harness.run()
    counters = harness.scheduler.counters
    assert counters.prefill_tokens == 14
    assert counters.decode_tokens == 10
    assert counters.recomputed_tokens + counters.recovered_tokens > 0


# --- who reads along (case C6) ---------------------------------------------------------------------------------------


def test_reading_a_prompt_is_slowed_down_only_while_somebody_reads_along() -> None:
    harness = Harness(num_blocks=100, max_num_batched_tokens=64, max_model_len=400)
    stream = harness.add([1], max_tokens=30, interactive=True)
    harness.step()
    harness.add([2] * 200, max_tokens=1)
    assert lengths(harness.step()) == [1, FIRST_PREFILL_TOKENS]
    harness.scheduler.abort(stream.request_id)
    assert lengths(harness.step()) == [64]


# --- the audit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("self.running[0].status = SequenceStatus.WAITING", "not running"),
        ("self.waiting[0].status = SequenceStatus.RUNNING", "not waiting"),
        ("self.waiting.pop()", "list of sequences disagree"),
        ("self.blocks.release(self.running[0])", "running sequences have block tables"),
    ],
)
def test_the_audit_finds_damage(damage: str, message: str) -> None:
    harness = Harness(max_num_seqs=1)
    harness.add([1])
    harness.add([2])
    harness.step()
    exec(damage, {"self": harness.scheduler, "SequenceStatus": SequenceStatus})
    with pytest.raises(RuntimeError, match=message):
        harness.scheduler.check_invariants()
