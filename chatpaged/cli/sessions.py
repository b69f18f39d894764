"""`chatpaged sessions`: conversations found, read, exported, imported, renamed and deleted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chatpaged.cli.completion import complete_sessions
from chatpaged.cli.terminal import Status, configure_streams, printable
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.conversation import Conversation
    from chatpaged.foreign_sessions import Imported
    from chatpaged.store import Store

_SAME = {"ls": "list", "rm": "delete"}
_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text.")
_session = click.argument("session", shell_complete=complete_sessions)
_FORMATS = ("json", "markdown")


class _SessionsGroup(click.Group):
    """Knows short forms of commands, which its help does not list."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name or short form."""
        return super().get_command(ctx, _SAME.get(cmd_name, cmd_name))


@click.group("sessions", cls=_SessionsGroup, context_settings={"max_content_width": 100})
def command() -> None:
    """List, show, search, export, import, rename and delete conversations.

    SESSION is an id, the beginning or the end of one, a name, or a part of a title, where only one conversation is meant.
    """
    configure_streams()


@command.command("list")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="List the newest only.")
@_json_option
def list_command(*, limit: int | None, as_json: bool) -> None:
    """List conversations, the one that was last changed first (short: ls)."""
    from chatpaged.cli.session_view import session_json, table

    with _open(create=False) as store:
        sessions = store.sessions(limit)
    if as_json:
        _write_json({"sessions": [session_json(info) for info in sessions]})
    elif sessions:
        _write(*table(sessions))
    else:
        Status().note("no conversations have been saved yet")


@command.command("show")
@_session
@_json_option
def show_command(*, session: str, as_json: bool) -> None:
    """Show a conversation as it was last looked at; 'export' gives its other branches too."""
    from chatpaged.cli.session_view import conversation_json, conversation_lines

    with _open(create=False) as store:
        conversation = store.load(store.resolve(session).id)
    if as_json:
        _write_json(conversation_json(conversation))
    else:
        _write(*conversation_lines(conversation))


@command.command("search")
@click.argument("text", nargs=-1, required=True)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Messages to give at most.")
@_json_option
def search_command(*, text: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Find messages in which all words of TEXT occur, newest first. Parts of words are found as well."""
    from chatpaged.cli.session_view import hit_json, hit_lines

    with _open(create=False) as store:
        hits = store.search(" ".join(text), limit)
    if as_json:
        _write_json({"messages": [hit_json(hit) for hit in hits]})
    elif hits:
        _write(*hit_lines(hits))
    else:
        Status().note("nothing found")


@command.command("export")
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", shell_complete=complete_sessions)
@click.option("-a", "--all", "everything", is_flag=True, help="Export all conversations.")
@click.option("-f", "--format", "form", type=click.Choice(_FORMATS), help="Default: markdown into a .md file, otherwise json.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to a file that only you can read.")
def export_command(*, sessions: tuple[str, ...], everything: bool, form: str | None, as_json: bool, output: Path | None) -> None:
    """Export conversations. JSON keeps everything, all branches and token ids included; Markdown is to be read."""
    from chatpaged.session_formats import to_json, to_markdown

    if everything == bool(sessions):
        raise InvalidRequestError("name conversations to export, or say --all")
    if as_json and form == "markdown":
        raise InvalidRequestError("--json and --format markdown exclude each other")
    if form is None:
        form = "markdown" if not as_json and output is not None and output.suffix in {".md", ".markdown"} else "json"
    with _open(create=False) as store:
        ids = [info.id for info in reversed(store.sessions())] if everything else [store.resolve(text).id for text in sessions]
        conversations = [store.load(session_id) for session_id in dict.fromkeys(ids)]
    if form == "markdown":
        text = "\n".join(map(to_markdown, conversations))
    elif len(conversations) == 1:
        text = to_json(conversations[0])
    else:
        text = "[\n" + ",\n".join(to_json(conversation).rstrip("\n") for conversation in conversations) + "\n]\n"
    _deliver(text, output)


@command.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_json_option
def import_command(*, files: tuple[str, ...], as_json: bool) -> None:
    """Import conversations: exports of chatpaged, messages in OpenAI's form, ChatGPT's conversations.json. '-' is standard input.

    What is imported is text and never becomes control tokens. An id that is taken is replaced by a new one.
    """
    status = Status()
    read = [item for file in files for item in _read(file, status)]
    with _open() as store:
        conversations = _with_free_ids(store, [item.conversation for item in read])
        store.add_session(*conversations)
    if as_json:
        facts = [{"id": talk.id, "title": talk.title, "messages": len(talk.nodes)} for talk in conversations]
        _write_json({"sessions": facts})
    else:
        _write(*(f"{talk.id}  {talk.title or '-'} ({len(talk.nodes)} messages)" for talk in conversations))


@command.command("rename")
@_session
@click.argument("name")
@_json_option
def rename_command(*, session: str, name: str, as_json: bool) -> None:
    """Give a conversation a name. An empty one takes it away."""
    with _open(create=False) as store:
        session_id = store.resolve(session).id
        store.rename(session_id, name)
        title = store.load(session_id).title
    if as_json:
        _write_json({"id": session_id, "title": title})
    else:
        _write(f"{session_id}  {title}")


@command.command("delete")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...", shell_complete=complete_sessions)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_json_option
def delete_command(*, sessions: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete conversations for good (short: rm)."""
    with _open(create=False) as store:
        found = list({info.id: info for info in map(store.resolve, sessions)}.values())
        what = ", ".join(f"{info.id} ({info.title or '-'}, {info.num_messages} messages)" for info in found)
        if not yes:
            if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
                raise InvalidRequestError(f"this deletes {what}; say --yes to do so")
            click.confirm(f"delete {printable(what)}?", abort=True, err=True)
        for info in found:
            store.delete(info.id)
    if as_json:
        _write_json({"deleted": [info.id for info in found]})
    else:
        _write(f"deleted {what}")


# --- parts -----------------------------------------------------------------------------------------------------------------


def _open(*, create: bool = True) -> Store:
    from chatpaged.store import Store

    return Store(create=create)


def _read(file: str, status: Status) -> list[Imported]:
    from chatpaged.session_formats import read_sessions

    name = "standard input" if file == "-" else file
    data = (sys.stdin.buffer.read() if sys.stdin else b"") if file == "-" else Path(file).read_bytes()
    try:
        read = read_sessions(data.decode("utf-8-sig"), "" if file == "-" else Path(file).stem)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot import {name}: it is not in UTF-8 ({error.reason} at byte {error.start})") from error
    except InvalidRequestError as error:
        raise InvalidRequestError(f"cannot import {name}: {error}") from error
    for item in read:
        for kind, number in item.left_out.items():
            status.note(f"{item.conversation.title or name}: left out {kind} ({number} times)")
    return read


def _with_free_ids(store: Store, conversations: list[Conversation]) -> list[Conversation]:
    from chatpaged.session_formats import with_free_ids

    used: set[str] = set()
    free: list[Conversation] = []
    for conversation in conversations:
        free.append(with_free_ids(conversation, store.taken_ids(conversation) | used))
        used |= {free[-1].id, *(node.id for node in free[-1].nodes)}
    return free


def _deliver(text: str, output: Path | None) -> None:
    from chatpaged.paths import write_text

    if output is None:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        return
    try:
        write_text(output, text)
    except OSError as error:
        raise InvalidRequestError(f"cannot write {output}: {error.strerror or error}") from error


def _write(*lines: str) -> None:
    for line in lines:
        click.echo(printable(line) if sys.stdout.isatty() else line)


def _write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
