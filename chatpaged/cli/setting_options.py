"""Options that stand for settings: made from them, and set by them when they are not given on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from chatpaged.presets import Preset, find_preset
from chatpaged.setting_groups import EXCLUSIVE, Setting, all_settings
from chatpaged.setting_kinds import Choice, Flag, Kind, Number, Size, parse_size
from chatpaged.settings import ResolvedSettings, resolve_settings, setting

F = TypeVar("F", bound=Callable[..., Any])
_META = "chatpaged.settings"
_PRESET = "chatpaged.preset"


class SettingsContext(click.Context):
    """A context in which settings stand in for options that were not given.

    Files are read when the first such option is met: never for `--help` or completion, so that a broken file is in nobody's way there.
    """

    def lookup_default(self, name: str, call: bool = True) -> Any:  # noqa: FBT001, FBT002 - click's signature
        """The value a setting gives to the parameter; else what click would take."""
        # click asks with call=False for what --help shows.
        value = _value_for(self, name) if call and not self.resilient_parsing else None
        if value is not None:
            return value
        return super().lookup_default(name) if call else super().lookup_default(name, call=False)


class SettingsCommand(click.Command):
    """A command whose options take settings as their defaults, by name: `sampling.top_p` is the default of `--top-p`."""

    context_class = SettingsContext


def settings_of(ctx: click.Context) -> ResolvedSettings:
    """The settings of this run, read once.

    Raises:
        SettingsError: a file or variable is wrong.
    """
    if _META not in ctx.meta:
        preset = preset_of(ctx)
        chosen = (preset.name, preset.values) if preset is not None else None
        ctx.meta[_META] = resolve_settings(os.environ, working_directory(), preset=chosen)
    found: ResolvedSettings = ctx.meta[_META]
    return found


def preset_of(ctx: click.Context) -> Preset | None:
    """The preset that the command line asks for with -p.

    Raises:
        SettingsError: there is none of this name, or a file is wrong.
    """
    name = ctx.meta.get(_PRESET)
    return find_preset(name, working_directory()) if name is not None else None


def working_directory() -> Path:
    """Where the command is run; a place that holds nothing if the directory has been removed meanwhile."""
    try:
        return Path.cwd()
    except OSError:
        return Path(os.devnull)


def origin_of(ctx: click.Context, name: str) -> str:
    """Where the value of a command's parameter comes from, such as `flag --top-p` or `user file .../config.toml`."""
    source = ctx.get_parameter_source(name)
    param = next(param for param in ctx.command.params if param.name == name)
    if source is ParameterSource.COMMANDLINE:
        return f"flag {max(param.opts, key=len)}"
    entry = setting_of(param)
    return str(settings_of(ctx).origin(entry.key)) if source is ParameterSource.DEFAULT_MAP and entry is not None else "default"


def setting_of(param: click.Parameter) -> Setting | None:
    """The setting that a parameter stands for: that of its long name, or of its long name without `no-` where the setting has an off."""
    return next((entry for entry in all_settings().values() if entry.flag in param.opts or _is_negative(entry, param)), None)


def _is_negative(entry: Setting, param: click.Parameter) -> bool:
    has_off = isinstance(entry.kind, Flag) or (isinstance(entry.kind, Choice) and entry.kind.off is not None)
    return has_off and _negative(entry) in param.opts


def _negative(entry: Setting) -> str:
    return "--no-" + entry.flag.removeprefix("--")


def _value_for(ctx: click.Context, name: str) -> Any:
    param = next((param for param in ctx.command.params if param.name == name), None)
    entry = setting_of(param) if param is not None else None
    if param is None or entry is None or _rival_is_given(ctx, entry):
        return None
    resolved = settings_of(ctx)
    value = resolved.value(entry.key)
    if entry.key not in resolved.origins or value is None:
        return None
    if _is_negative(entry, param):
        return value == (entry.kind.off if isinstance(entry.kind, Choice) else False)
    # As text, so that the option's own type reads it in the same way as a value from the command line.
    return value if isinstance(value, bool) else str(entry.kind.plain(value))


def _rival_is_given(ctx: click.Context, entry: Setting) -> bool:
    """Whether the command line gives the option that excludes this one. click handles options that are given before all others."""
    rival = EXCLUSIVE.get(entry.key)
    flag = setting(rival).flag if rival is not None else None
    return any(
        flag in param.opts and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE for param in ctx.command.params
    )


def preset_option(complete: Callable[..., Any]) -> Callable[[F], F]:
    """`-p NAME`: the values of a preset stand in for settings. It is looked at before all options that settings can set."""

    def note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        del param
        ctx.meta[_PRESET] = value

    return click.option(
        "-p", "--preset", metavar="NAME", is_eager=True, expose_value=False, callback=note, shell_complete=complete, help="Use a preset."
    )


def add_options(function: F, options: Iterable[Callable[[F], F]]) -> F:
    """Adds options to a command in the order in which its help lists them."""
    for option in reversed(tuple(options)):
        function = option(function)
    return function


# --- options made from settings --------------------------------------------------------------------------------------


def setting_option(key: str, *names: str) -> Callable[[F], F]:
    """A click option for a setting: its name, type, help and default. `names` are further names, such as `-m`."""
    entry = setting(key)
    text = entry.text + (f"  [default: {entry.unset}]" if entry.unset else "")
    if isinstance(entry.kind, Flag):
        return click.option(f"{entry.flag}/{_negative(entry)}", *names, default=entry.default, show_default=True, help=text)
    if isinstance(entry.kind, Choice) and entry.kind.off is not None:
        return click.option(_negative(entry), *names, is_flag=True, help=f"{entry.text[:-1]}: none.")
    return click.option(
        entry.flag,
        *names,
        type=click_type(entry.kind),
        metavar="SIZE" if isinstance(entry.kind, Size) else None,
        default=entry.kind.plain(entry.default) if isinstance(entry.kind, Size) and entry.default is not None else entry.default,
        show_default=entry.default is not None,
        help=text,
    )


def group_options(group: str) -> tuple[Callable[[F], F], ...]:
    """An option for each setting of a group."""
    return tuple(setting_option(entry.key) for entry in all_settings().values() if entry.group == group)


def click_type(kind: Kind) -> Any:
    """What click takes as the type of an option with the same values as a setting."""
    if isinstance(kind, Choice):
        return click.Choice(kind.options)
    if isinstance(kind, Size):
        return _size
    if isinstance(kind, Number) and kind.whole:
        return click.IntRange(int(kind.minimum), None if kind.maximum is None else int(kind.maximum))
    if isinstance(kind, Number):
        return click.FloatRange(kind.minimum, kind.maximum, min_open=kind.above)
    return click.STRING


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
