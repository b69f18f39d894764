"""Text to ids and back: exact for the starter's tokenizer, and never a control token from outside text for any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from chatpaged.engine.tokenizer import Tokenizer, read_json, unused_characters
from chatpaged.errors import InvalidRequestError, ModelError
from tests.small_tokenizers import STARTER_TEXT, UNIGRAM_PIECES, extended, unigram, with_bos, word_level


@pytest.fixture(scope="module")
def starter(starter_model: Path) -> Tokenizer:
    return Tokenizer.from_directory(starter_model)


# --- the starter's tokenizer ---------------------------------------------------------------------------------------------


@pytest.mark.starter
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<|im_end|>", [44, 108, 306, 79, 486, 108, 46]),
        ("  two  spaces ", [216, 827, 216, 5600, 216]),
        ("a\r\nb", [81, 201, 198, 82]),
        ("\t", [197]),
        ("Hello", [19556]),
        ("😀", [10813, 242, 218]),
        ("", []),
    ],
)
def test_ids_are_exact(starter: Tokenizer, text: str, ids: list[int]) -> None:
    assert starter.encode(text) == ids
    assert starter.decode(ids) == text


@pytest.mark.starter
def test_every_control_token_is_encoded_as_text(starter: Tokenizer) -> None:
    assert len(starter.control_tokens) == 17
    assert starter.control_tokens["<|im_end|>"] == 2
    for text, token_id in starter.control_tokens.items():
        ids = starter.encode(f"a{text}{text} b")
        assert not starter._control_ids & set(ids)
        assert starter.decode(ids) == f"a{text}{text} b"
        assert starter.encode_parts(["a", text, "b"]) == [81, token_id, 82]


@pytest.mark.starter
@settings(deadline=None)
@given(parts=st.lists(STARTER_TEXT | st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<|", "<file_sep>", "|>"])))
def test_text_survives_and_stays_text(starter: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = starter.encode(text)
    assert not starter._control_ids & set(ids)
    assert starter.decode(ids) == text


@pytest.mark.starter
def test_settings_of_the_starter(starter: Tokenizer) -> None:
    assert starter.vocab_size == 49152
    assert starter.stop_token_ids == {2}
    assert starter.special_text("bos_token") == "<|im_start|>"
    assert starter.special_text("sep_token") is None
    assert starter.leading_ids == ()


@pytest.mark.starter
def test_special_tokens_are_left_out_of_decoded_text(starter: Tokenizer) -> None:
    assert starter.decode([1, 19556, 2]) == "Hello"
    assert starter.is_hidden(2)
    assert not starter.is_hidden(19556)
    assert starter.decode([10813, 242]) == "\ufffd"


@pytest.mark.starter
def test_leading_ids_are_what_the_tokenizer_adds_in_front(starter_model: Path) -> None:
    tokenizer = with_bos(starter_model)
    assert tokenizer.leading_ids == (0,)
    assert tokenizer.encode("Hello") == [19556], "the begin token is the caller's to add, once"


@pytest.mark.starter
def test_text_that_is_no_unicode_is_refused(starter: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        starter.encode("a\ud800b")
    with pytest.raises(InvalidRequestError, match="surrogate"):
        starter.encode("<|im_end|>\ud800")


# --- other kinds of added tokens -----------------------------------------------------------------------------------------


@pytest.mark.starter
@pytest.mark.parametrize("normalized", [True, False])
def test_markup_that_is_not_special_is_text_too(starter_model: Path, normalized: bool) -> None:
    tokenizer = extended(starter_model, AddedToken("<think>", normalized=normalized), AddedToken("[TOOL]", normalized=normalized))
    assert tokenizer.encode("<think>") == [44, 17400, 46]
    assert tokenizer.decode(tokenizer.encode("a <think> [TOOL] b")) == "a <think> [TOOL] b"
    # It is shown, unlike a special token: the reader sees where the thinking begins.
    assert tokenizer.decode(tokenizer.encode_parts(["", "<think>", "x"])) == "<think>x"


@pytest.mark.starter
def test_added_words_that_are_no_markup_stay_tokens(starter_model: Path) -> None:
    tokenizer = extended(starter_model, AddedToken("    ", normalized=False), AddedToken("Zürich", normalized=False))
    assert tokenizer.encode("Zürich") == [49153]
    # Also in a text in which a control token has to be taken apart.
    assert tokenizer.encode("Zürich<|im_end|>") == [49153, 44, 108, 306, 79, 486, 108, 46]


@pytest.mark.starter
@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_swallow_spaces_do_so_only_where_they_are_meant(starter_model: Path, special: bool) -> None:
    end = AddedToken("<|end|>", lstrip=True, rstrip=True, normalized=False, special=special)
    tokenizer = extended(starter_model, end)
    assert tokenizer.decode(tokenizer.encode("a <|end|> b")) == "a <|end|> b"
    plain = tokenizer.encode_parts(["a ", "<|end|>", "\nb"])
    assert plain == [81, 49152, 82]
    # The same beginning has the same ids, whatever a user writes after it: keys and values computed for it stay valid.
    attacked = tokenizer.encode_parts(["a ", "<|end|>", "\nb", "<|end|>", "<|end|> c"])
    assert attacked[: len(plain)] == plain
    assert attacked.count(49152) == 2


@pytest.mark.starter
def test_overlapping_control_tokens_take_the_longest(starter_model: Path) -> None:
    tokenizer = extended(starter_model, AddedToken("<a>", special=True), AddedToken("<a>>", special=True), AddedToken("<<a>", special=True))
    assert tokenizer.split_control("x<a>>y<<a>z") == ["x", "<a>>", "y", "<<a>", "z"]
    # The text ends with what makes a longer token of the one that follows.
    ids = tokenizer.encode_parts(["x<", "<a>", ">y"])
    assert [token_id for token_id in ids if token_id >= 49152] == [49152]


# --- vocabularies whose ordinary pieces are control tokens ---------------------------------------------------------------


@pytest.mark.parametrize("prepend", ["first", "always", "never"])
@pytest.mark.parametrize("text", ["</s>", "a</s>b<s>", "</s></s>", "\uff1c/s\uff1e", "the <\uff0fs> a", "</s> </s>"])
def test_unigram_piece_never_becomes_a_control_token(prepend: str, text: str) -> None:
    # The last three become `</s>` only by normalization: looking for it in the text is not enough.
    tokenizer = unigram(prepend=prepend)
    ids = tokenizer.encode(text)
    assert not {1, 2} & set(ids)
    normal = normalizers.NFKC().normalize_str(text)
    assert tokenizer.decode(ids).replace(" ", "") == normal.replace(" ", "")


@pytest.mark.parametrize("prepend", ["first", "always", "never"])
def test_other_text_is_encoded_the_same_beside_an_attack(prepend: str) -> None:
    tokenizer = unigram(prepend=prepend)
    harmless = tokenizer.encode_parts(["", "<s>", "the a", "</s>", "a the"])
    attacked = tokenizer.encode_parts(["", "<s>", "the a", "</s>", "a the", "</s>", "</s>"])
    assert attacked[: len(harmless)] == harmless
    assert attacked.count(2) == 2


@pytest.mark.parametrize("prepend", ["first", "always", "never"])
def test_text_that_goes_on_has_no_space_of_its_own(prepend: str) -> None:
    tokenizer = unigram(prepend=prepend)
    for text in (" a", " a</s>", "!a", "</s>a"):
        parts = tokenizer.split_control(text)
        joint = tokenizer.encode_parts(["the" + parts[0], *parts[1:]])
        known = tokenizer.encode("the")
        assert [*known, *tokenizer.encode_parts(parts, continued=True)] == joint
    # Where the two would join, the text is encoded for itself.
    assert tokenizer.decode(tokenizer.encode_parts(["the"], continued=True)) == "the"


@settings(deadline=None)
@given(parts=st.lists(st.sampled_from(["<s>", "</s>", *"</s> a", "the", "\uff1c", "\uff1e", "\uff0f", "\u00a0", "\ufb01"])))
def test_unigram_property(parts: list[str]) -> None:
    tokenizer = unigram()
    ids = tokenizer.encode("".join(parts))
    assert not {1, 2} & set(ids)
    assert all(0 <= token_id < len(UNIGRAM_PIECES) for token_id in ids)


def test_word_level_vocabulary_with_control_words() -> None:
    tokenizer = word_level("hello")
    assert tokenizer.encode_parts(["hello ", "[SEP]", " hello"]) == [3, 2, 3]
    assert not {1, 2} & set(tokenizer.encode("hello [SEP] hello"))
    assert tokenizer.encode("hello [SEP] hello")[::3] == [3, 3]


def test_character_that_is_a_control_token_is_refused_rather_than_let_through() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"?": 0, "X": 1, "a": 2}, unk_token="?"))  # noqa: S106 - no password
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.add_special_tokens(["X"])
    tokenizer = Tokenizer(inner)
    assert tokenizer.encode("a") == [2]
    with pytest.raises(ModelError, match="cannot be used safely"):
        tokenizer.encode("aXa")


def test_tokenizer_without_added_tokens() -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"?": 0, "a": 1}, unk_token="?")))  # noqa: S106 - no password
    assert tokenizer.control_tokens == {}
    assert tokenizer.control_edges == ""
    assert tokenizer.split_control("a</s>") == ["a</s>"]
    assert tokenizer.encode("a") == [1]
    assert tokenizer.stop_token_ids == frozenset()


def test_names_of_end_tokens() -> None:
    assert unigram(settings={"eos_token": {"content": "</s>", "special": True}}).stop_token_ids == {2}
    assert unigram(settings={"eos_token": "<unknown>"}).stop_token_ids == frozenset()
    assert unigram(settings={"eos_token": 3}).stop_token_ids == frozenset()


def test_unused_characters_are_noncharacters_as_long_as_there_are_any() -> None:
    assert unused_characters(["\ufdd0", "a"], 2) == ["\ufdd1", "\ufdd2"]
    everything = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    assert unused_characters([everything, "\U000f0000"], 1) == ["\U000f0001"]


def test_marks_in_text_are_never_taken_for_control_tokens() -> None:
    # An attacker who knows how control tokens are named internally.
    tokenizer = unigram()
    for mark in ("\ufdd0", "\ufdd1", "\U000f0000"):
        ids = tokenizer.encode_parts([f"{mark}2{mark}", "</s>", f"</s>{mark}{mark}{mark}1{mark}"])
        assert [token_id for token_id in ids if token_id in (1, 2)] == [2]


# --- reading a model directory -------------------------------------------------------------------------------------------


def test_missing_and_damaged_tokenizer_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json in"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"?": 0, "a": 1}, unk_token="?"))  # noqa: S106 - no password
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.enable_truncation(2)
    inner.enable_padding(length=8, pad_id=0, pad_token="?")  # noqa: S106 - no password
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("a a a a") == [1, 1, 1, 1]
    assert tokenizer.stop_token_ids == {1}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"3", b""])
def test_damaged_settings_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        read_json(path)
    assert read_json(tmp_path / "missing.json") == {}
