"""Models of the hub through the real command and the real library, against a hub on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import COMMAND, DEADLINE, REPOSITORY, Result, run_process
from tests.fake_hub import FakeHub, Repo, environment, running_hub, safetensors

NAME = "org/tiny-model"
CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}).encode()
WEIGHTS = safetensors(elements=500_000)  # 2 MB: much more than what systems hold in transit
SMALL_FILES = {"config.json": CONFIG, "tokenizer.json": b"{}", "README.md": b"# hi"}
UNWANTED = {"pytorch_model.bin": b"\x80" * 2000, "modeling.py": b"raise SystemExit", "training_args.bin": b"x", "onnx/model.onnx": b"x"}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as hub:
        hub.repos[NAME] = Repo({**SMALL_FILES, **UNWANTED, "model.safetensors": WEIGHTS})
        yield hub


def models(home: Path, hub: FakeHub | None, *arguments: str, **more: str) -> Result:
    return run_process("models", *arguments, env=environment(home, hub, **more))


def snapshot(home: Path, commit: str = "c" * 40, name: str = NAME) -> Path:
    return home / "cache/huggingface/hub" / f"models--{name.replace('/', '--')}" / "snapshots" / commit


def blobs(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (snapshot(home).parents[1] / "blobs").iterdir()}


def entry(home: Path, name: str = NAME) -> Any:
    listed = models(home, None, "list", "--json")
    assert listed.status == 0
    return next(entry for entry in listed.json["models"] if entry["name"] == name)


# --- fetching ------------------------------------------------------------------------------------------------------------


def test_pull_fetches_what_a_model_needs(tmp_path: Path, hub: FakeHub) -> None:
    done = models(tmp_path, hub, "pull", NAME)
    assert done.status == 0, done
    assert done.out == f"{NAME}: 500K parameters, 2.0 MB in {snapshot(tmp_path)}\n"
    assert done.err.startswith(f"chatpaged: fetching {NAME} (2.0 MB, once)\n")
    assert done.err.count("\n") <= 5, "a few lines where nothing can be taken away again"
    assert "\x1b" not in done.err
    assert sorted(path.name for path in snapshot(tmp_path).iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert entry(tmp_path)["parameters"] == 500_000


def test_what_is_here_is_used_without_a_network(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    hub.requests.clear()
    ask = run_process("ask", "-m", NAME, "--dry-run", "hi", env=environment(tmp_path, hub))
    assert "tokenizer.json" in ask.err, "it got as far as the tokenizer, which is none here"
    assert hub.requests == []
    assert models(tmp_path, None, "pull", NAME, HF_HUB_OFFLINE="1").status == 0


def test_pull_again_fetches_only_what_is_new(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    sent = hub.sent
    again = models(tmp_path, hub, "pull", NAME, "--json")
    assert again.json["weight_bytes"] == len(WEIGHTS)
    assert again.err == ""
    assert len(hub.downloads("model.safetensors")) == 1
    hub.repos[NAME].commit = "d" * 40
    hub.repos[NAME].files["config.json"] = CONFIG.replace(b"64", b"128")
    assert models(tmp_path, hub, "pull", NAME).status == 0
    assert entry(tmp_path)["context"] == 128
    assert len(hub.downloads("model.safetensors")) == 1, "the weights have not changed"
    assert hub.sent - sent < 20_000


def test_shards_and_revision(tmp_path: Path, hub: FakeHub) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    shards = {f"model-0000{i}-of-00002.safetensors": safetensors(name=name) for i, name in ((1, "a"), (2, "b"))}
    others = {"consolidated.safetensors": WEIGHTS, "model.safetensors.index.json": json.dumps(index).encode()}
    hub.repos[NAME] = Repo({**SMALL_FILES, **others, **shards})
    done = models(tmp_path, hub, "pull", f"{NAME}@{'c' * 40}")
    assert done.status == 0, done
    assert hub.downloads("consolidated.safetensors") == []
    assert entry(tmp_path, f"{NAME}@{'c' * 40}")["parameters"] == 2000


def test_python_code_comes_only_on_request(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    assert hub.downloads("modeling.py") == []
    assert models(tmp_path, hub, "pull", NAME, "--trust-remote-code").status == 0
    assert (snapshot(tmp_path) / "modeling.py").is_file()


def test_token_is_sent(tmp_path: Path, hub: FakeHub) -> None:
    hub.repos[NAME].access = "hf_secret"
    assert models(tmp_path, hub, "pull", NAME, HF_TOKEN="hf_secret").status == 0  # noqa: S106 - no real one


def test_other_cache_of_the_hub(tmp_path: Path, hub: FakeHub) -> None:
    done = models(tmp_path, hub, "pull", NAME, HF_HOME=str(tmp_path / "elsewhere"))
    assert done.status == 0
    assert (tmp_path / "elsewhere/hub/models--org--tiny-model").is_dir()
    assert not (tmp_path / "cache/huggingface").exists()


# --- cut off -------------------------------------------------------------------------------------------------------------


def test_a_connection_that_breaks_is_taken_up_again(tmp_path: Path, hub: FakeHub) -> None:
    hub.cuts = [700_000, 300_000]
    done = models(tmp_path, hub, "pull", NAME)
    assert done.status == 0, done
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    first, second, third = hub.downloads("model.safetensors")
    assert first == "bytes=0-"
    assert 0 < int(second[6:-1]) < int(third[6:-1]) < len(WEIGHTS)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_pull_goes_on_where_it_stopped(tmp_path: Path, hub: FakeHub, number: int, status: int) -> None:
    hub.stall_after = 1_500_000
    command = [*COMMAND, "models", "pull", NAME]
    process = subprocess.Popen(command, env=environment(tmp_path, hub), stderr=subprocess.PIPE, cwd=REPOSITORY)
    assert hub.stalled.wait(DEADLINE)
    part = snapshot(tmp_path).parents[1] / "blobs"
    wait_until(lambda: any(path.stat().st_size > 1_000_000 for path in part.glob("*.incomplete")))
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == status, err
    assert b"Traceback" not in err
    assert b"the same command goes on from there" in err
    left = entry(tmp_path)
    assert left["problem"] == "the download was cut off"
    assert left["size"] > 1_000_000
    assert left["directory"] is None

    hub.stall_after = None
    sent = hub.sent
    assert models(tmp_path, hub, "pull", NAME).status == 0
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.downloads("model.safetensors")[-1] == f"bytes={left['size']}-"
    assert hub.sent - sent == len(WEIGHTS) - left["size"] + len(CONFIG) + len(SMALL_FILES["tokenizer.json"])


def wait_until(condition: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_hub_that_goes_away(tmp_path: Path, hub: FakeHub) -> None:
    hub.cuts = [400_000] + [0] * 20
    done = models(tmp_path, hub, "pull", NAME)
    assert done.status == 3, done
    last = done.err.splitlines()[-1]
    assert "the connection broke" in last
    assert f"of 2.0 MB of {NAME}" in last
    assert any(name.endswith(".incomplete") and size >= 65_536 for name, size in blobs(tmp_path).items())


def test_leftovers_that_are_too_long_begin_again(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    (weights,) = (name for name, size in blobs(tmp_path).items() if size == len(WEIGHTS))
    blob = snapshot(tmp_path).parents[1] / "blobs" / weights
    blob.rename(blob.with_name(f"{weights}.incomplete"))
    with blob.with_name(f"{weights}.incomplete").open("ab") as part:
        part.write(b"x")
    assert models(tmp_path, hub, "pull", NAME).status == 0
    assert blob.read_bytes() == WEIGHTS


@pytest.mark.parametrize("resumed", [False, True])
def test_damage_on_the_way_is_found(tmp_path: Path, hub: FakeHub, resumed: bool) -> None:
    lie = bytearray(WEIGHTS)
    lie[1000] ^= 1
    hub.repos[NAME].lies["model.safetensors"] = bytes(lie)
    if resumed:
        hub.cuts = [700_000]
    done = models(tmp_path, hub, "pull", NAME)
    assert done.status == 3
    assert "model.safetensors of org/tiny-model was damaged on the way (its checksum differs)" in done.err.splitlines()[-1]
    assert not any(size > 1000 for size in blobs(tmp_path).values()), "nothing damaged is kept"
    hub.repos[NAME].lies.clear()
    assert models(tmp_path, hub, "pull", NAME).status == 0


def test_pull_repairs_a_truncated_file(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    weights = (snapshot(tmp_path) / "model.safetensors").resolve()
    weights.write_bytes(WEIGHTS[:-1])
    offline = run_process("ask", "-m", NAME, "hi", env=environment(tmp_path, hub, HF_HUB_OFFLINE="1"))
    offline.failed(3, "model.safetensors is cut short", "HF_HUB_OFFLINE is set")  # K5
    assert "cut short" in entry(tmp_path)["problem"]
    assert models(tmp_path, hub, "pull", NAME).status == 0
    assert weights.read_bytes() == WEIGHTS


# --- what can go wrong ---------------------------------------------------------------------------------------------------


def test_offline_is_said(tmp_path: Path, hub: FakeHub) -> None:
    models(tmp_path, hub, "pull", NAME, HF_HUB_OFFLINE="1").failed(3, f"{NAME} is not on this machine", "HF_HUB_OFFLINE")
    assert hub.requests == []
    assert models(tmp_path, hub, "pull", NAME).status == 0
    models(tmp_path, hub, "pull", "org/tiny-modle", HF_HUB_OFFLINE="1").failed(3, "HF_HUB_OFFLINE", f"near names: {NAME}")
    models(tmp_path, None, "pull", "org/tiny-modle").failed(3, "cannot reach the hub", f"near names: {NAME}")


def test_no_network(tmp_path: Path) -> None:
    models(tmp_path, None, "pull", NAME).failed(3, f"cannot reach the hub for {NAME}", "HF_ENDPOINT")


def test_no_such_repository(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    models(tmp_path, hub, "pull", "org/tiny-modle").failed(3, "no model 'org/tiny-modle' on the hub", "HF_TOKEN", f"near names: {NAME}")


def test_no_such_revision(tmp_path: Path, hub: FakeHub) -> None:
    models(tmp_path, hub, "pull", f"{NAME}@v9").failed(3, f"{NAME} has no revision 'v9'")


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_gated(tmp_path: Path, hub: FakeHub, token: str) -> None:
    hub.repos[NAME].access, hub.repos[NAME].gated = "hf_secret", True
    done = models(tmp_path, hub, "pull", NAME, **({"HF_TOKEN": token} if token else {}))
    assert done.status == 3
    assert "is gated: ask for access on its page of the hub, then set HF_TOKEN" in done.err.splitlines()[-1]


def test_private(tmp_path: Path, hub: FakeHub) -> None:
    hub.repos[NAME].access = "hf_secret"
    models(tmp_path, hub, "pull", NAME).failed(3, f"no model '{NAME}' on the hub; if it is private")


@pytest.mark.parametrize("status", [403, 500])
def test_hub_out_of_order(tmp_path: Path, hub: FakeHub, status: int) -> None:
    hub.status = status
    models(tmp_path, hub, "pull", NAME).failed(3, f"{status}")


def test_pickles_only(tmp_path: Path, hub: FakeHub) -> None:
    del hub.repos[NAME].files["model.safetensors"]
    models(tmp_path, hub, "pull", NAME).failed(3, "only pickle files such as pytorch_model.bin, which are never read")
    assert hub.sent == 0


def test_no_language_model(tmp_path: Path, hub: FakeHub) -> None:
    hub.repos[NAME].files = {"README.md": b"nothing"}
    models(tmp_path, hub, "pull", NAME).failed(3, "has no config.json; it is no language model")


def test_gguf_files_are_offered(tmp_path: Path, hub: FakeHub) -> None:
    hub.repos[NAME].files = {"m-Q4_K_M.gguf": b"GGUF" * 500, "m.Q8_0.gguf": b"GGUF", "config.json": CONFIG}
    models(tmp_path, hub, "pull", NAME).failed(3, "no safetensors weights, but GGUF files; choose one of Q4_K_M, Q8_0", f"{NAME}:Q4_K_M")
    models(tmp_path, hub, "pull", f"{NAME}:Q5_0").failed(3, "no GGUF file Q5_0", "there are: Q4_K_M, Q8_0")


def test_a_cache_that_is_a_file(tmp_path: Path, hub: FakeHub) -> None:
    (tmp_path / "file").touch()
    models(tmp_path, hub, "pull", NAME, HF_HUB_CACHE=str(tmp_path / "file")).failed(3, "cannot use", str(tmp_path / "file"))


def test_too_little_disk_is_found_out_before(tmp_path: Path, hub: FakeHub) -> None:
    hub.repos[NAME].files["model.safetensors"] = WEIGHTS
    code = (
        "import collections, shutil, sys\n"
        "shutil.disk_usage = lambda _: collections.namedtuple('Usage', 'total used free')(10**12, 10**12, 3_000_000)\n"
        "sys.argv = ['chatpaged', *sys.argv[1:]]\nfrom chatpaged.cli.main import main\nmain()"
    )
    command = [COMMAND[0], "-c", code, "models", "pull", NAME]
    done = subprocess.run(command, env=environment(tmp_path, hub), capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 3
    assert done.stderr == f"chatpaged: {NAME} needs 52 MB of disk, 3 MB are free in {tmp_path}/cache/huggingface/hub\n"
    assert hub.sent == 0


def test_a_disk_that_fills_up(tmp_path: Path, hub: FakeHub) -> None:
    # The system's limit on file sizes stands for a full disk; both end a write with an error.
    code = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "sys.argv = ['chatpaged', *sys.argv[1:]]\nfrom chatpaged.cli.main import main\nmain()"
    )
    command = [COMMAND[0], "-c", code, "models", "pull", NAME]
    done = subprocess.run(command, env=environment(tmp_path, hub), capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert "no space left in" in last
    assert "Traceback" not in done.stderr
    assert models(tmp_path, hub, "pull", NAME).status == 0, "and goes on when there is room again"
    assert hub.downloads("model.safetensors")[-1].startswith("bytes=")


# --- on a terminal -------------------------------------------------------------------------------------------------------


def test_progress_is_one_line_on_a_terminal(tmp_path: Path, hub: FakeHub) -> None:
    hub.repos[NAME].files["model.safetensors"] = safetensors(elements=3_000_000)
    hub.cuts = [5_000_000]  # a second goes by before it goes on
    master, slave = pty.openpty()
    env = environment(tmp_path, hub)
    process = subprocess.Popen([*COMMAND, "models", "pull", NAME], env=env, stdout=subprocess.DEVNULL, stderr=slave, cwd=REPOSITORY)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's word for the end
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    assert process.wait(DEADLINE) == 0
    assert b"\n" not in shown
    states = [state.decode().removesuffix(" …") for state in shown.split(b"\r\x1b[K")]
    assert states[1] == f"fetching {NAME} (12.0 MB, once)"
    assert any(re.fullmatch(rf"fetched \d+\.\d MB of 12\.0 MB of {NAME} \(\d+ %, \d+\.\d MB/s\)", state) for state in states)
    assert states[-1] == "", "nothing is left of it"


# --- removing ------------------------------------------------------------------------------------------------------------


def test_rm_needs_a_word(tmp_path: Path, hub: FakeHub) -> None:
    assert models(tmp_path, hub, "pull", NAME).status == 0
    models(tmp_path, hub, "rm", NAME).failed(2, f"{NAME} takes 2.0 MB; say --yes")
    done = models(tmp_path, hub, "rm", "tiny-model", "--yes")
    assert (done.status, done.out) == (0, f"deleted {NAME} (2.0 MB)\n")
    assert not snapshot(tmp_path).parents[1].exists()
    models(tmp_path, hub, "rm", NAME, "--yes").failed(3, "nothing to delete")


def test_rm_leaves_other_repositories_with_the_same_commit_alone(tmp_path: Path, hub: FakeHub) -> None:
    others = [f"{letter}/copy" for letter in "abcxyz"]
    for name in others:
        hub.repos[name] = hub.repos[NAME]
    for name in [NAME, *others]:
        assert models(tmp_path, hub, "pull", name).status == 0
    assert models(tmp_path, hub, "rm", NAME, "--yes").status == 0
    assert not snapshot(tmp_path).exists()
    assert all((snapshot(tmp_path, name=name) / "model.safetensors").is_file() for name in others)


def test_rm_takes_what_a_cut_off_download_has_left(tmp_path: Path, hub: FakeHub) -> None:
    hub.cuts = [400_000] + [0] * 20
    assert models(tmp_path, hub, "pull", NAME).status == 3
    assert models(tmp_path, hub, "rm", NAME, "--yes").status == 0
    assert not snapshot(tmp_path).parents[1].exists()
