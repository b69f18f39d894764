"""What was sent before."""

from __future__ import annotations

import stat
from pathlib import Path

from chatpaged.prompt_draft import Pasted, PromptDraft
from chatpaged.prompt_history import MOST_KEPT, HistoryWalk, PromptHistory, history_file


def texts(history: PromptHistory) -> list[str]:
    return [draft.text for draft in history.entries]


def filled(*entries: str, path: Path | None = None) -> PromptHistory:
    history = PromptHistory(path)
    for entry in entries:
        history.add(PromptDraft.of(entry))
    return history


def again(path: Path) -> list[str]:
    history = PromptHistory(path)
    history.merge(history.read())
    return texts(history)


def test_each_once_the_latest_last_and_none_blank() -> None:
    assert texts(filled("a", "b", " ", "a", "")) == ["b", "a"]
    assert len(texts(filled(*(str(i) for i in range(MOST_KEPT + 5))))) == MOST_KEPT


def test_it_is_kept_for_the_next_run_and_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.jsonl"
    history = filled("one\ntwo", "x", path=path)
    history.add(PromptDraft(("see ", Pasted("long\ntext"))))
    history.save()
    assert again(path) == ["one\ntwo", "x", "see long\ntext"]
    reader = PromptHistory(path)
    assert reader.read()[-1].parts == ("see ", Pasted("long\ntext"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    one, other = filled("a", path=path), filled("b", path=path)
    one.save()
    other.save()
    one.add(PromptDraft.of("c"))
    one.save()
    assert again(path) == ["a", "b", "c"]


def test_what_is_too_long_is_kept_in_memory_only(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = filled("x" * 50_000, "y", path=path)
    history.save()
    assert len(texts(history)) == 2
    assert again(path) == ["y"]


def test_a_file_that_cannot_be_read_or_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    history = filled("a", path=tmp_path)  # a directory
    assert history.read() == []
    history.save()
    assert texts(history) == ["a"]
    damaged = tmp_path / "history.jsonl"
    damaged.write_bytes(b'["ok"]\n\xff\n["half')
    assert again(damaged)[0] == "ok"
    assert filled("a").read() == []


def test_what_could_not_be_saved_is_saved_later(tmp_path: Path) -> None:
    path = tmp_path / "file" / "history.jsonl"
    path.parent.write_text("in the way")
    history = filled("a", "b", path=path)
    history.save()
    path.parent.unlink()
    history.add(PromptDraft.of("c"))
    history.save()
    assert again(path) == ["a", "b", "c"]


def test_it_lies_with_what_is_remembered_between_runs(tmp_path: Path) -> None:
    assert history_file().name == "prompt-history.jsonl"


def test_a_walk_brings_back_what_was_being_typed() -> None:
    walk = HistoryWalk(filled("a", "b"))

    def move(step: int, current: str) -> str | None:
        draft = walk.move(step, PromptDraft.of(current))
        return draft.text if draft is not None else None

    assert move(1, "typing") is None
    assert move(-1, "typing") == "b"
    assert move(-1, "b changed") == "a"
    assert move(-1, "a") is None
    assert move(1, "a") == "b changed"
    assert move(1, "b changed") == "typing"
    assert move(1, "typing") is None
    walk.end()
    assert move(-1, "new") == "b"
