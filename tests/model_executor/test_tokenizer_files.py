"""Models without `tokenizer.json`: one is made once, and gives the ids that transformers gives."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from chatpaged.chat_template import ChatTemplate
from chatpaged.engine import tokenizer_files
from chatpaged.engine.model_executor import convert_tokenizer
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.engine.tokenizer_files import tokenizer_directory
from chatpaged.errors import ModelError
from tests.model_executor.tiny_models import CHAT_TEMPLATE, build_tokenizer

hf: Any = transformers
TEXTS = ["the blocks of one layer", " two  spaces\n\ttabs", "naïve 日本語 😀", "x" * 100, ""]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/chatpaged/tokenizers"


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """Files in the manner of GPT-2: vocab.json and merges.txt."""
    directory = tmp_path / "gpt2"
    directory.mkdir()
    inner = json.loads(build_tokenizer().to_str())["model"]
    vocabulary = dict(inner["vocab"])
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in inner["merges"]]
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return directory


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs the converter in this process, which has imported everything already. Notes its calls."""
    calls: list[str] = []

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        calls.append(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [name, *arguments])
            errors = io.StringIO()
            patch.setattr("sys.stderr", errors)
            status = convert_tokenizer.main()
        return subprocess.CompletedProcess([name], status, "", errors.getvalue())

    monkeypatch.setattr(tokenizer_files, "run_module", run)
    return calls


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def same_ids(directory: Path) -> None:
    """Our ids are those that transformers gives for the same files."""
    reference = hf.AutoTokenizer.from_pretrained(directory)
    ours = Tokenizer.from_directory(directory)
    for text in TEXTS:
        expected = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text) == expected, text
        assert ours.decode(expected) == reference.decode(expected, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_vocabulary_and_merges(gpt2: Path, cache: Path) -> None:
    before = files(gpt2)
    same_ids(gpt2)
    assert files(gpt2) == before, "the model's own directory is left alone"
    (made,) = (path for path in cache.iterdir() if path.is_dir())
    assert (made / "tokenizer.json").is_file()


def test_what_older_files_leave_to_the_class_is_known(gpt2: Path, in_process: list[str]) -> None:
    tokenizer = Tokenizer.from_directory(gpt2)
    assert tokenizer.special_text("eos_token") == "<|endoftext|>"
    assert len(tokenizer.stop_token_ids) == 1


def test_the_models_own_settings_and_template_count(gpt2: Path, in_process: list[str]) -> None:
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": "<|end|>"}))
    tokenizer = Tokenizer.from_directory(gpt2)
    assert tokenizer.special_text("eos_token") == "<|end|>"
    assert ChatTemplate.from_directory(gpt2, tokenizer) is not None


def test_made_once_and_anew_for_other_contents(gpt2: Path, cache: Path, in_process: list[str]) -> None:
    (cache / ".partial-killed").mkdir(parents=True)
    cache.chmod(0o700)
    first = tokenizer_directory(gpt2)
    moved = gpt2.rename(gpt2.parent / "elsewhere")
    assert tokenizer_directory(moved) == first, "found by contents, wherever the model lies"
    assert len(in_process) == 1
    (moved / "added_tokens.json").write_text("{}")
    assert tokenizer_directory(moved) != first
    assert len(in_process) == 2
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in cache.iterdir() if path.name.startswith(".partial")] == []


def test_own_tokenizer_json_is_taken_as_it_is(gpt2: Path, cache: Path) -> None:
    build_tokenizer().save(str(gpt2 / "tokenizer.json"))
    assert tokenizer_directory(gpt2) == gpt2
    assert not cache.exists()


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json in .*, and no other tokenizer file"):
        Tokenizer.from_directory(tmp_path)


def test_damaged_files_are_one_line(gpt2: Path, cache: Path, in_process: list[str]) -> None:
    (gpt2 / "vocab.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot make a tokenizer\.json from vocab\.json in .*gpt2: \S") as info:
        Tokenizer.from_directory(gpt2)
    assert "\n" not in str(info.value)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_code_beside_the_tokenizer_is_not_run(gpt2: Path, tmp_path: Path, in_process: list[str]) -> None:
    mark = tmp_path / "was-run"
    (gpt2 / "tokenization_x.py").write_text(f"from pathlib import Path; Path({str(mark)!r}).touch()\nclass X: pass")
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}}))
    (gpt2 / "config.json").write_text(json.dumps({"model_type": "mystery"}))
    with pytest.raises(ModelError, match=r"cannot make a tokenizer\.json"):
        Tokenizer.from_directory(gpt2)
    assert not mark.exists()


def test_words_in_a_list(tmp_path: Path, in_process: list[str]) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "block", "##s", "of", "one", "layer", "x", "##x"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    reference = hf.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_directory(tmp_path)
    assert ours.encode("the blocks of one layer") == reference.encode("the blocks of one layer", add_special_tokens=False)


def test_cache_that_cannot_be_written(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot store a tokenizer\.json for"):
        tokenizer_directory(gpt2)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(tmp_path: Path, kind: str, in_process: list[str]) -> None:
    trainer = pytest.importorskip("sentencepiece")
    directory = tmp_path / "model"
    directory.mkdir()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS * 3 + [f"the blocks of layer {i} lie apart, and {i * 7} more" for i in range(200)]))
    trainer.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(directory / "tokenizer"), vocab_size=380, model_type=kind, byte_fallback=True, minloglevel=2
    )
    (directory / "tokenizer.vocab").unlink()
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "legacy": False}))
    same_ids(directory)


def test_missing_library_is_named(tmp_path: Path) -> None:
    # A process that cannot import it, whether it is installed or not.
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x07\x0a\x03abc\x15\x00\x00\x00\x00")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('sentencepiece', 'tiktoken', 'google', 'google.protobuf', 'mistral_common')))\n"
        "import importlib.util as u; f = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n.split('.')[0] in ('sentencepiece', 'tiktoken', 'google', 'mistral_common') else f(n, *a)\n"
        "from chatpaged.engine.model_executor import convert_tokenizer\nsys.exit(convert_tokenizer.main())"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 3, done
    assert "pip install 'chatpaged[tokenizers]'" in done.stderr.splitlines()[-1]
