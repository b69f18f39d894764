"""What a model's name means: every form, in order, and never another model than the one that was meant."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged import hub, model_files
from chatpaged.engine.weight_files import NOTE, model_name
from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.hub_cache import cached_names, hub_cache_dir
from chatpaged.hub_files import RemoteFile, gguf_file, quantization_of
from chatpaged.hub_files import model_files as needed_files
from chatpaged.model_aliases import load_aliases, remove_alias, set_alias
from chatpaged.model_files import context_length, fetch_model, find_source, resolve_model
from chatpaged.model_list import list_models, read_facts
from chatpaged.model_names import HubName, near_names, parse_hub_name
from chatpaged.model_removal import plan_removal
from chatpaged.model_sources import SourceKind, find_here
from chatpaged.model_usage import load_uses, record_use
from chatpaged.paths import aliases_file, models_dir, private_dir, replace_file, state_dir
from tests.fake_hub import safetensors

COMMIT = "c" * 40
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}


def silent(_: str) -> None:
    """Nobody listens."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything under one directory, no hub, no network."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for kind in ("CACHE", "DATA", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def refuse(name: HubName, *_: object, **__: object) -> Path:
        raise ModelError(f"would fetch {name}")

    monkeypatch.setattr(model_files, "download_model", refuse)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


def save(directory: Path, **config: object) -> Path:
    """A small model directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    (directory / "model.safetensors").write_bytes(safetensors())
    return directory


def cache(name: str, *, ref: str = "main", commit: str = COMMIT) -> Path:
    """A model in the hub's cache, its files links to blobs as there."""
    base = hub_cache_dir() / f"models--{name.replace('/', '--')}"
    directory = save(base / "snapshots" / commit)
    (base / "blobs").mkdir(exist_ok=True)
    for path in list(directory.iterdir()):
        blob = path.rename(base / "blobs" / f"{commit[:4]}-{path.name}")
        path.symlink_to(os.path.relpath(blob, directory))
    if ref:
        (base / "refs").mkdir(exist_ok=True)
        (base / "refs" / ref).write_text(commit)
    return directory


def converted(stem: str, source: Path | str, name: str | None = None) -> Path:
    """A GGUF file's conversion."""
    directory = save(models_dir() / "gguf" / f"{stem}-12345678")
    (directory / NOTE).write_text(json.dumps({"quantization": "Q4_0", "name": name or stem, "source": str(source)}))
    return directory


# --- places on disk ------------------------------------------------------------------------------------------------------


def test_directories_are_taken_as_they_are(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(home / "home/mine")
    save(home / "work/org/name")
    cache("org/name")
    assert resolve_model(str(home / "home/mine"), silent) == home / "home/mine"
    assert resolve_model("~/mine", silent) == home / "home/mine"
    assert resolve_model("org/name", silent) == Path("org/name"), "a directory comes before the hub"


@pytest.mark.parametrize("name", ["nothing", "Starter", "SmolLM2", "~/nothing", "/nowhere/model", "", "~nobody-here/x", "x" * 5000, "./x"])
def test_unknown_names_never_become_another_model(name: str) -> None:  # K6
    cache("org/model")
    with pytest.raises(ModelError, match="no model") as info:
        resolve_model(name, silent)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("name", [None, "starter", "SmolLM2-135M-Instruct", "smollm2-135m-instruct"])
def test_names_of_the_starter(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "starter_directory", lambda _: Path("/the/starter"))
    assert resolve_model(name, silent) == Path("/the/starter")


def test_files_that_are_no_models(home: Path) -> None:
    (home / "work/model.bin").touch()
    with pytest.raises(ModelError, match=r"model\.bin is a file, but no \.gguf file"):
        resolve_model("model.bin", silent)
    with pytest.raises(ModelError, match="no such file or directory"):
        resolve_model("./missing.gguf", silent)


def test_gguf_files_are_converted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "work/Tiny.GGUF").touch()
    monkeypatch.setattr(model_files, "gguf_directory", lambda source, name, _: Path(f"{source}|{name}"))
    assert resolve_model("Tiny.GGUF", silent) == Path("Tiny.GGUF|Tiny")


def test_directories_that_are_no_models(home: Path) -> None:
    (home / "work/empty").mkdir()
    with pytest.raises(ModelError, match=r"empty is no model directory: there is no config\.json in it$"):
        resolve_model("./empty", silent)
    (home / "work/empty/a.gguf").touch()
    with pytest.raises(ModelError, match=r"there is no config\.json in it; give the file itself: empty/a\.gguf"):
        resolve_model("./empty", silent)


def test_context_length(home: Path) -> None:
    assert context_length(save(home / "a")) == 64
    assert context_length(save(home / "b", text_config={"max_position_embeddings": 32})) == 32
    assert context_length(save(home / "c", max_position_embeddings=None)) is None
    with pytest.raises(ModelError, match=r"no config\.json"):
        context_length(home)


@pytest.mark.parametrize("value", [0, -5, "many", True, 8.5])
def test_contexts_that_are_no_length(home: Path, value: object) -> None:
    with pytest.raises(ModelError, match=r"max_position_embeddings in .*config\.json is .*positive whole number"):
        context_length(save(home / "a", max_position_embeddings=value))


# --- the hub's cache -----------------------------------------------------------------------------------------------------


def test_what_is_in_the_cache_is_used_without_the_hub() -> None:  # K5
    directory = cache("org/name")
    assert resolve_model("org/name", silent) == directory
    assert resolve_model("hf:org/name", silent) == directory
    assert resolve_model(f"org/name@{COMMIT}", silent) == directory


def test_revisions(home: Path) -> None:
    cache("org/name")
    other = cache("org/name", ref="v2", commit="d" * 40)
    assert resolve_model("org/name@v2", silent) == other
    with pytest.raises(ModelError, match="would fetch org/name@v3"):
        resolve_model("org/name@v3", silent)


def test_old_names_without_an_organization() -> None:
    directory = cache("gpt2")
    assert resolve_model("hf:gpt2", silent) == directory
    assert resolve_model("gpt2", silent) == directory, "by its exact last part"
    with pytest.raises(ModelError, match="would fetch other"):
        resolve_model("hf:other", silent)


def test_what_is_not_whole_is_fetched() -> None:
    directory = cache("org/name")
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="would fetch org/name"):
        resolve_model("org/name", silent)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_names_what_is_damaged(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:  # K5
    directory = cache("org/name")
    monkeypatch.setenv(variable, "1")
    assert resolve_model("org/name", silent) == directory
    (directory / "model.safetensors").resolve().write_bytes(safetensors()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors is cut short: .*HF_HUB_OFFLINE is set"):
        resolve_model("org/name", silent)
    (directory / "model.safetensors").resolve().rename(directory.parents[1] / "blobs/abc.incomplete")
    with pytest.raises(
        ModelError, match=r"model\.safetensors is a link to a file that is not there \(an unfinished download: abc\.incomplete\)"
    ):
        resolve_model("org/name", silent)
    monkeypatch.setattr(model_files, "download_model", hub.download_model)
    with pytest.raises(ModelError, match="org/other is not on this machine, and HF_HUB_OFFLINE is set"):
        resolve_model("org/other", silent)


def test_code_is_fetched_only_for_those_who_run_it() -> None:
    directory = cache("org/name")
    path = (directory / "config.json").resolve()
    path.write_text(json.dumps(CONFIG | {"auto_map": {"AutoConfig": "c.C"}}))
    assert resolve_model("org/name", silent) == directory
    with pytest.raises(ModelError, match="would fetch"):
        resolve_model("org/name", silent, trust_remote_code=True)
    (directory / "c.py").touch()
    assert resolve_model("org/name", silent, trust_remote_code=True) == directory


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, "cache/huggingface/hub"),
        ({"HF_HOME": "~/hf"}, "home/hf/hub"),
        ({"HF_HOME": "$HOME/hf"}, "home/hf/hub"),
        ({"HF_HOME": "~/hf", "HF_HUB_CACHE": "~/other"}, "home/other"),
        ({"HUGGINGFACE_HUB_CACHE": "~/older"}, "home/older"),
        ({"XDG_CACHE_HOME": ""}, "home/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hubs_library_has_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub_cache_dir() == home / place


def test_broken_parts_of_the_cache_are_left_out() -> None:
    cache("org/name")
    base = hub_cache_dir()
    (base / "models--org--empty").mkdir()
    (base / "models--org--ref/refs").mkdir(parents=True)
    (base / "models--org--ref/refs/main").write_bytes(b"\xff../../..")
    (base / "models--org--gone/refs").mkdir(parents=True)
    (base / "models--org--gone/refs/main").write_text("e" * 40)
    (base / "datasets--org--data/snapshots").mkdir(parents=True)
    assert cached_names() == [HubName("org/name")]


# --- short names and near ones -------------------------------------------------------------------------------------------


def test_the_last_part_of_one_models_name_is_enough() -> None:
    directory = cache("Org/Some-Model")
    assert resolve_model("some-model", silent) == directory
    assert resolve_model("Some-Model", silent) == directory


@pytest.mark.parametrize("matches", [0, 1, 2])
def test_a_part_of_a_name_is_never_enough(matches: int) -> None:  # K6
    for i in range(matches):
        cache(f"org/smol-model-{i}")
    with pytest.raises(ModelError) as info:
        resolve_model("smol", silent)
    message = str(info.value)
    assert message.startswith("no model 'smol': give a model directory")
    for i in range(2):
        assert (f"org/smol-model-{i}" in message) == (i < matches)
    assert "SmolLM2-135M-Instruct" in message


def test_a_name_that_two_models_have_is_refused() -> None:  # K6
    cache("one/model")
    cache("two/Model")
    with pytest.raises(ModelError, match="'model' could be any of one/model, two/Model; give one"):
        resolve_model("model", silent)
    assert resolve_model("two/Model", silent).is_dir()


@pytest.mark.parametrize("typo", ["some-modle", "sme-model", "SOME_MODEL", "other/some-model", "Org/Some-Modell"])
def test_typing_errors_get_the_near_name(typo: str) -> None:
    assert near_names(typo, ["Org/Some-Model", "Org/quite-different", "starter"])[0] == "Org/Some-Model"


def test_near_names_of_nothing() -> None:
    assert near_names("", ["a", "b"]) == []
    assert near_names("xyz", ["Org/Some-Model"]) == []
    assert len(near_names("m", [f"org/m{i}" for i in range(100)])) == 8


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_none(text: str) -> None:
    name = parse_hub_name(text)
    if name is not None:
        assert parse_hub_name(f"hf:{name}") == name
        assert ".." not in str(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("hf:org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:Q4_K_M", HubName("org/name", quantization="Q4_K_M")),
        ("org/name@main:IQ2_XS", HubName("org/name", quantization="IQ2_XS")),
        ("org/name/sub/file.Q8_0.gguf", HubName("org/name", file="sub/file.Q8_0.gguf")),
        ("org/name/file.gguf@v2", HubName("org/name", "v2", file="file.gguf")),
        ("name", None),
        ("org/name/other", None),
        ("org/../name", None),
        ("/org/name", None),
        ("org/name@../../x", None),
        ("models--org/name", None),
        ("org/name ", None),
    ],
)
def test_names_of_the_hub(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name


# --- aliases -------------------------------------------------------------------------------------------------------------


def test_aliases(home: Path) -> None:
    directory = cache("org/name")
    set_alias("mine", "org/name")
    assert load_aliases() == {"mine": "org/name"}
    assert resolve_model("mine", silent) == directory
    assert aliases_file().is_relative_to(home / "data")
    assert aliases_file().stat().st_mode & 0o777 == 0o600  # K3
    assert aliases_file().parent.stat().st_mode & 0o777 == 0o700
    remove_alias("mine")
    with pytest.raises(ModelError, match="no model 'mine'"):
        resolve_model("mine", silent)


def test_aliases_come_after_places_and_before_the_hub(home: Path) -> None:
    first, second = cache("org/name"), cache("other/mine")
    set_alias("mine", "org/name")
    assert resolve_model("mine", silent) == first, "not other/mine"
    save(home / "work/mine")
    assert resolve_model("mine", silent) == Path("mine")
    assert second.is_dir()


@pytest.mark.parametrize("name", ["", "a/b", "a b", "~x", "./x", "-x", "x.gguf", "hf:x", "a\nb"])
def test_names_that_mean_something_else_are_no_aliases(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="an alias is made of"):
        set_alias(name, "org/name")


def test_an_alias_does_not_hide_a_place(home: Path) -> None:
    (home / "work/here").mkdir()
    with pytest.raises(InvalidRequestError, match="is a file or directory here"):
        set_alias("here", "org/name")


def test_aliases_of_what_is_gone() -> None:
    set_alias("mine", "/nowhere/model")
    with pytest.raises(ModelError, match="no model '/nowhere/model'"):
        find_source("mine")
    set_alias("other", "mine")  # not followed: no circles
    with pytest.raises(ModelError, match="the alias 'other' stands for 'mine', which is no model"):
        find_source("other")
    assert [entry.name for entry in list_models()] == ["SmolLM2-135M-Instruct"]


def test_removing_what_is_none() -> None:
    with pytest.raises(InvalidRequestError, match="no alias 'mine'; there are: none"):
        remove_alias("mine")


def test_damaged_aliases_are_named(home: Path) -> None:
    replace_file(aliases_file(), "{")
    assert resolve_model(str(save(home / "mine")), silent) == home / "mine", "they have no say in places"
    with pytest.raises(ModelError, match=r"cannot read .*model-aliases\.json"):
        resolve_model("org/name", silent)
    with pytest.raises(ModelError, match=r"cannot read .*model-aliases\.json"):
        list_models()


# --- files of a repository -----------------------------------------------------------------------------------------------


def remote(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 10) for path in paths]


def chosen(*paths: str, with_code: bool = False) -> list[str]:
    return [file.path for file in needed_files(HubName("o/n"), remote(*paths), with_code=with_code)]


def test_pickles_and_copies_are_not_fetched() -> None:
    files = ("config.json", "model.safetensors", "pytorch_model.bin", "consolidated.safetensors", "tokenizer.model", "x.py", "a.md")
    assert chosen(*files) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert chosen(*files, with_code=True) == ["config.json", "model.safetensors", "tokenizer.model", "x.py"]


def test_shards_come_with_their_index() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert chosen("config.json", "sub/model-00001-of-00002.safetensors", *shards) == ["config.json", *shards]


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["config.json", "pytorch_model.bin"], "only pickle files such as pytorch_model.bin"),
        (["config.json", "a-Q4_0.gguf"], "choose one of Q4_0 as in o/n:Q4_0"),
        (["a-Q4_0.gguf"], "has no config.json, but GGUF files"),
        (["model.safetensors"], "no config.json"),
        (["config.json", "model.safetensors.index.json"], "no safetensors weights"),
        ([], "no config.json"),
    ],
)
def test_what_cannot_be_used_is_said(paths: list[str], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        chosen(*paths)


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("Model-7B.Q4_K_M.gguf", "Q4_K_M"),
        ("model-IQ2_XXS.gguf", "IQ2_XXS"),
        ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/model-bf16.gguf", "bf16"),
        ("q8_0.gguf", "q8_0"),
        ("model.gguf", ""),
        ("Q4_0.bin", ""),
    ],
)
def test_quantization_of_a_files_name(path: str, quantization: str) -> None:
    assert quantization_of(path) == quantization


def test_gguf_files_are_chosen_exactly() -> None:
    files = remote(
        "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "sub/m-Q8_0.gguf", "sub2/m-Q8_0.gguf", "mmproj-Q4_K_M.gguf", "b-Q6_K-00001-of-00002.gguf"
    )

    def choose(**name: Any) -> str:
        return gguf_file(HubName("o/n", **name), files).path

    assert choose(quantization="q4_k_m") == "m-Q4_K_M.gguf"
    assert choose(file="sub/m-Q8_0.gguf") == "sub/m-Q8_0.gguf"
    with pytest.raises(ModelError, match="no GGUF file Q4_K in o/n; there are"):
        choose(quantization="Q4_K")
    with pytest.raises(ModelError, match="means several files"):
        choose(quantization="Q8_0")
    with pytest.raises(ModelError, match="comes in 1 parts"):
        choose(quantization="Q6_K")
    with pytest.raises(ModelError, match="no GGUF files in o/n"):
        gguf_file(HubName("o/n", quantization="Q4_0"), remote("config.json"))


# --- what is here --------------------------------------------------------------------------------------------------------


def test_the_list(home: Path) -> None:
    cached = cache("org/name")
    made = converted("tiny", home / "gone.gguf")
    mine = save(home / "mine", quantization_config={"quant_method": "gptq", "bits": 4})
    set_alias("own", str(mine))
    set_alias("short", "org/name")
    record_use(made)
    entries = {entry.name: entry for entry in list_models()}
    assert list(entries) == ["tiny", "mine", "org/name", "SmolLM2-135M-Instruct"], "the last used first"
    assert entries["org/name"].directory == cached
    assert entries["org/name"].aliases == ("short",)
    facts = entries["org/name"].facts
    assert (facts.family, facts.architecture, facts.parameters, facts.context) == ("llama", "LlamaForCausalLM", 1000, 64)
    assert (facts.stored_type, facts.quantization, facts.problem) == ("float32", None, None)
    assert facts.size == sum(path.stat().st_size for path in cached.iterdir())
    assert entries["tiny"].facts.quantization == "Q4_0"
    assert entries["tiny"].last_used == pytest.approx(load_uses()[str(made)])
    assert entries["mine"].facts.quantization == "gptq 4 bit"
    assert entries["SmolLM2-135M-Instruct"].facts.problem == "not fetched yet"


def test_damage_is_shown_not_raised(home: Path) -> None:
    directory = save(home / "mine")
    (directory / "model.safetensors").unlink()
    assert "no safetensors weights" in str(read_facts(directory).problem)
    (directory / "config.json").write_text("[]")
    assert "not a JSON object" in str(read_facts(directory).problem)


def test_two_files_of_one_name_are_listed_by_their_places(home: Path) -> None:
    converted("tiny", home / "a/tiny.gguf")
    save(models_dir() / "gguf/tiny-87654321")
    (models_dir() / "gguf/tiny-87654321" / NOTE).write_text(json.dumps({"name": "tiny", "source": str(home / "b/tiny.gguf")}))
    assert {entry.name for entry in list_models()} >= {str(home / "a/tiny.gguf"), str(home / "b/tiny.gguf")}
    with pytest.raises(ModelError, match=r"'tiny\.gguf' could be any of"):
        find_source("tiny.gguf")


def test_a_conversion_is_used_when_its_file_is_gone(home: Path) -> None:
    made = converted("tiny", home / "gone.gguf")
    assert resolve_model("tiny", silent) == made


def test_models_are_called_by_their_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_name(cache("org/name")) == "org/name"
    assert model_name(converted("tiny", home / "tiny.gguf", "Tiny One")) == "Tiny One"
    directory = save(home / "mine")
    assert model_name(directory) == "mine"
    (directory / NOTE).write_text("[]")
    monkeypatch.chdir(directory)
    assert model_name(Path()) == "mine"


# --- removing ------------------------------------------------------------------------------------------------------------


def test_directories_of_the_user_are_never_deleted(home: Path) -> None:
    save(home / "mine")
    with pytest.raises(ModelError, match="directory of your own; delete it yourself"):
        plan_removal(find_source(str(home / "mine")))
    converted("inside", home / "gone.gguf")
    with pytest.raises(ModelError, match="directory of your own"):
        plan_removal(find_source(str(models_dir() / "gguf")))


def test_a_gguf_file_stays_when_its_conversion_goes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = converted("tiny", home / "work/tiny.gguf")
    removal = plan_removal(find_source("tiny"))
    assert removal.places == (made,)
    removal.execute()
    assert not made.exists()
    (home / "work/tiny.gguf").touch()
    with pytest.raises(ModelError, match=r"nothing to delete: tiny .*tiny\.gguf itself is a file of your own"):
        plan_removal(find_source("tiny.gguf"))


def test_deleting_a_revision_of_the_hub_leaves_the_others() -> None:
    first, second = cache("org/name"), cache("org/name", ref="v2", commit="d" * 40)
    plan_removal(find_source("org/name@v2")).execute()
    assert first.is_dir()
    assert not second.exists()
    plan_removal(find_source("org/name")).execute()
    assert not first.parents[1].exists()


def test_starter_is_deleted_and_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    save(models_dir() / "SmolLM2-135M-Instruct")
    source = find_source("starter")
    assert find_here(source) is not None
    plan_removal(source).execute()
    assert find_here(source) is None
    assert source.kind is SourceKind.STARTER
    monkeypatch.setattr(model_files, "starter_directory", lambda _: Path("/again"))
    assert fetch_model(source, silent) == Path("/again")


def test_deleting_what_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    made = converted("tiny", home / "gone.gguf")

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied", str(made))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(ModelError, match=f"cannot delete {made}: Permission denied"):
        plan_removal(find_source("tiny")).execute()


# --- uses and places -----------------------------------------------------------------------------------------------------


def test_uses_are_private(home: Path) -> None:  # K3
    record_use(home / "a")
    (file,) = state_dir().iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert list(load_uses()) == [str(home / "a")]


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), lambda path: path.write_text('{"a": "b"}')])
def test_uses_that_cannot_be_read_are_forgotten(home: Path, damage: Callable[[Path], object]) -> None:
    record_use(home / "a")
    (file,) = state_dir().iterdir()
    damage(file)
    assert load_uses() == {}
    record_use(home / "b")
    assert list(load_uses()) == [str(home / "b")]


def test_uses_that_cannot_be_written_do_no_harm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    record_use(home / "a")
    assert load_uses() == {}


def test_private_files_are_replaced_in_one_piece(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(home / "x/file", "first")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        replace_file(home / "x/file", "second")
    assert (home / "x/file").read_text() == "first"
    assert [path.name for path in (home / "x").iterdir()] == ["file"]


# --- places --------------------------------------------------------------------------------------------------------------


def test_private_directories_keep_what_is_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert private_dir(tmp_path / "a/b") == tmp_path / "a/b"
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    (tmp_path / "a").chmod(0o750)
    private_dir(tmp_path / "a/b/c")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750, "what the user has set is left alone"


def test_a_file_where_a_private_directory_should_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.touch()
    for path in (file, file / "chatpaged", file / "a/b"):
        with pytest.raises(NotADirectoryError) as told:
            private_dir(path)
        assert told.value.filename == str(file)


def test_models_live_in_the_cache_that_xdg_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_dir() == tmp_path / "chatpaged/models"
    assert [path.name for path in tmp_path.iterdir()] == ["work"], "asking for a place makes none"
