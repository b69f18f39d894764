"""An output that is added to: torn lines, failed rows, two writers, and manifests that differ."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from chatpaged.batch_file import OutputFile
from chatpaged.batch_manifest import check_manifest, input_identity, make_manifest, manifest_path, model_digest, write_manifest
from chatpaged.errors import InvalidRequestError
from tests.cli.scripted_model import make_model


def line(number: int, *, ok: bool = True) -> bytes:
    row: dict[str, object] = {
        "id": f"batch_req_{number}",
        "custom_id": f"line-{number}",
        "response": {} if ok else None,
        "error": None if ok else {},
    }
    return json.dumps(row).encode() + b"\n"


# --- the file ------------------------------------------------------------------------------------------------------------


def test_a_new_file_is_private_and_takes_lines(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with OutputFile(path) as output:
        assert (output.is_regular, output.is_empty) == (True, True)
        output.write(line(1))
        output.write(line(2))
        assert not output.is_empty
    assert path.read_bytes() == line(1) + line(2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_there_is_not_lost_by_accident(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(line(1))
    with pytest.raises(InvalidRequestError, match="out exists; --resume goes on with it, --overwrite starts anew"):
        OutputFile(path)
    assert path.read_bytes() == line(1)
    with OutputFile(path, overwrite=True) as output:
        assert output.is_empty
    OutputFile(path).close()  # an empty file, such as one from mktemp, holds nothing to lose


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot write .*: No such file or directory"):
        OutputFile(tmp_path / "missing/out")
    with pytest.raises(InvalidRequestError, match=r"cannot write .*: Is a directory"):
        OutputFile(tmp_path)


def test_devices_are_written_to_as_they_are() -> None:
    with OutputFile(Path(os.devnull)) as output:
        assert not output.is_regular
        output.write(line(1))


def test_two_batches_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with OutputFile(path), pytest.raises(InvalidRequestError, match="another batch writes"):
        OutputFile(path, overwrite=True)
    OutputFile(path).close()


def test_a_file_system_without_locks_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    OutputFile(tmp_path / "out").close()


def test_rows_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(line(3) + line(1, ok=False) + line(100))
    with OutputFile(path, resume=True) as output:
        finished = output.finished()
    assert [number for number in range(200) if number in finished] == [1, 3, 100]
    assert (finished.ok, finished.failed) == (2, 1)


@pytest.mark.parametrize("torn", [b"{", line(2)[:-1], line(2)[:20], b"\xff\x00"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:  # H2
    path = tmp_path / "out"
    path.write_bytes(line(1) + torn)
    with OutputFile(path, resume=True) as output:
        finished = output.finished()
        assert (1 in finished, 2 in finished) == (True, False)
        output.write(line(2))
    assert path.read_bytes() == line(1) + line(2)


@pytest.mark.parametrize("damage", [b"not a row\n", b"\n", b"\xff\n", line(1)])
def test_other_damage_is_told(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(line(1) + damage + line(2))
    with OutputFile(path, resume=True) as output, pytest.raises(InvalidRequestError, match="line 2 of it is no output of a batch"):
        output.finished()
    assert path.read_bytes() == line(1) + damage + line(2)


def test_failed_rows_are_taken_out_to_run_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(line(1) + line(2, ok=False) + line(3) + b"torn")
    path.chmod(0o640)
    with OutputFile(path, resume=True) as output:
        finished = output.finished(without_failed=True)
        assert [number in finished for number in (1, 2, 3)] == [True, False, True]
        assert (finished.ok, finished.failed) == (2, 0)
        with pytest.raises(InvalidRequestError, match="another batch"):
            OutputFile(path, resume=True)
        output.write(line(2))
        output.write(line(4))
    assert path.read_bytes() == line(1) + line(3) + line(2) + line(4)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_is_full_leaves_failed_rows_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.write_bytes(line(1) + line(2, ok=False))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with OutputFile(path, resume=True) as output, pytest.raises(OSError, match="No space left"):
        output.finished(without_failed=True)
    assert path.read_bytes() == line(1) + line(2, ok=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


# --- the manifest --------------------------------------------------------------------------------------------------------

MODEL = {"name": "m", "digest": "a"}
SOURCE = {"size": 5, "start": 0, "digest": "b"}
PARAMETERS: dict[str, Any] = {"system": None, "sampling": {"temperature": 0.5, "stop": ("a",)}}


def test_a_manifest_that_fits(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    manifest = make_manifest(MODEL, SOURCE, PARAMETERS)
    write_manifest(output, manifest)
    check_manifest(output, make_manifest(MODEL, SOURCE, PARAMETERS))
    assert manifest_path(output) == tmp_path / "out.jsonl.manifest.json"
    assert stat.S_IMODE(manifest_path(output).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("model", "source", "parameters", "part"),
    [
        (MODEL | {"name": "other"}, SOURCE, PARAMETERS, 'model.name was "m" and is "other"'),
        (MODEL, SOURCE | {"size": 6}, PARAMETERS, "input.size was 5 and is 6"),
        (MODEL, None, PARAMETERS, "input was {"),
        (MODEL, SOURCE, PARAMETERS | {"system": "Be brief."}, 'system was null and is "Be brief."'),
        (MODEL, SOURCE, PARAMETERS | {"sampling": {"temperature": 0, "stop": ("a",)}}, "sampling.temperature was 0.5 and is 0"),
        (
            MODEL | {"digest": "z"},
            SOURCE,
            PARAMETERS | {"system": "x" * 99},
            'model.digest was "a" and is "z"; system was null and is "xxx',
        ),
    ],
)
def test_what_differs_is_named(tmp_path: Path, model: dict[str, Any], source: Any, parameters: dict[str, Any], part: str) -> None:
    output = tmp_path / "out"
    write_manifest(output, make_manifest(MODEL, SOURCE, PARAMETERS))
    with pytest.raises(InvalidRequestError) as refused:
        check_manifest(output, make_manifest(model, source, parameters))
    assert part in str(refused.value)


@pytest.mark.parametrize(("text", "part"), [(None, "there is no out.manifest.json"), ("{", "cannot be read"), ("[]", "version")])
def test_manifests_that_are_missing_or_damaged(tmp_path: Path, text: str | None, part: str) -> None:
    output = tmp_path / "out"
    if text is not None:
        manifest_path(output).write_text(text)
    with pytest.raises(InvalidRequestError, match=part):
        check_manifest(output, make_manifest(MODEL, SOURCE, PARAMETERS))


def test_inputs_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a" * 3_000_000)
    with path.open("rb") as file:
        first = input_identity(file)
        assert file.read(1) == b"a"
    os.utime(path, (0, 0))  # a copy of a file is the same input
    with path.open("rb") as file:
        assert input_identity(file) == first
    for place in (0, 2_999_999):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"b")
        with path.open("rb") as file:
            assert input_identity(file) != first
    assert input_identity(io.BytesIO(b"a")) is None
    with os.fdopen(os.pipe()[0], "rb") as pipe:
        assert input_identity(pipe) is None


def test_models_are_told_apart(tmp_path: Path) -> None:
    directory = make_model(tmp_path / "model")
    first = model_digest(directory)
    assert model_digest(make_model(tmp_path / "copy")) == first
    (directory / "tokenizer_config.json").write_text("{}")
    assert model_digest(directory) != first
