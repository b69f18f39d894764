"""The file that conversations are kept in: opened, brought up to date, written by many processes at once, never damaged.

SQLite in WAL mode: readers never wait, writers wait for each other, and what was committed survives the end of the process at
any moment. Every write takes the lock at its beginning (`BEGIN IMMEDIATE`), since a reader that becomes a writer half way may be refused
without having waited.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from chatpaged.errors import StoreError
from chatpaged.paths import private_dir

BUSY_SECONDS = 20.0
"""How long one process waits for the others."""
APPLICATION_ID = 0x63687067  # "chpg"
_RETRY_SECONDS = 0.02

# One entry a format; the number of entries applied is the file's `user_version`. Entries are never changed, only added.
MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        title TEXT NOT NULL,
        system TEXT,
        model TEXT NOT NULL,
        leaf TEXT,
        created REAL NOT NULL,
        updated REAL NOT NULL
    );
    CREATE INDEX sessions_by_update ON sessions (updated);
    CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session TEXT NOT NULL REFERENCES sessions (id),
        parent TEXT,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        token_ids BLOB,
        reasoning_ids BLOB NOT NULL,
        finish_reason TEXT NOT NULL,
        state TEXT NOT NULL,
        sampling TEXT NOT NULL,
        model TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        usage TEXT NOT NULL,
        created REAL NOT NULL,
        imported INTEGER NOT NULL
    );
    CREATE INDEX messages_of_session ON messages (session);
    CREATE VIRTUAL TABLE message_texts USING fts5 (content, content='messages', content_rowid='number', tokenize='trigram');
    CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
        INSERT INTO message_texts (rowid, content) VALUES (new.number, new.content);
    END;
    CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
        INSERT INTO message_texts (message_texts, rowid, content) VALUES ('delete', old.number, old.content);
    END;
    CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages BEGIN
        INSERT INTO message_texts (message_texts, rowid, content) VALUES ('delete', old.number, old.content);
        INSERT INTO message_texts (rowid, content) VALUES (new.number, new.content);
    END;
    """,
    # What the application needs: the user's marks, what is typed and not sent, and when a conversation was thrown away.
    """
    ALTER TABLE sessions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN draft TEXT NOT NULL DEFAULT '';
    ALTER TABLE sessions ADD COLUMN deleted REAL;
    """,
)


class Database:
    """A connection to the file."""

    def __init__(self, path: Path | None) -> None:
        """Opens the file, and makes it if there is none.

        Args:
            path: the file; None is one in memory, empty.

        Raises:
            StoreError: it cannot be opened, is damaged, is no store, or was written by a later version.
        """
        self.path = path
        with self.errors_named():
            if path is not None:
                _make_private(path)
            self._connection = sqlite3.connect(path or ":memory:", timeout=BUSY_SECONDS, isolation_level=None)
        try:
            with self.errors_named():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        run = self._connection.execute
        run(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA secure_delete = ON")  # what is deleted is not left in free pages
        self._check_format()
        if self.path is not None:
            self._switch_to_wal()
        if self._version() < len(MIGRATIONS):
            self._migrate()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _check_format(self) -> None:
        """Refuses a file of another program or of a later version, before anything is written to it."""
        with self.reading() as connection:  # at once: another process may be making the file
            version = self._version()
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.path} was written by a newer version of chatpaged "
                f"(format {version}, this one knows {len(MIGRATIONS)}); update chatpaged"
            )
        if version < 0 or ((tables or application) and application != APPLICATION_ID):
            raise StoreError(f"{self.path} is a database of another program; move it away")

    def _switch_to_wal(self) -> None:
        """Many processes may want to at once, and for this change SQLite itself does not always wait."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def _migrate(self) -> None:
        with self.writing() as connection:
            # Another process may have been faster.
            for number in range(self._version(), len(MIGRATIONS)):
                for statement in _statements(MIGRATIONS[number]):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection, None, None]:
        """A transaction: all of it happens, or nothing.

        Raises:
            StoreError: it could not be done.
        """
        with self.errors_named():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # some errors have ended the transaction already
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection, None, None]:
        """One state of the file, whatever others write meanwhile."""
        with self.errors_named():
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                with suppress(sqlite3.Error):
                    self._connection.execute("COMMIT")

    @contextmanager
    def errors_named(self) -> Generator[None, None, None]:
        """Turns what SQLite and the system say into one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(self._explain(error)) from error
        except OSError as error:
            what = f"{error.strerror or error}{f': {error.filename}' if isinstance(error, NotADirectoryError) else ''}"
            raise StoreError(f"cannot open the store {self.path}: {what}; --no-save does without it") from error

    def _explain(self, error: sqlite3.Error) -> str:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        what = {
            sqlite3.SQLITE_FULL: f"no space left for the store {self.path}; what was saved before is safe; free some space",
            sqlite3.SQLITE_BUSY: f"the store {self.path} has been locked by another process for {BUSY_SECONDS:g} s; try again",
            sqlite3.SQLITE_READONLY: f"the store {self.path} cannot be written; check its permissions, or use --no-save",
            sqlite3.SQLITE_CANTOPEN: f"the store {self.path} cannot be opened; check its permissions and those of its directory",
            sqlite3.SQLITE_IOERR: f"cannot read or write the store {self.path} ({error}); check the disk",
        }
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return f"the store {self.path} is damaged ({error}); it was left as it is: move it away to begin a new one"
        return what.get(code, f"the store {self.path} failed: {error}")

    def close(self) -> None:
        """Ends the connection."""
        with suppress(sqlite3.Error):
            self._connection.close()


def _make_private(path: Path) -> None:
    """Makes an empty file that only its owner can read. SQLite gives the files beside it the permissions of this one."""
    private_dir(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise StoreError(f"cannot open the store {path}: it is a directory") from None
        if path.stat().st_mode & 0o077:
            with suppress(PermissionError):  # somebody else's: whether it can be used will show
                path.chmod(0o600)


def _statements(script: str) -> Generator[str, None, None]:
    """The statements of a script. `executescript` would end the transaction."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
