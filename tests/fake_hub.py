"""A hub on this machine: serves what `huggingface_hub` asks for, notes it, and fails on request."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1000  # bytes from which a file is kept apart (LFS), so that its digest is known
DEADLINE = 30.0


@dataclass
class Repo:
    """A repository.

    Attributes:
        files: contents by path.
        access: the token it takes; empty for everybody.
        gated: whether those without access are told that it exists.
        commit: of its only revision, `main`.
        lies: what is sent in place of a file's contents.
    """

    files: dict[str, bytes]
    access: str = ""
    gated: bool = False
    commit: str = "c" * 40
    lies: dict[str, bytes] = field(default_factory=dict)


@dataclass
class FakeHub:
    """What the server knows, and what happened.

    Attributes:
        repos: by id.
        requests: method, path and range of each request.
        sent: bytes of files that were sent.
        cuts: after how many bytes to end a connection, one for each of the next downloads of large files.
        stall_after: after how many bytes of a large file to send nothing more; None for never.
        status: an error to answer everything with.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0
    cuts: list[int] = field(default_factory=list)
    stall_after: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    status: int | None = None
    url: str = ""

    def downloads(self, name: str) -> list[str]:
        """The ranges in which a file was asked for."""
        return [part for method, path, part in self.requests if method == "GET" and path.endswith(f"/{name}") and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Nobody reads it."""

    def _answer(self) -> None:
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if hub.status is not None:
            self._error(hub.status, "", "out of order")
            return
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api(parts[2:])
        elif "resolve" in parts:
            at = parts.index("resolve")
            repo = self._repo("/".join(parts[:at]), parts[at + 1])
            if repo is not None and self._may_read(repo):
                self._file(repo, "/".join(parts[at + 2 :]))
        else:
            self._error(404, "", "no such page")

    def _repo(self, name: str, revision: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.access and not repo.gated and not self._has_token(repo)):
            # The hub does not tell whether a private repository exists.
            self._error(404 if self.headers.get("Authorization") else 401, "RepoNotFound", "Repository not found")
            return None
        if revision not in {"main", repo.commit}:
            self._error(404, "RevisionNotFound", "Invalid rev id")
            return None
        return repo

    def _has_token(self, repo: Repo) -> bool:
        return self.headers.get("Authorization") == f"Bearer {repo.access}"

    def _may_read(self, repo: Repo) -> bool:
        if not repo.access or self._has_token(repo):
            return True
        self._error(403 if self.headers.get("Authorization") else 401, "GatedRepo", "Access to this model is restricted")
        return False

    def _api(self, parts: list[str]) -> None:
        at = next((i for i, part in enumerate(parts) if part in {"revision", "tree"}), len(parts))
        repo = self._repo("/".join(parts[:at]), parts[at + 1] if at < len(parts) else "main")
        if repo is None:
            return
        listing = [_listed(path, content) for path, content in repo.files.items()]
        if parts[at : at + 1] == ["tree"]:
            self._json(listing)
            return
        siblings = [
            {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
            | ({"lfs": entry["lfs"] | {"sha256": entry["lfs"]["oid"]}} if "lfs" in entry else {})
            for entry in listing
        ]
        name = "/".join(parts[:at])
        self._json({"_id": "1", "id": name, "modelId": name, "sha": repo.commit, "tags": [], "siblings": siblings, "private": False})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: Repo, path: str) -> None:
        if path not in repo.files:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        entry = _listed(path, repo.files[path])
        content = repo.lies.get(path, repo.files[path])
        etag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(206 if begin else 200, content[begin:], headers, is_file="lfs" in entry)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, is_file: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        hub = self.hub
        if is_file and hub.stall_after is not None:
            self._write(body[: hub.stall_after])
            hub.stalled.set()
            time.sleep(DEADLINE)
        elif is_file and hub.cuts:
            self._write(body[: hub.cuts.pop(0)])
            self.close_connection = True
        else:
            self._write(body)

    def _write(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
            self.wfile.flush()
            self.hub.sent += len(data) if "/resolve/" in self.path else 0
        except OSError:
            self.close_connection = True  # the other side has gone

    def _error(self, status: int, code: str, message: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message} if code else {"X-Error-Message": message})


def _listed(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": oid}
    if len(content) >= LARGE and path.endswith((".safetensors", ".gguf", ".bin")):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that listens for as long as the block lasts."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    server.block_on_close = False
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)


def environment(home: Path, hub: FakeHub | None = None, **more: str) -> dict[str, str]:
    """An environment in which everything lies under one directory, and which knows no hub but this one."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS") if name in os.environ}
    places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    # No hub: a port of this machine that nobody listens on.
    endpoint = hub.url if hub is not None else "http://127.0.0.1:9"
    return {**kept, **places, "HOME": str(home / "home"), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1", **more}


def safetensors(*, elements: int = 1000, name: str = "model.embed_tokens.weight") -> bytes:
    """A whole file with one tensor."""
    header = json.dumps({name: {"dtype": "F32", "shape": [elements], "data_offsets": [0, 4 * elements]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(256)) * (4 * elements // 256) + bytes(4 * elements % 256)
