from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.detokenizer import Detokenizer
from chatpaged.engine.output_processor import OutputProcessor, TokenOutcome
from chatpaged.engine.outputs import Completion, FinishReason, TokenLogprobs
from chatpaged.engine.reasoning import ReasoningMarkers
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.sequence import Sequence, SequenceGroup
from chatpaged.engine.stop_texts import StopTexts
from chatpaged.engine.tokenizer import Tokenizer
from tests.byte_tokenizer import END, START, byte_tokenizer
from tests.small_tokenizers import byte_fallback

BYTES = byte_tokenizer()
_ids = count()


class Replay:
    """Feeds ids to a processor as if a model had drawn them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        stops: frozenset[int] = frozenset({END}),
        longest: int = 1000,
        markers: ReasoningMarkers | None = None,
    ):
        self.processor = OutputProcessor(tokenizer, stops, longest, markers)
        group = SequenceGroup("r", (1, 2, 3), params, seed=0)
        self.sequence = Sequence(next(_ids), group, 0, [1, 2, 3])
        group.sequences.append(self.sequence)
        self.shown: list[str] = []
        self.thoughts: list[str] = []
        self.repeats: list[int] = []
        self.reports: Iterator[TokenLogprobs | None] = repeat(None)

    def feed(self, *token_ids: int) -> Completion | None:
        for token_id in token_ids:
            self.sequence.token_ids.append(token_id)
            outcome = self.processor.append(self.sequence, next(self.reports))
            self.shown.append(outcome.text)
            self.thoughts.append(outcome.reasoning)
            self.repeats.append(outcome.repeats)
            if outcome.completion is not None:
                return outcome.completion
        return None

    def cancel(self) -> TokenOutcome:
        return self.processor.cancel(self.sequence)


def added(*texts: str, special: bool = False) -> Tokenizer:
    """The byte tokenizer with more tokens, from 258 on."""
    inner = tokenizers.Tokenizer.from_str(BYTES._tokenizer.to_str())
    inner.add_tokens([tokenizers.AddedToken(text, special=special, normalized=False) for text in texts])
    return Tokenizer(inner, BYTES.settings)


def ids(text: str) -> list[int]:
    return list(text.encode())


def complete(text: str, **params: object) -> tuple[Replay, Completion]:
    replay = Replay(BYTES, SamplingParams(**params))  # type: ignore[arg-type]
    completion = replay.feed(*ids(text), END)
    assert completion is not None
    assert "".join(replay.shown) == completion.text
    return replay, completion


# --- characters (cases E1, E2) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["😀", "🇫🇷", "ď", "日本語", "a😀b", "\n\n x\t"])
def test_no_broken_character_is_ever_shown(text: str) -> None:
    replay, completion = complete(text)
    assert completion.text == text
    assert "\ufffd" not in "".join(replay.shown)


def test_a_character_appears_with_its_last_byte() -> None:
    replay, _ = complete("😀")
    assert replay.shown[:4] == ["", "", "", "😀"]


def test_what_is_incomplete_at_the_end_becomes_one_replacement_character() -> None:
    replay = Replay(BYTES, SamplingParams(max_tokens=2))
    completion = replay.feed(0xF0, 0x9F)
    assert completion is not None
    assert (completion.text, completion.finish_reason) == ("\ufffd", FinishReason.LENGTH)
    assert replay.shown == ["", "\ufffd"]


def test_invalid_bytes_are_shown_once_they_cannot_be_completed() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.append(byte) for byte in (0xE2, 0x28, 0xFF, 0xFF, ord("a"))] == ["", "\ufffd(", "", "\ufffd", "\ufffda"]
    assert detokenizer.flush() == ""


def test_special_tokens_leave_no_text() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.append(token) for token in (ord("a"), START, ord("b"))] == ["a", "", "b"]


@given(st.lists(st.integers(0, 257), max_size=40))
@settings(max_examples=500, deadline=None)
def test_pieces_join_to_the_decoded_text(token_ids: list[int]) -> None:
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.append(token_id) for token_id in token_ids] + [detokenizer.flush()]
    assert "".join(pieces) == BYTES.decode(token_ids)


@pytest.mark.starter
def test_pieces_join_to_the_decoded_text_of_a_real_tokenizer(starter_model: Path) -> None:
    tokenizer = Tokenizer.from_directory(starter_model)
    rng = random.Random(0)
    for _ in range(2_000):
        # Half of the ids from the single bytes at the start of the vocabulary: broken characters of all kinds.
        token_ids = [rng.randrange(rng.choice([300, tokenizer.vocab_size])) for _ in range(rng.randint(1, 12))]
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.append(token_id) for token_id in token_ids] + [detokenizer.flush()]
        assert "".join(pieces) == tokenizer.decode(token_ids), token_ids


FALLBACK = byte_fallback()


def bytes_of(text: str) -> list[int]:
    return [byte + 1 for byte in text.encode()]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, FALLBACK.vocab_size - 1), max_size=4) | st.sampled_from("😀語ďñ🇫a").map(bytes_of),
        max_size=8,
    )
)
def test_pieces_join_where_characters_are_spelled_in_single_bytes(groups: list[list[int]]) -> None:
    token_ids = [token_id for group in groups for token_id in group]
    detokenizer = Detokenizer(FALLBACK)
    pieces = [detokenizer.append(token_id) for token_id in token_ids] + [detokenizer.flush()]
    assert "".join(pieces) == FALLBACK.decode(token_ids)


def test_e1_characters_spelled_in_single_bytes() -> None:
    replay = Replay(FALLBACK, SamplingParams())
    end = FALLBACK.vocab_size - 1
    replay.feed(*bytes_of("😀"), *bytes_of("語"), end)
    assert "".join(replay.shown).startswith("😀語")
    assert not any("\ufffd" in piece for piece in replay.shown)
    completion = Replay(FALLBACK, SamplingParams(max_tokens=4)).feed(*bytes_of("😀"))
    assert completion is not None
    assert completion.text == "😀"


@pytest.mark.starter
@pytest.mark.parametrize(
    ("token_ids", "shown"),
    [
        ((10813, 242, 218), ["", "", "😀"]),
        ((10813, 225, 121, 10813, 225, 132), ["", "", "🇫", "", "", "🇷"]),
        ((143, 233), ["", "ď"]),
    ],
)
def test_real_ids_of_split_characters(starter_model: Path, token_ids: tuple[int, ...], shown: list[str]) -> None:
    replay = Replay(Tokenizer.from_directory(starter_model), SamplingParams())
    replay.feed(*token_ids)
    assert replay.shown == shown


@pytest.mark.starter
def test_real_ids_of_japanese(starter_model: Path) -> None:
    replay = Replay(Tokenizer.from_directory(starter_model), SamplingParams())
    replay.feed(23274, 115, 40993, 179, 120, 248)
    assert "".join(replay.shown) == "日本語"
    assert "\ufffd" not in "".join(replay.shown)


@pytest.mark.starter
@pytest.mark.parametrize(
    ("token_ids", "stop", "text"),
    [
        ((33203, 23960, 57, 58), "DEFGHIJ", ""),
        ((1038, 16438), "n f", " ow"),
        ((17565, 16439), "beta gamma", ""),
        ((198, 11126, 42), "\nUser:", ""),
    ],
)
def test_real_ids_of_stop_texts(starter_model: Path, token_ids: tuple[int, ...], stop: str, text: str) -> None:
    tokenizer = Tokenizer.from_directory(starter_model)
    replay = Replay(tokenizer, SamplingParams(stop=(stop,)))
    completion = replay.feed(*token_ids)
    assert completion is not None
    assert (completion.text, completion.finish_reason) == (text, FinishReason.STOP)
    assert "".join(replay.shown) == text
    assert tokenizer.decode(completion.token_ids) == text


# --- stop texts (cases E4, E6) -----------------------------------------------------------------------------------------


def test_nothing_of_a_stop_text_is_shown() -> None:
    replay, completion = complete("abcSTOPdef", stop=("STOP",))
    assert completion.text == "abc"
    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids == tuple(ids("abc"))
    assert completion.num_tokens == len("abcSTOP")
    assert replay.shown == ["a", "b", "c", "", "", "", ""]


def test_what_only_looked_like_a_stop_text_is_not_lost() -> None:
    _, completion = complete("STOSTO STOX", stop=("STOP",))
    assert completion.text == "STOSTO STOX"


def test_the_end_token_gives_back_what_was_held() -> None:
    _, completion = complete("aST", stop=("STOP",))
    assert completion.text == "aST"


def test_the_length_limit_gives_back_what_was_held() -> None:
    replay = Replay(BYTES, SamplingParams(stop=("STOP",), max_tokens=3))
    completion = replay.feed(*ids("aST"))
    assert completion is not None
    assert (completion.text, completion.finish_reason, "".join(replay.shown)) == ("aST", FinishReason.LENGTH, "aST")


def test_the_first_of_several_stop_texts_counts() -> None:
    _, completion = complete("one two three", stop=("three", "wo"))
    assert completion.text == "one t"


def test_a_stop_text_inside_a_token() -> None:
    stops = StopTexts(("n f",))
    assert stops.append(" own") == (" ow", False)
    assert stops.append(" fox") == ("", True)
    assert stops.flush() == ""


def test_a_stop_text_made_of_flushed_bytes() -> None:
    replay = Replay(BYTES, SamplingParams(stop=("\ufffd",)))
    completion = replay.feed(ord("a"), 0xF0, END)
    assert completion is not None
    assert (completion.text, completion.token_ids) == ("a", (ord("a"),))


@given(st.text("abS", max_size=30), st.lists(st.text("abS", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
@settings(max_examples=300, deadline=None)
def test_stop_texts_never_leak_or_swallow(text: str, stops: list[str], data: st.DataObject) -> None:
    stop_texts = StopTexts(tuple(stops))
    shown, at, stopped = "", 0, False
    while at < len(text) and not stopped:
        size = data.draw(st.integers(1, 4))
        piece, stopped = stop_texts.append(text[at : at + size])
        shown, at = shown + piece, at + size
    shown += stop_texts.flush()
    seen = text[:at]
    if stopped:
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
    else:
        assert shown == text
    assert not any(stop in shown for stop in stops)


def test_ids_for_a_cut_answer_keep_generated_ones_and_encode_the_rest() -> None:
    replay = Replay(BYTES, SamplingParams(stop=("é!",)))
    completion = replay.feed(*ids("né!"))
    assert completion is not None
    assert completion.token_ids == tuple(ids("n"))


def test_a_cut_inside_the_first_token_encodes_the_text() -> None:
    tokenizer = added("own")
    replay = Replay(tokenizer, SamplingParams(stop=("w",)))
    completion = replay.feed(258)
    assert completion is not None
    assert (completion.text, completion.token_ids) == ("o", (ord("o"),))


# --- reasoning (cases F1, F4) ------------------------------------------------------------------------------------------

THINK = ReasoningMarkers("<think>", "</think>", (258,), (259,))


def thinking(tokenizer: Tokenizer, *, inside: bool | None, **params: object) -> Replay:
    replay = Replay(tokenizer, SamplingParams(**params), markers=THINK)  # type: ignore[arg-type]
    replay.sequence.group.thinking = inside
    return replay


@pytest.mark.parametrize("special", [False, True])
def test_reasoning_is_told_from_the_answer(special: bool) -> None:
    replay = thinking(added("<think>", "</think>", special=special), inside=False)
    reply = (258, *ids("\nplan\n"), 259, *ids("\n\n42"))
    completion = replay.feed(*reply, END)
    assert completion is not None
    assert (completion.reasoning, completion.text, completion.reasoning_closed) == ("plan", "42", True)
    assert completion.token_ids == reply
    assert "".join(replay.shown) == "42"
    assert "".join(replay.thoughts) == "plan"


def test_f1_the_prompt_has_opened_the_block() -> None:
    replay = thinking(BYTES, inside=True)
    completion = replay.feed(*ids("plan</think>\n\n42"), END)
    assert completion is not None
    assert (completion.reasoning, completion.text) == ("plan", "42")


def test_reasoning_that_does_not_end_is_told() -> None:
    replay = thinking(BYTES, inside=True, max_tokens=4)
    completion = replay.feed(*ids("plan"))
    assert completion is not None
    assert (completion.reasoning, completion.text, completion.reasoning_closed) == ("plan", "", False)
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_cancelled_answer_keeps_what_was_thought() -> None:
    replay = thinking(BYTES, inside=True)
    replay.feed(*ids("a "))
    outcome = replay.cancel()
    assert outcome.completion is not None
    assert (outcome.reasoning, outcome.completion.reasoning) == ("", "a")


def test_where_reasoning_is_not_told_apart_it_is_text() -> None:
    completion = thinking(added("<think>", "</think>"), inside=None).feed(258, *ids("a"), 259, END)
    assert completion is not None
    assert (completion.reasoning, completion.text) == (None, "<think>a</think>")


@pytest.mark.parametrize(("stop", "text"), [("42", "is "), ("i", ""), ("zz", "is 42!")])
def test_stop_texts_are_looked_for_in_the_answer_only(stop: str, text: str) -> None:
    replay = thinking(added("<think>", "</think>"), inside=False, stop=(stop,))
    thought = (258, *ids("is it 42i?"), 259)
    completion = replay.feed(*thought, *ids("\n\nis 42!"), END)
    assert completion is not None
    assert (completion.reasoning, completion.text) == ("is it 42i?", text)
    # Of the space between, what the decoder can tell from the answer stays.
    assert completion.token_ids[: len(thought)] == thought
    assert bytes(completion.token_ids[len(thought) :]).decode().strip() == text.strip()


def test_a_token_that_ends_reasoning_and_begins_the_answer() -> None:
    replay = thinking(added("</think>The"), inside=True, stop=("!",))
    completion = replay.feed(*ids("hm"), 258, *ids(" end!"))
    assert completion is not None
    assert (completion.reasoning, completion.text) == ("hm", "The end")
    assert completion.token_ids == (*ids("hm"), 258, *ids(" end"))


# --- repetition (case E12), least lengths, log-probabilities -------------------------------------------------------------


def test_e12_an_answer_that_goes_round_in_circles() -> None:
    replay = Replay(BYTES, SamplingParams(stop_on_repeat=True))
    completion = replay.feed(*ids("czap," * 200))
    assert completion is not None
    assert (completion.finish_reason, completion.text) == (FinishReason.REPETITION, "czap," * 20)
    assert replay.repeats[-2:] == [0, 20]


def test_e12_it_is_told_and_goes_on_unless_asked() -> None:
    replay = Replay(BYTES, SamplingParams())
    assert replay.feed(*ids("czap," * 100)) is None
    assert replay.repeats[98:105] == [0, 20, 20, 20, 20, 20, 21]


def test_no_stop_text_before_the_least_length() -> None:
    replay = Replay(BYTES, SamplingParams(stop=("b",), min_tokens=3))
    completion = replay.feed(*ids("abcabc"))
    assert completion is not None
    assert completion.text == "abca"


def test_log_probabilities_are_kept() -> None:
    replay = Replay(BYTES, SamplingParams(max_tokens=2, logprobs=0))
    reports = [TokenLogprobs(token, -0.5, ()) for token in b"ab"]
    replay.reports = iter(reports)
    completion = replay.feed(*ids("ab"))
    assert completion is not None
    assert completion.logprobs == tuple(reports)


# --- end tokens, lengths (cases E8, E14) -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [START, END])
def test_every_end_token_stops_and_none_is_shown(end: int) -> None:
    replay = Replay(BYTES, SamplingParams(), stops=frozenset({START, END}))
    completion = replay.feed(*ids("hi"), end)
    assert completion == Completion(0, "hi", tuple(ids("hi")), FinishReason.STOP, 3)


def test_end_tokens_can_be_ignored_but_stop_ids_of_the_request_count() -> None:
    replay = Replay(BYTES, SamplingParams(ignore_eos=True, stop_token_ids=(7,)))
    assert replay.feed(ord("a"), END, ord("b")) is None
    completion = replay.feed(7)
    assert completion is not None
    assert (completion.text, completion.token_ids) == ("ab", (ord("a"), END, ord("b")))


def test_max_tokens_is_a_length_finish() -> None:
    completion = Replay(BYTES, SamplingParams(max_tokens=5)).feed(*ids("abcdefgh"))
    assert completion == Completion(0, "abcde", tuple(ids("abcde")), FinishReason.LENGTH, 5)


def test_a_full_context_is_a_length_finish() -> None:
    completion = Replay(BYTES, SamplingParams(), longest=6).feed(*ids("abcdefgh"))
    assert completion is not None
    assert (completion.text, completion.finish_reason) == ("abc", FinishReason.LENGTH)


def test_an_end_token_as_the_last_allowed_one_is_a_stop() -> None:
    completion = Replay(BYTES, SamplingParams(max_tokens=2)).feed(ord("a"), END)
    assert completion is not None
    assert completion.finish_reason is FinishReason.STOP


def test_cancelling_keeps_what_there_is() -> None:
    replay = Replay(BYTES, SamplingParams(stop=("STOP",)))
    replay.feed(*ids("hi ST"))
    outcome = replay.cancel()
    assert outcome.text == "ST"
    assert outcome.completion == Completion(0, "hi ST", tuple(ids("hi ST")), FinishReason.CANCELLED, 5)


def test_cancelling_before_the_first_token() -> None:
    outcome = Replay(BYTES, SamplingParams()).cancel()
    assert outcome.completion == Completion(0, "", (), FinishReason.CANCELLED, 0)


def test_leading_newlines_are_kept() -> None:
    _, completion = complete("\n\nHello")
    assert completion.text == "\n\nHello"
