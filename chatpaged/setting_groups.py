"""The settings there are: small groups, each setting with its kind, its default and a sentence.

A new setting is a field; a new group is a dataclass and a field of `Settings`. Everything else follows from here: the variables,
what files may hold, `chatpaged config`, completion, and the defaults of every option with the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

from chatpaged.engine.config import ATTENTIONS, DEFAULT_BLOCK_SIZE, DEVICES, DTYPES, KV_DTYPES, MAX_THREADS, QUANTIZE
from chatpaged.setting_kinds import Choice, Flag, Keys, Kind, Number, Size, Text, Value

PREFIX = "CHATPAGED_"
# Each says the same thing in another way: a value for one takes the place of a value for the other that ranks lower.
EXCLUSIVE = {"engine.kv_blocks": "engine.kv_memory", "engine.kv_memory": "engine.kv_blocks"}

_COUNT = Number(minimum=1, whole=True)
_THREADS = Number(minimum=1, maximum=MAX_THREADS, whole=True)


def _setting(default: Value | None, kind: Kind, text: str, *, unset: str = "") -> Any:
    """A field of a group. `text` is one sentence; `unset` says what happens when the default is None."""
    return field(default=default, metadata={"kind": kind, "text": text, "unset": unset})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How answers are drawn, and how long they may be."""

    temperature: float | None = _setting(
        None, Number(minimum=0, maximum=100), "0 picks the most likely token.", unset="the model's, else 0.7"
    )
    top_p: float | None = _setting(
        None,
        Number(minimum=0, maximum=1, above=True),
        "Keep the most likely tokens that sum up to this.",
        unset="the model's, else 0.95",
    )
    top_k: int | None = _setting(
        None, Number(minimum=-1, whole=True), "Keep the k most likely tokens; 0 or -1 keeps all.", unset="the model's"
    )
    min_p: float | None = _setting(
        None, Number(minimum=0, maximum=1), "Drop tokens less likely than this share of the most likely one.", unset="the model's"
    )
    repetition_penalty: float | None = _setting(
        None, Number(minimum=0.01, maximum=10), "Above 1 makes tokens of prompt and answer less likely.", unset="the model's"
    )
    presence_penalty: float | None = _setting(
        None, Number(minimum=-2, maximum=2), "Taken off the score of each token the answer has used.", unset="0"
    )
    frequency_penalty: float | None = _setting(
        None, Number(minimum=-2, maximum=2), "Taken off a token's score for each time the answer has used it.", unset="0"
    )
    max_tokens: int | None = _setting(None, _COUNT, "Longest answer in tokens.", unset="what the context allows")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine is built: where it runs, and what memory it takes."""

    device: str = _setting("auto", Choice(DEVICES), "Where to run.")
    dtype: str = _setting("auto", Choice(DTYPES), "Type of weights and KV; auto is float32 on a CPU.")
    quantize: str = _setting(
        "auto", Choice(QUANTIZE), "How weights are stored: fp8 on CUDA, others on a CPU, where auto is int4 if nothing is lost, else int8."
    )
    kv_dtype: str = _setting(
        "auto", Choice(KV_DTYPES), "How keys and values are stored: fp8 on CUDA, others on a CPU; auto is fp16 beside quantized weights."
    )
    attention: str = _setting(
        "auto", Choice(ATTENTIONS), "Which attention a model gets; auto on CUDA is the first of triton, flash, varlen that runs there."
    )
    enforce_eager: bool = _setting(
        default=False, kind=Flag(), text="On CUDA, launch each operation of a step by itself: starts faster, runs slower."
    )
    threads: int | None = _setting(None, _THREADS, "CPU threads.", unset="physical cores")
    kv_blocks: int | None = _setting(None, _COUNT, "Size of the KV pool in blocks.", unset="by free memory")
    kv_memory: int | None = _setting(None, Size(), "Size of the KV pool in bytes, such as 2G.", unset="by free memory")
    memory_utilization: float | None = _setting(
        None, Number(minimum=0, maximum=1, above=True), "Share of the free memory for the KV pool.", unset="by device"
    )
    swap_space: int | None = _setting(
        None, Size(minimum=0), "Host memory for KV blocks that make room; beside a CPU, a file.", unset="4G beside a GPU, else none"
    )
    disk_cache: int = _setting(2 * 2**30, Size(minimum=0), "KV blocks kept on disk, so that chats of yesterday open warm; 0 keeps none.")
    block_size: int = _setting(
        DEFAULT_BLOCK_SIZE, Number(minimum=1, whole=True, power_of_two=True), "Tokens in a KV block; a power of two up to 4,096."
    )
    max_num_seqs: int = _setting(32, _COUNT, "Sequences that run at once.")
    max_batched_tokens: int | None = _setting(None, _COUNT, "Tokens a step may compute.", unset="by device")
    max_model_len: int | None = _setting(None, _COUNT, "Longest sequence in tokens.", unset="the model's context")
    prefix_caching: bool = _setting(default=True, kind=Flag(), text="Share computed blocks between requests.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """What is shown, and how."""

    thinking: str = _setting("show", Choice(("show", "hide", "stdout")), "Where a reasoning model's thinking goes.")
    color: str = _setting("auto", Choice(("auto", "never"), off="never"), "Colours on a terminal.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """How `chatpaged run` looks and behaves."""

    theme: str = _setting("textual-dark", Text(), "Colour theme; the command palette lists them.")
    map_colors: str = _setting("theme", Choice(("theme", "colorblind", "letters")), "How the block map tells states of blocks apart.")
    sidebar: bool = _setting(default=True, kind=Flag(), text="Show the list of chats.")
    engine_panel: bool = _setting(default=True, kind=Flag(), text="Show the engine panel.")
    ctrl_c: str = _setting("hint", Choice(("hint", "quit")), "What Ctrl+C does when there is nothing to copy and nothing to stop.")
    editor: str | None = _setting(None, Text(), "Editor for long prompts.", unset="$VISUAL, else $EDITOR, else vi")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """Keys of `chatpaged run`, several of them with commas between."""

    send: str = _setting("enter", Keys(), "Send what is typed.")
    newline: str = _setting("shift+enter,alt+enter,ctrl+j", Keys(), "Begin a new line.")
    open_editor: str = _setting("ctrl+g", Keys(), "Write in an editor.")
    stop: str = _setting("escape", Keys(), "Stop the answer.")
    new_chat: str = _setting("ctrl+n", Keys(), "Begin a chat.")
    next_chat: str = _setting("ctrl+pagedown,alt+down", Keys(), "Go to the chat below.")
    previous_chat: str = _setting("ctrl+pageup,alt+up", Keys(), "Go to the chat above.")
    find: str = _setting("ctrl+f", Keys(), "Find a chat or a message.")
    messages: str = _setting("ctrl+up,f7", Keys(), "Choose a message, to copy, edit or branch.")
    tree: str = _setting("ctrl+t", Keys(), "Show the branches.")
    choose_model: str = _setting("ctrl+o", Keys(), "Change the model.")
    toggle_sidebar: str = _setting("ctrl+b", Keys(), "Show or hide the list of chats.")
    toggle_engine: str = _setting("f2", Keys(), "Show or hide the engine panel.")
    engine_screen: str = _setting("f3", Keys(), "Show the engine on the whole screen.")
    split: str = _setting("f4", Keys(), "Show another chat beside this one.")
    next_pane: str = _setting("f6", Keys(), "Go to the next pane.")
    log: str = _setting("f12", Keys(), "Show the log.")
    palette: str = _setting("ctrl+p", Keys(), "Show all commands.")
    help: str = _setting("f1", Keys(), "Show the keys.")
    quit: str = _setting("ctrl+q", Keys(), "Quit; everything is saved.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. Those at the top are what a command is asked with most."""

    model: str | None = _setting(
        None, Text(), "A model's name or directory; one that begins with ./ or ../ is seen from its file.", unset="the starter model"
    )
    system: str | None = _setting(None, Text(), "System prompt.", unset="the chat template's own")
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    app: AppSettings = field(default_factory=AppSettings)
    keys: KeySettings = field(default_factory=KeySettings)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known about one setting.

    Attributes:
        key: its name with its group, as in `sampling.top_p`.
        kind: the values it takes.
        default: its value when nobody sets it; None leaves the decision to others.
        text: what it does, in a sentence.
        unset: what happens when the value is None.
    """

    key: str
    kind: Kind
    default: Value | None
    text: str
    unset: str

    @property
    def name(self) -> str:
        """The name without the group."""
        return self.key.rpartition(".")[2]

    @property
    def group(self) -> str:
        """The group; empty at the top."""
        return self.key.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.key.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The option that sets it, of any command that has it. Keys are called like what they do, as options of many commands are."""
        name = self.key if self.group == "keys" else self.name
        return "--" + name.replace("_", "-").replace(".", "-")


@cache
def all_settings() -> dict[str, Setting]:
    """All settings by key, in the order of their definition. Not to be changed."""
    return {setting.key: setting for setting in _walk(Settings(), "")}


def _walk(group: Any, prefix: str) -> Iterator[Setting]:
    for entry in fields(group):
        default = getattr(group, entry.name)
        if is_dataclass(default):
            yield from _walk(default, f"{prefix}{entry.name}.")
        else:
            yield _described(entry, prefix, default)


def _described(entry: Field[Any], prefix: str, default: Value | None) -> Setting:
    return Setting(prefix + entry.name, entry.metadata["kind"], default, entry.metadata["text"], entry.metadata["unset"])
