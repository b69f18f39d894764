"""`batch` with a scripted model, in this process."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from chatpaged.batch_run import BatchCounts
from chatpaged.cli.batch_progress import BatchProgress, count_rows
from chatpaged.engine.llm_engine import LLMEngine
from tests.byte_tokenizer import END
from tests.cli.runner import Result, Stream, run_inside
from tests.cli.scripted_model import make_model, scripted_engine


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLMEngine, "from_pretrained", scripted_engine)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "tiny")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [{"custom_id": f"id-{i}", "prompt": f"question {i}"} for i in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def batch(model: Path, *arguments: object, stdin: bytes = b"") -> Result:
    return run_inside("batch", "-m", str(model), "--temperature", "0", *map(str, arguments), stdin=stdin)


def lines_of(text: str) -> list[dict[str, Any]]:
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def texts_of(text: str) -> dict[str, str]:
    rows = [row for row in lines_of(text) if row["response"] is not None]
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    assert len(texts) == len(rows)
    return texts


# --- rows in, lines out --------------------------------------------------------------------------------------------------


def test_a_pipe_of_prompts_needs_nothing_else(model: Path) -> None:  # H8
    result = batch(model, "--text", stdin=b"Why?\n\nHow?\n")
    assert result.status == 0
    assert sorted(texts_of(result.out)) == ["line-1", "line-3"]
    assert result.err.startswith("chatpaged: 2 ok, 0 failed; ")
    assert "prefix hits" in result.err
    assert result.err.count("\n") == 1
    assert batch(model, "-", "--text", "-q", stdin=b"Why?\n").err == ""


def test_failed_rows(model: Path, tmp_path: Path) -> None:  # H1, C1
    rows = [
        json.dumps({"prompt": "hi"}),
        "{bad json",
        json.dumps({"prompt": " a" * 1000}),
        '{"prompt": "hi", "foo": 1}',
        '{"prompt": "yo"}',
    ]
    (tmp_path / "in").write_text("\n".join(rows))
    result = batch(model, tmp_path / "in", "--kv-blocks", "8")
    assert result.status == 6
    assert result.err.startswith("chatpaged: 2 ok, 3 failed; ")
    lines = lines_of(result.out)
    assert len(lines) == 5
    failed = {line["custom_id"]: line["error"] for line in lines if line["response"] is None}
    assert sorted(failed) == ["line-2", "line-3", "line-4"]
    assert all(sorted(error) == ["code", "message"] for error in failed.values())
    assert failed["line-3"]["code"] == "prompt_too_long"
    assert "'foo'" in failed["line-4"]["message"]


def test_options_hold_where_a_row_does_not_say_otherwise(model: Path) -> None:
    rows = b'{"prompt": "a", "max_tokens": 2}\n{"prompt": "a"}\n'
    result = batch(model, "--max-tokens", "3", "--ordered", stdin=rows)
    assert [row["response"]["body"]["usage"]["completion_tokens"] for row in lines_of(result.out)] == [2, 3]


def test_the_system_prompt_is_for_rows_without_one(model: Path) -> None:
    rows = [{"prompt": "a"}, {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "a"}]}]
    rows.append({"url": "/v1/completions", "body": {"prompt": "a"}})
    stdin = "\n".join(map(json.dumps, rows)).encode()
    result = batch(model, "-s", "s" * 100, "--ordered", "--max-tokens", "1", stdin=stdin)
    sizes = [row["response"]["body"]["usage"]["prompt_tokens"] for row in lines_of(result.out)]
    user, header = len("_user\na_\n"), len("_assistant\n")
    assert sizes == [len("_system\n_\n") + 100 + user + header, len("_system\nx_\n") + user + header, 1]


def test_raw_prompts(model: Path) -> None:
    result = batch(model, "--raw-prompt", "--text", "--max-tokens", "1", stdin=b"abc\n")
    body = lines_of(result.out)[0]["response"]["body"]
    assert (body["object"], body["usage"]["prompt_tokens"]) == ("text_completion", 3)


def test_control_tokens_in_a_row_are_text(model: Path) -> None:  # A3
    plain, injected = "x" * len("<|end|>"), "<|end|>"
    rows = [{"prompt": text} for text in (plain, injected)] + [{"url": "/v1/completions", "body": {"prompt": injected}}]
    stdin = "\n".join(map(json.dumps, rows)).encode()
    result = batch(model, "-s", injected, "--ordered", "--max-tokens", "1", stdin=stdin)
    sizes = [row["response"]["body"]["usage"]["prompt_tokens"] for row in lines_of(result.out)]
    assert sizes[0] == sizes[1]
    assert sizes[2] == len(injected)


def test_a_terminal_is_not_controlled_by_answers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.scripted_model.letters", lambda _, sample: [0xC2, 0x9B, END][sample.position])
    terminal = Stream(terminal=True)
    arguments = ("batch", "-m", str(model), "--temperature", "0", "--text")
    shown = run_inside(*arguments, stdin=b"hi\n", out=terminal)
    # This terminal shows ASCII only: what takes the place of the control character becomes a question mark.
    assert (shown.status, "\x9b" in shown.out, '"content": "?"' in shown.out) == (0, False, True)
    assert texts_of(run_inside(*arguments, stdin=b"hi\n").out) == {"line-1": "\x9b"}


def test_more_answers_than_sequences_at_once(model: Path) -> None:
    result = batch(model, "--max-num-seqs", "2", stdin=b'{"prompt": "a", "n": 5}\n{"prompt": "b"}\n')
    rows = {row["custom_id"]: row for row in lines_of(result.out)}
    assert len(rows) == 2
    assert rows["line-2"]["error"] is None


def test_rows_for_another_model(model: Path) -> None:  # H8
    stdin = b'{"prompt": "a", "model": "gpt-4"}\n{"prompt": "a", "model": "tiny"}\n'
    result = batch(model, stdin=stdin)
    assert result.status == 6
    assert {row["custom_id"]: row["error"] and row["error"]["code"] for row in lines_of(result.out)} == {
        "line-1": "model_mismatch",
        "line-2": None,
    }
    assert batch(model, "--ignore-model", stdin=stdin).status == 0


def test_streams_are_ignored_with_a_note(model: Path) -> None:  # H8
    result = batch(model, stdin=b'{"prompt": "a", "stream": true}\n')
    assert result.status == 0
    assert "chatpaged: stream was ignored in 1 row: " in result.err


def test_a_shared_beginning_is_told(model: Path) -> None:  # H9
    rows = b"".join(json.dumps({"prompt": f"question {i}"}).encode() + b"\n" for i in range(30))
    result = batch(model, "-s", "x " * 200, "--max-num-seqs", "1", stdin=rows)
    bodies = [row["response"]["body"] for row in lines_of(result.out)]
    cached = sum(body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies)
    total = sum(body["usage"]["prompt_tokens"] for body in bodies)
    assert cached >= 29 * 400
    assert f"prompts {total} tokens, {total - cached} read, prefix hits {cached / total:.0%}" in result.err


# --- refused before anything is loaded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--resume",), "--resume needs -o OUT"),
        (("--overwrite",), "--overwrite needs -o OUT"),
        (("-o", "OUT", "--resume", "--overwrite"), "exclude each other"),
        (("-o", "OUT", "--retry-failed"), "--retry-failed needs --resume"),
        (("-o", "OUT", "--resume", "--retry-failed", "--ordered"), "exclude each other"),
        (("missing.jsonl",), "cannot read missing.jsonl: No such file"),
        (("--temperature", "-1"), "temperature"),
        (("--prefill", "x"), "prefill"),
        (("--stop", "\udcff"), "not valid UTF-8"),
        (("-o", "/dev/null", "rows", "--resume"), "--resume needs a file, which /dev/null is not"),
        (("-o", "missing/OUT"), "cannot write missing/OUT: No such file"),
        (("-o", "OUT", "--resume"), "--resume needs the rows in a file"),
    ],
)
def test_usage(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], part: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows").write_text('{"prompt": "a"}')
    monkeypatch.delattr(LLMEngine, "from_pretrained")
    batch(model, *arguments, stdin=b'{"prompt": "a"}').failed(2, part)


def test_no_input_at_all(model: Path) -> None:
    run_inside("batch", "-m", str(model), stdin=None).failed(2, "no rows; give a FILE or pipe them in")


def test_input_and_output_are_two_files(model: Path, rows: Path) -> None:
    before = rows.read_bytes()
    batch(model, rows, "-o", rows, "--overwrite").failed(2, "is both input and output")
    assert rows.read_bytes() == before


def test_an_empty_input_is_a_batch_with_nothing_to_do(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LLMEngine, "from_pretrained")
    result = batch(model)
    assert (result.status, result.out, result.err) == (0, "", "chatpaged: 0 ok, 0 failed\n")


# --- going on ------------------------------------------------------------------------------------------------------------


def test_an_output_that_exists_is_kept(model: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert batch(model, rows, "-o", out).status == 0
    whole = out.read_text()
    assert len(texts_of(whole)) == 40
    batch(model, rows, "-o", out).failed(2, "--resume goes on with it, --overwrite starts anew")
    assert out.read_text() == whole
    assert batch(model, rows, "-o", out, "--overwrite").status == 0
    assert texts_of(out.read_text()) == texts_of(whole)


def test_what_is_missing_is_run(model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # H2
    out = tmp_path / "out"
    batch(model, rows, "-o", out)
    whole = out.read_bytes()
    kept = b"".join(random.Random(1).sample(whole.splitlines(keepends=True), 15))
    out.write_bytes(kept + whole[:50])
    result = batch(model, rows, "-o", out, "--resume", "--max-num-seqs", "3")
    assert result.status == 0
    assert "25 ok, 0 failed (15 ok, 0 failed before); " in result.err
    assert out.read_bytes().startswith(kept)
    assert texts_of(out.read_text()) == texts_of(whole.decode())
    # Once more there is nothing to do, and nothing is loaded.
    monkeypatch.delattr(LLMEngine, "from_pretrained")
    again = batch(model, rows, "-o", out, "--resume")
    assert (again.status, again.err) == (0, "chatpaged: 0 ok, 0 failed (40 ok, 0 failed before)\n")


def test_resume_without_an_output_starts(model: Path, rows: Path, tmp_path: Path) -> None:
    assert batch(model, rows, "-o", tmp_path / "out", "--resume").status == 0
    assert len(texts_of((tmp_path / "out").read_text())) == 40


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--max-tokens", "5"), "sampling.max_tokens was null and is 5"),
        (("-s", "Be brief."), 'system was null and is "Be brief."'),
        (("--ordered",), "ordered was false and is true"),
        (("--text",), "text was false and is true"),
        (("--quantize", "int8"), 'quantize was "auto" and is "int8"'),
        (("--kv-dtype", "fp32"), 'kv_dtype was "auto" and is "fp32"'),
    ],
)
def test_other_values_than_before(model: Path, rows: Path, tmp_path: Path, arguments: tuple[str, ...], part: str) -> None:
    out = tmp_path / "out"
    batch(model, rows, "-o", out)
    whole = out.read_bytes()
    batch(model, rows, "-o", out, "--resume", *arguments).failed(2, part)
    assert out.read_bytes() == whole


def test_another_input_or_model_than_before(model: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    batch(model, rows, "-o", out)
    other = tmp_path / "other.jsonl"
    other.write_text(rows.read_text() + '{"prompt": "one more"}\n')
    batch(model, other, "-o", out, "--resume").failed(2, "input.size was")
    batch(make_model(tmp_path / "another"), rows, "-o", out, "--resume").failed(2, 'model.name was "tiny" and is "another"')
    (tmp_path / "out.manifest.json").unlink()
    batch(model, rows, "-o", out, "--resume").failed(2, "there is no out.manifest.json beside it")


def test_failed_rows_run_again_when_asked(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text('{"prompt": "a"}\n{"prompt": "' + "b" * 300 + '"}\n{"prompt": "c"}\n')
    assert batch(model, source, "-o", out, "--kv-blocks", "8").status == 6
    kept = batch(model, source, "-o", out, "--resume")
    assert (kept.status, kept.err) == (6, "chatpaged: 0 ok, 0 failed (2 ok, 1 failed before)\n")
    again = batch(model, source, "-o", out, "--resume", "--retry-failed")
    assert again.status == 0
    assert again.err.startswith("chatpaged: 1 ok, 0 failed (2 ok, 0 failed before); ")
    assert sorted(texts_of(out.read_text())) == ["line-1", "line-2", "line-3"]
    assert len(out.read_text().splitlines()) == 3


def test_ordered_output_goes_on_in_order(model: Path, rows: Path, tmp_path: Path) -> None:  # H4
    out = tmp_path / "out"
    batch(model, rows, "-o", out, "--ordered")
    whole = out.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["custom_id"] for line in whole] == [f"id-{i}" for i in range(40)]
    out.write_bytes(b"".join(whole[:7]) + b"{torn")
    batch(model, rows, "-o", out, "--ordered", "--resume")
    assert [json.loads(line)["custom_id"] for line in out.read_bytes().splitlines()] == [f"id-{i}" for i in range(40)]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_what_is_done(
    model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:  # G5
    whole = texts_of(batch(model, rows).out)
    steps = 0
    step = LLMEngine.step

    def interrupted(engine: LLMEngine) -> Any:
        nonlocal steps
        steps += 1
        if steps == 40:
            os.kill(os.getpid(), number)
        return step(engine)

    monkeypatch.setattr(LLMEngine, "step", interrupted)
    # Tests may run where SIGINT is ignored, and what is ignored stays so.
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
    out = tmp_path / "out"
    result = batch(model, rows, "-o", out, "--max-num-seqs", "4")
    assert result.status == status
    assert result.err.startswith("chatpaged: stopped: ")
    assert result.err.endswith("; the same command with --resume goes on\n")
    done = texts_of(out.read_text())
    assert 0 < len(done) < 40
    assert done.items() <= whole.items()
    assert batch(model, rows, "-o", out, "--max-num-seqs", "4", "--resume").status == 0
    assert texts_of(out.read_text()) == whole
    steps = 0
    piped = batch(model, "--max-num-seqs", "4", stdin=rows.read_bytes())
    assert piped.status == status
    assert "cannot be resumed" in piped.err


# --- progress ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"a", b"a\n", b"a\nb", b"\n\na\n\n\nb\n\n", b"\n", b"a" * 2**20 + b"\n\nb\n"])
def test_rows_are_counted(text: bytes) -> None:
    stream = io.BytesIO(text)
    stream.readline()
    place = stream.tell()
    assert count_rows(stream) == sum(bool(line) for line in text.split(b"\n"))
    assert stream.tell() == place


@pytest.mark.parametrize("terminal", [False, True])
def test_the_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    err = Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", err)
    progress = BatchProgress(io.BytesIO(b"a\nb\nc\nd\n"), 1, shown=True)
    monkeypatch.setattr("chatpaged.cli.batch_progress._INTERVAL", -1.0)
    progress.update(BatchCounts(ok=1, failed=1, prompt_tokens=10, cached_tokens=5, generated=7))
    progress.close()
    written = err.text()
    if terminal:
        assert "3/4" in written
        assert "tokens/s, prefix hits 50%, 1 failed" in written
    else:
        assert written == ""
