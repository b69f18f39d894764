"""Which places settings are taken from, in which order; and what is said about nonsense in them."""

from __future__ import annotations

import dataclasses
import os
import stat
import textwrap
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged import paths
from chatpaged.engine.config import EngineConfig
from chatpaged.errors import ChatpagedError, SettingsError
from chatpaged.setting_groups import EXCLUSIVE, Settings, all_settings
from chatpaged.setting_kinds import Keys
from chatpaged.settings import FLAG_ONLY, IGNORED_VARIABLES, ResolvedSettings, resolve_settings
from chatpaged.settings_file import SettingsFile, read_settings_file, write_setting


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's file belongs; it is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/chatpaged").mkdir(parents=True)
    return tmp_path / "config/chatpaged/config.toml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Where a project file belongs, in the root of a repository."""
    (tmp_path / "project/.git").mkdir(parents=True)
    (tmp_path / "project/deep/er").mkdir(parents=True)
    return tmp_path / "project/chatpaged.toml"


def resolve(project: Path, **environ: str) -> ResolvedSettings:
    return resolve_settings(environ, project.parent / "deep/er", with_lines=True)


def test_defaults(user: Path, project: Path) -> None:
    resolved = resolve(project)
    assert resolved.values == Settings()
    assert resolved.origins == {}
    assert str(resolved.origin("model")) == "default"


def test_order_of_places(user: Path, project: Path) -> None:
    user.write_text("model = 'user'\nsystem = 'user'\n[sampling]\ntop_p = 0.1\ntop_k = 1\n")
    project.write_text("system = 'project'\n\n[sampling]\n# how\ntop_p = 0.2\n")
    resolved = resolve(project, CHATPAGED_SAMPLING_TOP_P="0.3")
    assert (resolved.values.model, resolved.values.system) == ("user", "project")
    assert (resolved.values.sampling.top_p, resolved.values.sampling.top_k, resolved.values.sampling.temperature) == (0.3, 1, None)
    assert {key: str(origin) for key, origin in resolved.origins.items()} == {
        "model": f"user file {user}:1",
        "system": f"project file {project}:1",
        "sampling.top_p": "environment CHATPAGED_SAMPLING_TOP_P",
        "sampling.top_k": f"user file {user}:5",
    }
    assert str(resolve_settings({}, project.parent).origin("model")) == f"user file {user}"


def test_every_setting_can_be_set_everywhere(user: Path, project: Path) -> None:
    for entry in all_settings().values():
        if entry.key == "engine.kv_blocks":
            continue
        switch = "off" if entry.default else "on"
        text = {"text": "x", Keys().describe(): "f9", "true or false": switch, "a power of two": "8"}.get(entry.kind.describe(), "1")
        if hasattr(entry.kind, "options"):
            text = entry.kind.options[-1]
        value = entry.kind.parse(text)
        resolved = resolve(project, **{entry.variable: text})
        assert resolved.value(entry.key) == value != entry.default
        write_setting(user, entry.key, entry.kind.plain(value))
        assert resolve(project).value(entry.key) == value
    assert set(resolve(project).origins) == set(all_settings()) - {"engine.kv_blocks"}


def test_names_are_unambiguous() -> None:
    entries = list(all_settings().values())
    assert len({entry.variable for entry in entries}) == len({entry.flag for entry in entries}) == len(entries)
    assert not [entry for entry in entries if entry.variable.startswith(IGNORED_VARIABLES)]
    assert [entry for entry in entries if (entry.default is None) != bool(entry.unset)] == []
    assert [entry for entry in entries if not entry.text.endswith(".")] == []
    assert all(EXCLUSIVE[EXCLUSIVE[key]] == key for key in EXCLUSIVE)
    for entry in entries:
        assert entry.default is None or entry.kind.check(entry.default) == entry.default


def test_settings_fit_the_engine() -> None:
    names = {"max_batched_tokens": "max_num_batched_tokens", "prefix_caching": "enable_prefix_caching"}
    ours = {names.get(field.name, field.name): getattr(Settings().engine, field.name) for field in dataclasses.fields(Settings().engine)}
    # Whether code that comes with a model may run is never a setting. Which code of ours runs is chosen for comparisons only, and
    # where block files lie by tests. Who uses the engine as a library gets no files without asking for them.
    theirs = [
        field.name for field in dataclasses.fields(EngineConfig) if field.name not in {*FLAG_ONLY, "code_path", "disk_cache_directory"}
    ]
    assert ours == {name: getattr(EngineConfig(), name) for name in theirs} | {"disk_cache": 2 * 2**30}


def test_rivals_in_different_places(user: Path, project: Path) -> None:
    user.write_text("[engine]\nkv_memory = '2G'")
    assert resolve(project).values.engine.kv_memory == 2**31
    project.write_text("engine.kv_blocks = 8")
    resolved = resolve(project)
    assert (resolved.values.engine.kv_blocks, resolved.values.engine.kv_memory) == (8, None)
    assert "engine.kv_memory" not in resolved.origins
    resolved = resolve(project, CHATPAGED_ENGINE_KV_MEMORY="1M")
    assert (resolved.values.engine.kv_blocks, resolved.values.engine.kv_memory) == (None, 2**20)


def test_a_model_is_seen_from_its_file(user: Path, project: Path) -> None:
    project.write_text("model = './models/m'")
    assert resolve(project).values.model == str(project.parent / "models/m")
    project.write_text("model = '../m'")
    assert resolve(project).values.model == str(project.parent.parent / "m")
    for name in ("m", "/abs/m", "~/m", ".hidden"):
        project.write_text(f"model = '{name}'")
        assert resolve(project).values.model == name
    assert resolve(project, CHATPAGED_MODEL="./m").values.model == "./m"


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("[sampling]\ntemperature = 'hot'", 2, ["sampling.temperature must be a number between 0 and 100, not 'hot'"]),
        ("\n\nmodle = 'm'", 3, ["no setting 'modle'", "did you mean model?"]),
        ("temperature = 1", 1, ["did you mean sampling.temperature?"]),
        ("[engine]\nkv_mem = 1\n", 2, ["did you mean engine.kv_memory"]),
        ("xyzzy = 1", 1, ["no setting 'xyzzy'", "config show"]),
        ("sampling = 1", 1, ["no setting 'sampling'"]),
        ("[model]\nname = 'm'", 2, ["no setting 'model.name'"]),
        ("[other]", 1, ["no setting 'other'"]),
        ("system = '''\n[sampling]\ntop_p = 7\n'''\n[sampling]\ntop_k = -2", 6, ["sampling.top_k"]),
        ("sampling = { top_p = 0.5, top_k = -2 }", 1, ["sampling.top_k"]),
        ("'sampling.top_p' = 0.5", 1, ['"sampling.top_p"']),
        ("[[sampling]]\ntop_p = 0.5", 1, ["no setting 'sampling'"]),
        ("engine.trust_remote_code = true", 1, ["cannot be set", "--trust-remote-code"]),
        ("trust_remote_code = true", 1, ["cannot be set", "--trust-remote-code"]),
        ("\n[engine]\nkv_blocks = 1\nkv_memory = 1", 3, ["kv_blocks and engine.kv_memory", "keep one"]),
        ("[engine]\r\n# \r\nthreads = 0\r\n", 3, ["engine.threads"]),
    ],
)
@pytest.mark.parametrize("place", ["user", "project"])
def test_nonsense_in_a_file(user: Path, project: Path, place: str, text: str, line: int, parts: list[str]) -> None:
    path = {"user": user, "project": project}[place]
    path.write_text(text, newline="")
    with pytest.raises(SettingsError) as caught:
        resolve(project)
    assert f"{path}:{line}: " in str(caught.value)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"a = \nb = 1", ["is not a TOML file", "line 1"]),
        (b"\xff = 1", ["not UTF-8", "0xff at 0"]),
        (b"a = 1\na = 2", ["is not a TOML file"]),
    ],
)
def test_a_file_that_cannot_be_read_as_toml(user: Path, project: Path, data: bytes, parts: list[str]) -> None:
    user.write_bytes(data)
    with pytest.raises(SettingsError) as caught:
        resolve(project)
    assert [part for part in [str(user), *parts] if part not in str(caught.value)] == []


def test_all_problems_can_be_collected(user: Path, project: Path) -> None:
    user.write_text("model = 1\nsystem = 'kept'\n[engine]\nkv_blocks = 1\nkv_memory = 1")
    project.write_text("[")
    problems: list[SettingsError] = []
    environ = {"CHATPAGED_NOPE": "1", "CHATPAGED_ENGINE_DEVICE": "tpu", "CHATPAGED_ENGINE_DTYPE": "float32"}
    resolved = resolve_settings(environ, project.parent, on_problem=problems.append)
    assert len(problems) == 5
    assert set(resolved.origins) == {"system", "engine.dtype"}


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("CHATPAGED_TEMPERATURE", "1", ["is no setting", "did you mean CHATPAGED_SAMPLING_TEMPERATURE?"]),
        ("CHATPAGED_MODLE", "m", ["did you mean CHATPAGED_MODEL?"]),
        ("CHATPAGED_ENGINE_KVMEMORY", "1", ["CHATPAGED_ENGINE_KV_MEMORY"]),
        ("CHATPAGED_ZZZ", "1", ["CHATPAGED_ZZZ is no setting"]),
        ("CHATPAGED_ENGINE_DEVICE", "tpu", ["variable CHATPAGED_ENGINE_DEVICE must be one of auto, cpu", "'tpu'"]),
        ("CHATPAGED_KEYS_NEW_CHAT", "n", ["variable CHATPAGED_KEYS_NEW_CHAT must be keys", "n is typed as text"]),
        ("CHATPAGED_TRUST_REMOTE_CODE", "1", ["cannot be set", "--trust-remote-code"]),
        ("CHATPAGED_ENGINE_TRUST_REMOTE_CODE", "1", ["cannot be set", "--trust-remote-code"]),
    ],
)
def test_nonsense_in_the_environment(user: Path, project: Path, name: str, value: str, parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(project, **{name: value})
    assert [part for part in parts if part not in str(caught.value)] == []


def test_rivals_in_the_environment(user: Path, project: Path) -> None:
    with pytest.raises(SettingsError, match=r"environment CHATPAGED_ENGINE_KV_BLOCKS: .*keep one"):
        resolve(project, CHATPAGED_ENGINE_KV_BLOCKS="1", CHATPAGED_ENGINE_KV_MEMORY="1G")


def test_variables_that_are_left_alone(user: Path, project: Path) -> None:
    environ = {"CHATPAGED_MODEL": "", "CHATPAGED_SERVICE_HOST": "10.0.0.1", "CHATPAGED_PORT_80_TCP": "x", "chatpaged_model": "m", "X": "1"}
    assert resolve(project, **environ).origins == {}


# --- where project files are looked for ------------------------------------------------------------------------------


def test_the_nearest_project_file_counts(project: Path) -> None:
    deep = project.parent / "deep/er"
    assert paths.project_settings_file(deep) is None
    project.touch()
    assert paths.project_settings_file(deep) == project
    (project.parent / "deep/chatpaged.toml").touch()
    assert paths.project_settings_file(deep) == project.parent / "deep/chatpaged.toml"
    (deep / "chatpaged.toml").mkdir()  # not a file
    assert paths.project_settings_file(deep) == project.parent / "deep/chatpaged.toml"


def test_nothing_above_the_repository(project: Path) -> None:
    (project.parent.parent / "chatpaged.toml").touch()
    assert paths.project_settings_file(project.parent / "deep") is None


def test_outside_of_repository_and_home_only_the_directory_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatpaged.toml").touch()
    (tmp_path / "home/a/b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert paths.project_settings_file(tmp_path / "other") is None
    assert paths.project_settings_file(tmp_path) == tmp_path / "chatpaged.toml"
    assert paths.project_settings_file(tmp_path / "home/a/b") is None
    (tmp_path / "home/chatpaged.toml").touch()
    assert paths.project_settings_file(tmp_path / "home/a/b") == tmp_path / "home/chatpaged.toml"


# --- files -----------------------------------------------------------------------------------------------------------


def test_writing_keeps_what_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        textwrap.dedent("""\
        # Mine.
        model = 'm'  # the small one

        [sampling]   # careful
        # Warm.
        temperature = 0.5 # degrees
        top_k = 40

        [output]
        color = "never"
        """)
    )
    write_setting(path, "sampling.temperature", 0.25)
    write_setting(path, "system", 'Say "hi"\n')
    write_setting(path, "engine.kv_memory", "2G")
    write_setting(path, "sampling.top_k", None)
    assert path.read_text() == textwrap.dedent("""\
        # Mine.
        model = 'm'  # the small one
        system = "Say \\"hi\\"\\n"

        [sampling]   # careful
        # Warm.
        temperature = 0.25 # degrees

        [output]
        color = "never"

        [engine]
        kv_memory = "2G"
        """)


def test_dotted_keys_and_inline_tables_are_changed_in_place(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("sampling.top_p = 0.5\nengine = { threads = 1 }\n")
    write_setting(path, "sampling.top_p", 0.25)
    write_setting(path, "engine.threads", 2)
    assert path.read_text() == "sampling.top_p = 0.25\nengine = { threads = 2 }\n"


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("sampling = 1\n")
    with pytest.raises(SettingsError, match="edit the file by hand"):
        write_setting(path, "sampling.top_p", 0.5)
    assert path.read_text() == "sampling = 1\n"
    path.write_text("[")
    with pytest.raises(SettingsError, match="is not a TOML file"):
        write_setting(path, "model", "m")
    assert path.read_text() == "["


def test_files_and_directories_are_the_owners(tmp_path: Path) -> None:  # K3
    path = tmp_path / "a/b/c.toml"
    write_setting(path, "model", "m")
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    path.chmod(0o644)
    write_setting(path, "model", "n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o664)
    write_setting(path, "model", "o", mode=0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert [place.name for place in path.parent.iterdir()] == ["c.toml"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "c.toml").symlink_to(tmp_path / "dotfiles/real.toml")
    write_setting(tmp_path / "c.toml", "model", "m")
    assert (tmp_path / "c.toml").is_symlink()
    assert (tmp_path / "dotfiles/real.toml").read_text() == 'model = "m"\n'


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.toml"
    path.write_text("model = 'old'\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ChatpagedError, match=r"cannot write the settings to .*No space left") as caught:
        write_setting(path, "model", "new")
    assert caught.value.exit_code == 1
    assert path.read_text() == "model = 'old'\n"
    assert [place.name for place in tmp_path.iterdir()] == ["c.toml"]


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbfmodel = 'm'\r\n# x\r\nsystem = 's'\r\n")
    file = read_settings_file(path)
    assert file is not None
    assert dict(file.values()) == {"model": "m", "system": "s"}
    assert file.line("system") == 3
    write_setting(path, "model", "n")
    assert path.read_bytes() == b"model = \"n\"\r\n# x\r\nsystem = 's'\r\n"


@given(st.lists(st.sampled_from(["# c", "", "a = 1", "[t]", "x = '''\n[u]\nb = 2\n'''", "b = [\n1,\n2]", "q.r = { s = 1 }"]), unique=True))
def test_lines_are_those_on_which_statements_begin(pieces: list[str]) -> None:
    text = "\n".join(pieces)
    file = SettingsFile(Path("f"), text, tomllib.loads(text))
    for key, _ in file.values():
        statement = text.split("\n")[file.line(key) - 1]
        if key != "t":
            assert statement.startswith((key.removeprefix("t.").split(".")[0], "[t]"))
