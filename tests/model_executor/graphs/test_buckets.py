"""Which sizes graphs are recorded for, and which of them a step takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged.engine.model_executor.graphs.buckets import MOST_MIXED, choose_bucket, decode_buckets, mixed_buckets


def test_decode_buckets() -> None:
    assert [bucket.num_seqs for bucket in decode_buckets(32)] == [1, 2, 4, 8, 16, 24, 32]
    assert [bucket.num_seqs for bucket in decode_buckets(3)] == [1, 2, 3]
    assert [bucket.num_seqs for bucket in decode_buckets(1)] == [1]
    assert [bucket.num_seqs for bucket in decode_buckets(20)] == [1, 2, 4, 8, 16, 20]
    assert all(bucket.num_tokens == bucket.num_seqs and bucket.only_single for bucket in decode_buckets(256))


@pytest.mark.parametrize(("most", "sizes"), [(50, [50]), (64, [64]), (200, [64, 96, 128, 192, 200]), (256, [64, 96, 128, 192, 256])])
def test_mixed_buckets(most: int, sizes: list[int]) -> None:
    buckets = mixed_buckets(8, most)
    assert [bucket.num_tokens for bucket in buckets] == sizes
    assert all(bucket.num_seqs == 9 and not bucket.only_single for bucket in buckets)
    assert mixed_buckets(8, 10**6)[-1].num_tokens == MOST_MIXED


@given(st.integers(1, 300), st.integers(1, 3000), st.data())
def test_a_step_takes_the_smallest_that_holds_it(max_seqs: int, max_tokens: int, data: st.DataObject) -> None:
    buckets = [*decode_buckets(max_seqs), *mixed_buckets(max_seqs, max_tokens)]
    seqs = data.draw(st.integers(1, max_seqs))
    chosen = choose_bucket(buckets, seqs, seqs, only_single=True)
    assert chosen is not None
    assert chosen.only_single
    assert seqs <= chosen.num_seqs <= max(seqs + 7, 1)
    tokens = data.draw(st.integers(seqs, max(seqs, max_tokens)))
    chosen = choose_bucket(buckets, tokens, seqs, only_single=False)
    if tokens > min(max_tokens, MOST_MIXED):
        assert chosen is None
        return
    assert chosen is not None
    assert not chosen.only_single
    assert chosen.num_seqs > seqs  # room for a sequence that tokens of padding belong to
    assert tokens <= chosen.num_tokens <= max(64, 1.5 * tokens)
    assert not any(bucket.num_tokens in range(tokens, chosen.num_tokens) for bucket in buckets if not bucket.only_single)


def test_too_many_sequences_take_none() -> None:
    buckets = [*decode_buckets(4), *mixed_buckets(4, 100)]
    assert choose_bucket(buckets, 5, 5, only_single=True) is None
    assert choose_bucket(buckets, 6, 5, only_single=False) is None
