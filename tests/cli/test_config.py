"""`chatpaged config`."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from chatpaged.setting_groups import all_settings
from tests.cli.runner import COMMAND, Result, run_inside, run_process


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository to work in, and a user with no files."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower() / "deep"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/src").mkdir()
    monkeypatch.chdir(tmp_path / "repo/src")
    return tmp_path


def config(*arguments: str) -> Result:
    return run_inside("config", *arguments)


def good(*arguments: str) -> str:
    result = config(*arguments)
    assert (result.status, result.err) == (0, "")
    return result.out


def user_file(place: Path) -> Path:
    return place / "config/deep/chatpaged/config.toml"


# --- show ----------------------------------------------------------------------------------------------------------------


def test_show_is_toml_that_says_the_same() -> None:
    good("set", "system", 'a "b"\n\\ \x1b[31m ü')
    good("set", "engine.kv_memory", "2G")
    text = good("show")
    shown = tomllib.loads(text)
    assert shown.pop("keys")["newline"] == "shift+enter,alt+enter,ctrl+j"
    assert shown.pop("app")["theme"] == "textual-dark"
    assert shown == {
        "system": 'a "b"\n\\ \x1b[31m ü',
        "engine": {
            "device": "auto",
            "dtype": "auto",
            "quantize": "auto",
            "kv_dtype": "auto",
            "attention": "auto",
            "enforce_eager": False,
            "kv_memory": "2G",
            "disk_cache": "0",
            "block_size": 16,
            "max_num_seqs": 32,
            "prefix_caching": True,
        },
        "output": {"thinking": "show", "color": "auto"},
    }
    assert "\x1b" not in text
    assert "# model is not set: the starter model\n" in text
    assert tomllib.loads(good("show", "--origin")) == tomllib.loads(text)
    assert len(text.splitlines()) == len(all_settings())


def test_show_one() -> None:
    assert good("show", "engine.block_size") == "16\n"
    assert good("show", "engine.prefix_caching") == "true\n"
    assert good("show", "model") == "\n"
    good("set", "engine.kv_memory", "1536M")
    assert good("show", "engine.kv_memory") == "1536M\n"
    assert good("show", "--json", "engine.kv_memory") == f"{3 * 2**29}\n"
    assert good("show", "output") == 'output.thinking = "show"\noutput.color = "auto"\n'
    assert json.loads(good("show", "--json", "output")) == {"output": {"thinking": "show", "color": "auto"}}
    config("show", "engine.kvmemory").failed(2, "engine.kvmemory", "did you mean engine.kv_memory")
    config("show", "").failed(2, "no setting ''")


def test_show_origins(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good("set", "model", "m")
    (place / "repo/chatpaged.toml").write_text("\nsystem = 's'\n")
    monkeypatch.setenv("CHATPAGED_ENGINE_THREADS", "1")
    text = good("show", "--origin")
    assert f'model = "m"  # user file {user_file(place)}:1\n' in text
    assert f'system = "s"  # project file {place}/repo/chatpaged.toml:2\n' in text
    assert "engine.threads = 1  # environment CHATPAGED_ENGINE_THREADS\n" in text
    assert "engine.block_size = 16  # default\n" in text
    shown = json.loads(good("show", "--origin", "--json"))
    assert shown["engine"]["threads"] == {"value": 1, "origin": "environment CHATPAGED_ENGINE_THREADS"}
    assert shown["sampling"]["top_k"] == {"value": None, "origin": "default"}


def test_show_tells_of_everything_that_is_wrong(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "repo/chatpaged.toml").write_text("modle = 'm'\nsystem = 's'\nengine.threads = 0\n")
    monkeypatch.setenv("CHATPAGED_ENGINE_DEVICE", "tpu")
    result = config("show", "system")
    assert (result.status, result.out) == (2, "s\n")
    lines = result.err.splitlines()
    assert [line.startswith("chatpaged: ") for line in lines] == [True] * 3
    assert [part in line for part, line in zip(("modle", "engine.threads", "tpu"), lines, strict=True)] == [True] * 3


# --- path ----------------------------------------------------------------------------------------------------------------


def test_path(place: Path) -> None:  # K2
    shown = json.loads(good("path", "--json"))
    assert shown.pop("project_settings") is None
    assert {name: (entry["path"], entry["exists"]) for name, entry in shown.items()} == {
        "user_settings": (f"{place}/config/deep/chatpaged/config.toml", False),
        "config": (f"{place}/config/deep/chatpaged", False),
        "data": (f"{place}/data/deep/chatpaged", False),
        "state": (f"{place}/state/deep/chatpaged", False),
        "cache": (f"{place}/cache/deep/chatpaged", False),
        "models": (f"{place}/cache/deep/chatpaged/models", False),
    }
    good("set", "model", "m")
    good("set", "--project", "model", "m")
    shown = json.loads(good("path", "--json"))
    assert shown["user_settings"]["exists"] is True
    assert shown["project_settings"] == {"path": f"{place}/repo/src/chatpaged.toml", "exists": True}
    text = good("path")
    assert f"{place}/cache/deep/chatpaged  (does not exist)\n" in text
    assert f"{place}/config/deep/chatpaged/config.toml\n" in text
    assert list((place / "home").iterdir()) == []


# --- set and unset -------------------------------------------------------------------------------------------------------


def test_set_makes_private_files(place: Path) -> None:  # K3
    old = os.umask(0o022)
    try:
        good("set", "sampling.temperature", "0.5")
    finally:
        os.umask(old)
    file = user_file(place)
    assert file.read_text() == "[sampling]\ntemperature = 0.5\n"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, file.parent, file.parent.parent)] == [0o600, 0o700, 0o700]


def test_set_refuses_before_it_writes(place: Path) -> None:
    config("set", "sampling.temperature", "hot").failed(2, "sampling.temperature must be a number between 0 and 100, not 'hot'")
    config("set", "sampling.temprature", "1").failed(2, "did you mean sampling.temperature?")
    config("set", "trust_remote_code", "true").failed(2, "cannot be set", "--trust-remote-code")
    config("set", "model").failed(2, "VALUE")
    assert not user_file(place).exists()
    good("set", "sampling.top_k", "--", "-1")
    good("set", "engine.kv_blocks", "8")
    config("set", "engine.kv_memory", "2G").failed(2, "engine.kv_blocks", "unset")
    user_file(place).write_text("[")
    config("set", "model", "m").failed(2, str(user_file(place)), "not a TOML file")
    assert user_file(place).read_text() == "["


def test_a_file_with_a_mistake_can_be_mended(place: Path) -> None:
    good("set", "model", "m")
    with user_file(place).open("a") as file:
        file.write("modle = 'x'\n[engine]\nthreads = 0\n")
    good("set", "engine.threads", "1")
    good("unset", "modle")
    assert good("show", "engine.threads") == "1\n"


def test_unset(place: Path) -> None:
    good("set", "model", "m")
    good("unset", "model")
    assert user_file(place).read_text() == ""
    result = config("unset", "model")
    assert (result.status, result.out) == (0, "")
    assert result.err == f"chatpaged: note: model was not set in {user_file(place)}\n"
    config("unset", "modle").failed(2, "did you mean model?")


def test_project_file(place: Path) -> None:
    good("set", "--project", "system", "s")
    file = place / "repo/src/chatpaged.toml"
    assert file.read_text() == 'system = "s"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    file.rename(place / "repo/chatpaged.toml")
    good("set", "--project", "model", "m")
    assert (place / "repo/chatpaged.toml").read_text() == 'system = "s"\nmodel = "m"\n'
    good("unset", "--project", "system")
    assert (place / "repo/chatpaged.toml").read_text() == 'model = "m"\n'
    assert not user_file(place).exists()


def test_a_relative_model_is_seen_from_where_it_was_set(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "repo/chatpaged.toml").touch()
    good("set", "model", "../m")
    good("set", "--project", "model", "./p")
    assert tomllib.loads(user_file(place).read_text()) == {"model": f"{place}/repo/m"}
    assert (place / "repo/chatpaged.toml").read_text() == 'model = "./src/p"\n'
    monkeypatch.chdir(place / "repo")
    assert good("show", "model") == f"{place}/repo/src/p\n"


def test_set_says_when_it_has_no_effect(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good("set", "--project", "model", "p")
    result = config("set", "model", "m")
    assert (result.status, result.out) == (0, "")
    assert result.err == f"chatpaged: note: project file {place}/repo/src/chatpaged.toml ranks before {user_file(place)}\n"
    monkeypatch.setenv("CHATPAGED_MODEL", "e")
    assert "environment variable CHATPAGED_MODEL ranks before" in config("set", "--project", "model", "p").err


# --- places that cannot be written or are gone -----------------------------------------------------------------------------


def test_a_home_that_cannot_be_written() -> None:
    # Not even root could make a directory there.
    env = {"HOME": "/dev/null/nowhere", "PATH": os.environ["PATH"]}
    assert run_process("config", "show", "model", env=env) == Result(0, "\n", "")
    assert run_process("config", "path", env=env).status == 0
    assert run_process("config", "unset", "model", env=env).status == 0
    run_process("config", "set", "model", "m", env=env).failed(1, "cannot write the settings to /dev/null/nowhere/")


def test_a_directory_that_is_gone(place: Path) -> None:
    (place / "repo/src").rmdir()
    assert good("show", "engine.block_size") == "16\n"
    config("set", "--project", "model", "m").failed(2, "current directory")


def test_nothing_else_writes_settings(place: Path) -> None:  # K9
    config("show")
    config("path")
    run_inside("ask", "--temperature", "0.1", "-m", "no-such-model", "hi")
    run_inside("completion", "bash")
    assert sorted(each.name for each in place.iterdir()) == ["home", "repo"]
    assert [each.name for each in (place / "repo").rglob("*") if each.is_file()] == []


def test_several_at_once_lose_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}
    keys = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens"]
    processes = [
        subprocess.Popen([*COMMAND, "config", "set", f"sampling.{key}", "1"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
        for key in keys
    ]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [(b"", 0)] * len(keys)
    text = (tmp_path / "config/chatpaged/config.toml").read_text()
    assert [key for key in keys if f"{key} = 1" not in text] == []


def test_negative_values_are_no_options() -> None:
    assert config("set", "sampling.presence_penalty", "-1").status == 0
    assert config("show", "sampling.presence_penalty").out == "-1.0\n"
    config("set", "sampling.top_k", "5", "--projct").failed(2, "--projct")


@pytest.mark.parametrize("value", ["nonsense", "a", "", "ctrl+n,"])
def test_keys_that_are_none_are_refused(place: Path, value: str) -> None:
    result = config("set", "keys.new_chat", value)
    assert (result.status, result.out) == (2, "")
    assert "keys.new_chat must be keys such as ctrl+n" in result.err
    assert not user_file(place).exists()
    user_file(place).parent.mkdir(parents=True, exist_ok=True)
    user_file(place).write_text(f"[keys]\nnew_chat = '{value}'\n")
    assert "new_chat must be keys" in config("show").err
    good("set", "keys.new_chat", "Ctrl+F9")
    assert tomllib.loads(good("show"))["keys"]["new_chat"] == "ctrl+f9"
