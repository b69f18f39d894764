"""Settings as defaults of options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from chatpaged.cli.ask import command as ask
from chatpaged.cli.main import COMMANDS, cli
from chatpaged.cli.run import command as app
from chatpaged.cli.setting_options import SettingsCommand, origin_of, setting_of, setting_option
from chatpaged.setting_groups import all_settings
from chatpaged.setting_kinds import Number
from tests.cli.runner import run_inside

FLAGS = {"engine.prefix_caching", "output.color", "app.sidebar", "app.engine_panel"}  # they take no value
SAMPLES = ("-3", "-2", "-1", "0", "0.5", "1", "2", "24", "32", "100", "101", "1e9", "nan", "x", "auto", "cpu", "2G", "show")


@click.command("probe", cls=SettingsCommand)
@setting_option("model", "-m")
@setting_option("sampling.temperature")
@setting_option("engine.kv_blocks")
@setting_option("engine.kv_memory")
@setting_option("engine.block_size")
@setting_option("engine.prefix_caching")
@setting_option("output.thinking")
@setting_option("output.color")
@click.option("--other", default="own")
@click.pass_context
def probe(ctx: click.Context, /, **values: Any) -> None:
    ctx.obj.update({name: (value, origin_of(ctx, name)) for name, value in values.items()})


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, in a directory without a project file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chatpaged").mkdir()
    return tmp_path / "chatpaged/config.toml"


def run(*arguments: str) -> dict[str, tuple[Any, str]]:
    seen: dict[str, tuple[Any, str]] = {}
    probe.main(list(arguments), prog_name="probe", standalone_mode=False, obj=seen)
    return seen


def test_without_settings_nothing_changes(user: Path) -> None:
    assert run() == {
        "model": (None, "default"),
        "temperature": (None, "default"),
        "kv_blocks": (None, "default"),
        "kv_memory": (None, "default"),
        "block_size": (16, "default"),
        "prefix_caching": (True, "default"),
        "thinking": ("show", "default"),
        "no_color": (False, "default"),
        "other": ("own", "default"),
    }


def test_settings_take_the_place_of_defaults(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text(
        "model = 'm'\n[sampling]\ntemperature = 0\n[engine]\nkv_memory = '1.5G'\nprefix_caching = false\n"
        "[output]\nthinking = 'hide'\ncolor = 'never'\n"
    )
    monkeypatch.setenv("CHATPAGED_ENGINE_BLOCK_SIZE", "32")
    origin = f"user file {user}"
    assert run() == {
        "model": ("m", origin),
        "temperature": (0.0, origin),
        "kv_blocks": (None, "default"),
        "kv_memory": (3 * 2**29, origin),
        "block_size": (32, "environment CHATPAGED_ENGINE_BLOCK_SIZE"),
        "prefix_caching": (False, origin),
        "thinking": ("hide", origin),
        "no_color": (True, origin),
        "other": ("own", "default"),
    }
    seen = run("-m", "n", "--temperature", "2", "--prefix-caching", "--block-size", "8")
    assert (seen["model"], seen["temperature"]) == (("n", "flag --model"), (2.0, "flag --temperature"))
    assert (seen["prefix_caching"], seen["block_size"]) == ((True, "flag --prefix-caching"), (8, "flag --block-size"))


def test_a_flag_excludes_the_setting_of_its_rival(user: Path) -> None:
    user.write_text("engine.kv_memory = '1G'")
    seen = run("--kv-blocks", "8")
    assert (seen["kv_blocks"], seen["kv_memory"]) == ((8, "flag --kv-blocks"), (None, "default"))
    user.write_text("engine.kv_blocks = 8")
    seen = run("--kv-memory", "1G")
    assert (seen["kv_blocks"], seen["kv_memory"]) == ((None, "default"), (2**30, "flag --kv-memory"))
    user.write_text("output.color = 'auto'")
    assert run("--no-color")["no_color"] == (True, "flag --no-color")


def test_help_reads_no_files_and_shows_no_settings(user: Path) -> None:
    plain = CliRunner().invoke(probe, ["--help"]).output
    assert "[default: 16; x>=1]" in plain
    assert "[default: show]" in plain
    user.write_text("engine.block_size = 64\noutput.thinking = 'hide'")
    assert CliRunner().invoke(probe, ["--help"]).output == plain
    user.write_text("[")
    assert CliRunner().invoke(probe, ["--help"]).output == plain


def test_commands_without_such_options_read_no_files(user: Path) -> None:
    user.write_text("[")
    done = run_inside("completion", "fish")
    assert (done.status, done.err) == (0, "")


# --- the command that is there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(all_settings()))
def test_every_setting_has_an_effect(key: str) -> None:
    covered = {entry.key for param in (*ask.params, *app.params) if (entry := setting_of(param)) is not None}
    assert key in covered or key.startswith("keys.")  # these have no options; tests/ui/test_app_habits.py has them pressed


def test_options_with_settings_belong_to_commands_that_take_them() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        for leaf in leaves:
            if any(setting_of(param) is not None for param in leaf.params):
                assert isinstance(leaf, SettingsCommand), leaf.name


@pytest.mark.parametrize("key", [key for key in sorted(all_settings()) if key not in FLAGS and not key.startswith("keys.")])
@pytest.mark.parametrize("text", SAMPLES)
def test_options_and_settings_take_the_same_values(key: str, text: str) -> None:
    """What a setting takes, its option takes as the same value; what it refuses, the option or the parameters' own check refuses."""
    entry = all_settings()[key]
    param = next(param for param in (*ask.params, *app.params) if setting_of(param) == entry)
    try:
        value = entry.kind.parse(text)
    except ValueError:
        later = isinstance(entry.kind, Number) and (entry.kind.power_of_two or text == "nan" or entry.name == "top_p")
        if not later and not (entry.name == "kv_memory" and text in {"0", "0.5"}):
            with pytest.raises(click.BadParameter):
                param.type.convert(text, param, None)
    else:
        plain = str(entry.kind.plain(value))
        assert param.type.convert(plain, param, None) == value
        assert not isinstance(value, float) or math.isfinite(value)


# --- through the front door --------------------------------------------------------------------------------------------


@pytest.mark.starter
def test_ask_takes_settings(user: Path, starter_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text("system = 'Be brief'\nmodel = 'starter'")
    assert "system\nBe brief<" in run_inside("ask", "--dry-run", "hi").out
    Path("chatpaged.toml").write_text("system = 'From the project'")
    assert "system\nFrom the project<" in run_inside("ask", "--dry-run", "hi").out
    monkeypatch.setenv("CHATPAGED_SYSTEM", "From outside")
    assert "system\nFrom outside<" in run_inside("ask", "--dry-run", "hi").out
    assert "system\nFrom here<" in run_inside("ask", "--dry-run", "-s", "From here", "hi").out
    monkeypatch.setenv("CHATPAGED_MODEL", "no-such-model")
    run_inside("ask", "--dry-run", "hi").failed(3, "no-such-model")


def test_ask_refuses_wrong_settings(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text("\n[sampling]\ntop_p = 7\n")
    run_inside("ask", "hi").failed(2, f"{user}:3: sampling.top_p", "at most 1, not 7")
    # Given options do not make a wrong file right.
    run_inside("ask", "--top-p", "0.5", "hi").failed(2, f"{user}:3: sampling.top_p")
    user.unlink()
    monkeypatch.setenv("CHATPAGED_TEMPERATURE", "1")
    run_inside("ask", "hi").failed(2, "CHATPAGED_TEMPERATURE", "CHATPAGED_SAMPLING_TEMPERATURE")
    monkeypatch.delenv("CHATPAGED_TEMPERATURE")
    user.mkdir()
    run_inside("ask", "hi").failed(1, str(user), "Is a directory")
