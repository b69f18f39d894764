"""`chatpaged models` for what is on this machine already."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chatpaged.model_usage import record_use
from chatpaged.paths import aliases_file, models_dir, state_dir
from tests.cli.runner import COMMAND, REPOSITORY, Result, killed_when_stuck, read_terminal, run_inside, run_process
from tests.fake_hub import environment, safetensors

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
    "eos_token_id": [1, 5],
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything under one directory."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def models(*arguments: str) -> Result:
    return run_inside("models", *arguments)


def save(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "model.safetensors").write_bytes(safetensors(elements=1_500_000))
    return directory


# --- list ----------------------------------------------------------------------------------------------------------------


def test_a_machine_that_has_nothing(home: Path) -> None:
    listed = models("list")
    assert listed.status == 0
    assert listed.out.splitlines()[0].split() == ["NAME", "FAMILY", "PARAMETERS", "SIZE", "TYPE", "CONTEXT", "LAST", "USED"]
    assert "SmolLM2-135M-Instruct" in listed.out
    assert "not fetched yet" in listed.out
    assert list(home.iterdir()) == [], "looking makes nothing"


def test_list_in_short_and_as_json(home: Path) -> None:
    save(home / "mine")
    assert models("alias", "own", str(home / "mine")).status == 0
    listed = models("ls")
    (line,) = (line for line in listed.out.splitlines() if line.startswith("mine"))
    assert line.split("  ")[0] == "mine (own)"
    assert line.split()[2:8] == ["llama", "1.5M", "6.0", "MB", "float32", "64"]
    assert line.endswith("never")
    entry = next(entry for entry in models("ls", "--json").json["models"] if entry["name"] == "mine")
    assert entry["parameters"] == 1_500_000
    assert entry["directory"] == str(home / "mine")
    assert entry["aliases"] == ["own"]


def test_models_with_one_name_are_listed_apart(home: Path) -> None:
    places = [save(home / "one/mine"), save(home / "other/mine"), save(models_dir() / "gguf/mine-1")]
    (places[2] / "chatpaged.json").write_text(json.dumps({"name": "mine", "source": str(home / "gone/mine.gguf")}))
    (home / "link").symlink_to(places[0])
    for alias, place in (("a", places[0]), ("b", places[1]), ("c", home / "link")):
        assert models("alias", alias, str(place)).status == 0
    entries = {entry["name"]: entry for entry in models("list", "--json").json["models"]}
    assert {name: entry["aliases"] for name, entry in entries.items()} == {
        "SmolLM2-135M-Instruct": [],
        str(places[0]): ["a", "c"],
        str(places[1]): ["b"],
        str(home / "gone/mine.gguf"): [],
    }
    assert {entry["directory"] for entry in entries.values()} == {None, *map(str, places)}


def test_names_are_shown_harmlessly_on_a_terminal(home: Path) -> None:
    save(home / "a\x1b[31mb")
    assert models("alias", "own", str(home / "a\x1b[31mb")).status == 0
    status, shown = on_terminal("models", "list")
    assert status == 0
    assert "\x1b[31m" not in shown
    assert "a␛[31mb" in shown


def test_list_loads_nothing_heavy(home: Path) -> None:  # and is fast
    save(home / "mine")
    code = (
        "import sys\nfrom chatpaged.cli.main import cli\ncli.main(['models', 'list'], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'tokenizers', 'safetensors', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([COMMAND[0], "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.splitlines()[-1] in {"[]", "['tokenizers']"}


# --- alias ---------------------------------------------------------------------------------------------------------------


def test_aliases(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(home / "mine")
    monkeypatch.chdir(home)
    assert models("alias", "own", "mine") == Result(0, "", "")
    assert models("alias").out == f"own  {home}/mine\n", "from anywhere"
    assert models("alias", "--json").json == {"own": f"{home}/mine"}
    models("show", "nothing").failed(3, "no model 'nothing'")
    models("rm", "own").failed(2, "'own' is an alias of mine", "alias --remove own")
    assert models("alias", "--remove", "own") == Result(0, "", "")
    assert models("alias").out == ""


def test_aliases_of_paths_are_plain_and_changes_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(home / "mine")
    save(home / "other")
    monkeypatch.chdir(home / "other")
    assert models("alias", "own", "../mine") == Result(0, "", "")
    assert models("alias", "own", "../other/../mine/") == Result(0, "", ""), "the same"
    assert models("alias", "own", ".") == Result(0, "", f"chatpaged: own stood for {home}/mine before\n")
    assert models("alias", "--json").json == {"own": f"{home}/other"}


def test_a_broken_file_of_aliases(home: Path) -> None:
    aliases_file().parent.mkdir(parents=True)
    aliases_file().write_text("{")
    models("alias", "a", "starter").failed(3, str(aliases_file()), "mend it, or delete it")
    models("list").failed(3, str(aliases_file()), "mend it, or delete it")


def test_a_use_by_any_path_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(home / "mine")
    (home / "link").symlink_to(home / "mine")
    assert models("alias", "own", str(home / "mine")).status == 0
    monkeypatch.chdir(home / "mine")
    for place in ("../mine", "../link"):
        (state_dir() / "model-usage.json").unlink(missing_ok=True)
        record_use(Path(place))
        assert next(entry for entry in models("list", "--json").json["models"] if entry["name"] == "mine")["last_used"]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("Starter", "org/name"), 2, "starter model's own name"),
        (("smollm2-135m-instruct", "org/name"), 2, "starter model's own name"),
        (("own",), 2, "what does 'own' stand for?"),
        (("own", "nothing"), 3, "no model 'nothing'"),
        (("own", "nothng-like-smollm2-135m-instruct"), 3, "no model"),
        (("starter", "org/name"), 2, "starter model's own name"),
        (("SmolLM2-135M-Instruct", "org/name"), 2, "starter model's own name"),
        (("a/b", "org/name"), 2, "an alias is made of"),
        (("--remove", "own"), 2, "no alias 'own'; there are: none"),
        (("--remove", "own", "x"), 2, "takes one name"),
        (("x", "y", "z"), 2, "unexpected extra argument"),
    ],
)
def test_aliases_that_make_no_sense(arguments: tuple[str, ...], status: int, reason: str) -> None:
    models("alias", *arguments).failed(status, reason)


# --- show ----------------------------------------------------------------------------------------------------------------


@pytest.mark.starter
def test_show(starter_model: Path) -> None:
    card = models("show", str(starter_model), "--json", "--kv-blocks", "10").json
    assert (card["family"], card["parameters"], card["context"]) == ("llama", 134_515_008, 8192)
    assert card["special_tokens"]["<|im_end|>"] == 2
    assert card["stop_token_ids"] == [2]
    assert card["engine"]["supported"] is True
    assert card["engine"]["kv_bytes_per_token"] == 45 * 1024 // 2  # fp16
    assert (card["engine"]["weights"], card["engine"]["kv_dtype"]) == ("int4", "fp16")
    assert card["engine"]["kv_tokens"] == 160
    text = models("show", str(starter_model)).out
    assert "code path          native " in text
    assert "attention          native_paged: it reads keys and values where they lie\n" in text
    assert "22.5 KiB a token as fp16, 360.0 KiB a block of 16\n" in text
    assert "as int4 on cpu: the weights are of 4 bits already: nothing is lost\n" in text
    wide = models("show", str(starter_model), "--dtype", "float64").out
    assert "code path          torch decoder: its arithmetic is float32, not float64\n" in wide
    assert "90.0 KiB a token as float64, " in wide
    assert re.search(r"^weights +1\.0 GiB as float64 on cpu$", wide, re.MULTILINE)
    assert models("show", str(starter_model), "--template").out.rstrip("\n") == (starter_model / "chat_template.jinja").read_text().rstrip(
        "\n"
    )


@pytest.mark.starter
def test_show_what_cannot_run(home: Path, starter_model: Path) -> None:
    directory = save(home / "mine")
    shutil.copy(starter_model / "tokenizer.json", directory)
    (directory / "generation_config.json").write_text('{"eos_token_id": 7}')
    config = CONFIG | {"layer_types": ["linear_attention"] * 2}
    (directory / "config.json").write_text(json.dumps(config))
    shown = models("show", str(directory))
    assert shown.status == 0
    assert "supported          no: LlamaForCausalLM has layers of type linear_attention" in shown.out
    assert "chat template      none" in shown.out
    assert "stop ids           1, 5, 7\n" in shown.out
    models("show", str(directory), "--template").failed(3, "no chat template in mine")


@pytest.mark.starter
def test_show_names_end_tokens_that_are_no_ids(home: Path, starter_model: Path) -> None:
    directory = save(home / "mine")
    shutil.copy(starter_model / "tokenizer.json", directory)
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, null]}')
    models("show", str(directory)).failed(3, "eos_token_id in", "generation_config.json is [1, null]")


def test_show_needs_the_model() -> None:
    models("show", "org/name").failed(3, "org/name is not on this machine; 'chatpaged models pull org/name' gets it")
    models("show", "starter").failed(3, "models pull SmolLM2-135M-Instruct")
    models("show", "smol").failed(3, "no model 'smol'", "near names: SmolLM2-135M-Instruct")


def test_show_damaged_models(home: Path) -> None:
    directory = save(home / "mine")
    models("show", str(directory)).failed(3, "no tokenizer.json")
    (directory / "config.json").write_text("{")
    models("show", str(directory)).failed(3, "cannot read", "config.json")


# --- pull and rm ---------------------------------------------------------------------------------------------------------


def test_pull_of_what_is_here_checks_it(home: Path) -> None:
    directory = save(home / "mine")
    assert models("pull", str(directory)).out == f"mine: 1.5M parameters, 6.0 MB in {directory}\n"
    (directory / "model.safetensors").write_bytes(safetensors()[:-1])
    models("pull", str(directory)).failed(3, "cut short")


def test_rm(home: Path) -> None:
    directory = save(home / "mine")
    models("rm", "-y", str(directory)).failed(3, "directory of your own")
    assert directory.is_dir()
    models("rm", "-y", "starter").failed(3, "nothing to delete")
    save(models_dir() / "SmolLM2-135M-Instruct")
    models("rm", "starter").failed(2, "takes 6.0 MB; say --yes")
    assert models("rm", "starter", "--yes") == Result(0, "deleted SmolLM2-135M-Instruct (6.0 MB)\n", "")
    assert not (models_dir() / "SmolLM2-135M-Instruct").exists()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 130), ("\n", 130)])
def test_rm_asks_on_a_terminal(answer: str, status: int) -> None:
    directory = save(models_dir() / "SmolLM2-135M-Instruct")
    ended, shown = on_terminal("models", "rm", "starter", keys=answer)
    assert "delete SmolLM2-135M-Instruct (6.0 MB)? [y/N]:" in shown
    assert ended == status
    assert directory.exists() == (status != 0)


def test_group_without_a_command() -> None:
    shown = run_process("models", "--help")
    assert shown.status == 0
    assert [line.split()[0] for line in shown.out.partition("Commands:\n")[2].splitlines()] == ["alias", "list", "pull", "rm", "show"]
    models("nonsense").failed(2, "No such command 'nonsense'")


def on_terminal(*arguments: str, keys: str = "") -> tuple[int, str]:
    """Runs the command with a terminal for all streams. Returns status and what it showed."""
    master, slave = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=REPOSITORY)
    os.close(slave)
    os.write(master, keys.encode())
    with killed_when_stuck(process):
        shown = read_terminal(master)
        process.wait()
    return process.returncode, shown
