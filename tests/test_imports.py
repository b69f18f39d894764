"""Who imports whom (design.md, section 4), and what importing costs. The rules are checked on the source, without running it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import chatpaged

PACKAGE = Path(chatpaged.__file__).parent

# Lowest first. A module may import from its own layer and from those below it. A name with a star stands for a whole package.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "",
            "engine",
            "errors",
            "paths",
            "demo_texts",
            "child_process",
            "setting_kinds",
            "engine.gc_pause",
            "amounts",
            "text_matches",
            "task_set",
        }
    ),
    frozenset({"engine.config", "engine.sampling_params", "engine.generation_defaults", "engine.outputs"}),
    frozenset({"engine.sequence", "engine.scheduler_output"}),
    frozenset({"engine.block_pool", "engine.tier_policy", "engine.tokenizer_files", "engine.file_access", "engine.block_directories"}),
    frozenset({"engine.block_files", "engine.block_room", "engine.retained_prefixes"}),
    frozenset({"engine.disk_writer"}),
    frozenset({"engine.disk_tier"}),
    frozenset({"engine.block_tiers"}),
    frozenset({"engine.block_traffic", "engine.prefix_chains"}),
    frozenset({"engine.block_manager"}),
    frozenset({"engine.limits", "engine.sample_rows", "engine.step_plan", "engine.token_budget", "engine.scheduler"}),
    frozenset({"engine.executor", "engine.tokenizer", "engine.snapshot"}),
    frozenset(
        {
            "engine.weight_files",
            "engine.reasoning",
            "engine.end_tokens",
            "engine.token_bytes",
            "engine.detokenizer",
            "engine.stop_texts",
            "engine.repetition",
            "engine.output_slot",
        }
    ),
    frozenset({"engine.reasoning_splitter", "engine.output_processor"}),
    frozenset({"messages", "template_sandbox", "template_language"}),
    frozenset({"prompt_assembly", "prompt_rendering", "chat_template", "history"}),
    frozenset({"engine.model_executor.*"}),
    frozenset(
        {"engine.scripted", "engine.prompts", "engine.request_clock", "engine.engine_tiers", "engine.whole_answers", "engine.llm_engine"}
    ),
    frozenset({"engine.engine_state", "demo_executor"}),
    frozenset({"engine.async_engine", "engine_rows"}),
    frozenset({"engine_view"}),
    frozenset({"setting_groups", "settings_file", "model_names", "hub_progress", "block_cache", "gguf_files", "model_usage"}),
    frozenset({"hub_cache", "hub_files", "starter_model", "model_aliases"}),
    frozenset({"hub", "model_sources"}),
    frozenset({"conversation", "store_database", "store_search", "shown_text", "markdown_pieces"}),
    frozenset({"foreign_sessions", "turn_facts"}),
    frozenset({"store_rows"}),
    frozenset({"store_sessions"}),
    frozenset({"store", "session_store"}),
    frozenset({"store_queue"}),
    frozenset({"store_background"}),
    frozenset({"session_model", "text_length"}),
    frozenset({"session_draft", "demo"}),
    frozenset({"session_reply"}),
    frozenset({"session_stream"}),
    frozenset({"session", "session_formats", "settings", "presets", "model_files", "model_list", "model_removal"}),
    frozenset({"local_model"}),
    frozenset({"documents", "key_names", "slash_commands", "prompt_draft", "pasted_text"}),
    frozenset({"prompt_history", "prompt_chips", "attachments", "prompt_completion", "external_editor"}),
    frozenset({"workspace_events", "backends"}),
    frozenset({"branch_tree", "choices", "key_help"}),
    frozenset({"chat"}),
    frozenset({"session_list", "chat_shelf"}),
    frozenset({"engine_host"}),
    frozenset({"engine_watch", "preset_prompts", "chat_memory"}),
    frozenset({"chat_answers"}),
    frozenset({"workspace"}),
    frozenset({"answer_board"}),
    frozenset({"batch_fields", "batch_rows", "token_reports", "batch_output", "batch_run", "batch_manifest", "batch_file"}),
    frozenset({"bench_replies", "bench_workloads", "llama_cpp_peer"}),
    frozenset({"bench_steps", "bench_file", "bench_machine", "bench_peers"}),
    frozenset({"bench_run", "bench_report"}),
    frozenset({"ui.*"}),
    frozenset({"cli.*", "__main__"}),
)
# What a package from outside may be imported by. Nothing may import pickle, nor anything that hides an import from this test.
HOMES: dict[str, str | tuple[str, ...] | None] = {
    "torch": "engine.model_executor",
    "transformers": "engine.model_executor",
    "safetensors": "engine.model_executor",
    "flash_attn": "engine.model_executor.attention.flash_paged",
    "triton": (
        "engine.model_executor.attention.triton_kernels",
        "engine.model_executor.attention.fp8_kernels",
        "engine.model_executor.models.fused_kernels",
        "engine.model_executor.models.fp8_product_kernels",
    ),
    "huggingface_hub": "hub",
    "click": "cli",
    "textual": "ui",
    "importlib": "cli.main",
    "pickle": None,
    "runpy": None,
}
# The model's side sees snapshots of plain numbers, never what the scheduler works with (design.md, rule 3).
HIDDEN_FROM_EXECUTOR = frozenset({"engine.sequence", "engine.scheduler", "engine.block_manager", "chat_template", "messages", "history"})
ENTRY = ("engine.llm_engine", "LLMEngine.from_pretrained")
MUTABLE_CALLS = frozenset({"list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter", "count"})


Rule = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    within: str
    """The function that imports, as `Class.method`; empty at the top of the module."""


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root: Path) -> dict[str, ast.Module]:
    return {module_name(path, root): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))}


def nodes_with_place(node: ast.AST, place: str = "") -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{place}.{child.name}".lstrip(".")
        yield child, inner
        yield from nodes_with_place(child, inner)


def imports(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module imports by its full name, relative imports included, and where."""
    for node, place in nodes_with_place(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, place) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(["chatpaged", *name.split(".")][: -node.level] + ([base] if base else []))
            yield base, place
            yield from ((f"{base}.{alias.name}", place) for alias in node.names)


def internal(root: Path) -> Iterator[Import]:
    known = modules(root)
    for name, tree in known.items():
        for imported, place in imports(name, tree):
            short = imported.removeprefix("chatpaged.") if imported != "chatpaged" else ""
            if (imported == "chatpaged" or imported.startswith("chatpaged.")) and short in known and short != name:
                yield Import(name, short, place)


def layer(name: str) -> int | None:
    for i, names in enumerate(LAYERS):
        if name in names or any(name == star[:-2] or name.startswith(star[:-1]) for star in names if star.endswith(".*")):
            return i
    return None


def modules_without_layer(root: Path) -> list[str]:
    return [name for name in modules(root) if layer(name) is None]


def upward_imports(root: Path) -> list[str]:
    found = []
    for entry in internal(root):
        low, high = layer(entry.importer), layer(entry.imported)
        if low is not None and high is not None and high > low:
            found.append(f"{entry.importer} imports {entry.imported}")
    return found


def wrong_ways_to_the_executor(root: Path) -> list[str]:
    def inside(name: str) -> bool:
        return name == "engine.model_executor" or name.startswith("engine.model_executor.")

    found = [
        f"{entry.importer} imports {entry.imported} in {entry.within or 'the module'}"
        for entry in internal(root)
        if inside(entry.imported) and not inside(entry.importer) and (entry.importer, entry.within) != ENTRY
    ]
    return found + [
        f"{entry.importer} imports {entry.imported}"
        for entry in internal(root)
        if inside(entry.importer) and entry.imported in HIDDEN_FROM_EXECUTOR
    ]


def misplaced_packages(root: Path) -> list[str]:
    found = []
    for name, tree in modules(root).items():
        for imported, _ in imports(name, tree):
            top = imported.split(".")[0]
            home = HOMES.get(top)
            homes = home if isinstance(home, tuple) else (home,)
            if top in HOMES and not any(name == place or name.startswith(f"{place}.") for place in homes):
                found.append(f"{name} imports {top}")
        found += [f"{name} calls __import__" for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "__import__"]
    return sorted(set(found))


def import_cycles(root: Path) -> list[str]:
    """Modules that reach themselves by imports at the top of modules; those would fail or not by who comes first."""
    edges: dict[str, set[str]] = {}
    for entry in internal(root):
        if not entry.within:
            edges.setdefault(entry.importer, set()).add(entry.imported)
    found = []
    for start, direct in edges.items():
        reached: set[str] = set()
        todo = list(direct)
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += edges.get(name, ())
        if start in reached:
            found.append(start)
    return found


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
        return name in MUTABLE_CALLS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def module_state(root: Path) -> list[str]:
    """Names that hold state of a whole module: containers that are not written as constants, and `global`."""
    found = []
    for name, tree in modules(root).items():
        for statement in tree.body:
            targets: list[ast.expr] = []
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            if isinstance(statement, ast.Assign | ast.AnnAssign) and is_mutable(statement.value):
                found += [f"{name}.{target.id}" for target in targets if isinstance(target, ast.Name) and not target.id.isupper()]
        found += [f"{name}: global {', '.join(node.names)}" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    return [entry for entry in found if not entry.rpartition(".")[2].startswith("__")]


RULES = (modules_without_layer, upward_imports, wrong_ways_to_the_executor, misplaced_packages, import_cycles, module_state)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule: Rule) -> None:
    assert rule(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("engine/novelty.py", "", modules_without_layer),
        ("novelty.py", "", modules_without_layer),
        ("engine/block_pool.py", "from chatpaged.engine.scheduler import Scheduler", upward_imports),
        ("engine/block_pool.py", "from ..engine import scheduler", upward_imports),
        ("engine/tokenizer.py", "def f():\n    import chatpaged.chat_template", upward_imports),
        ("chat_template.py", "from chatpaged.engine import llm_engine", upward_imports),
        ("session.py", "from chatpaged.engine.model_executor import model_runner", wrong_ways_to_the_executor),
        ("engine/llm_engine.py", "def f():\n    from chatpaged.engine.model_executor import model_runner", wrong_ways_to_the_executor),
        ("engine/model_executor/model_runner.py", "from chatpaged.engine.sequence import Sequence", wrong_ways_to_the_executor),
        ("engine/sequence.py", "import torch.nn", misplaced_packages),
        ("engine/sequence.py", "def f():\n    from transformers import AutoModel", misplaced_packages),
        ("session.py", "import click", misplaced_packages),
        ("model_files.py", "def f():\n    from huggingface_hub import snapshot_download", misplaced_packages),
        ("cli/ask.py", "import textual", misplaced_packages),
        ("cli/ask.py", "import importlib", misplaced_packages),
        ("engine/model_executor/kv_cache.py", "import pickle", misplaced_packages),
        ("session.py", "torch = __import__('torch')", misplaced_packages),
        ("engine/executor.py", "import chatpaged.engine.snapshot", import_cycles),
        ("session.py", "sessions = {}", module_state),
        ("session.py", "_open: list[int] = []", module_state),
        ("session.py", "waiting = collections.deque()", module_state),
        ("session.py", "def f():\n    global count", module_state),
    ],
)
def test_rule_finds_a_violation(tmp_path: Path, path: str, source: str, rule: Rule) -> None:
    for name in ("engine/scheduler.py", "engine/llm_engine.py", "engine/sequence.py", "chat_template.py", "__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("engine/model_executor", "cli"):
        (tmp_path / name).mkdir()
    (tmp_path / "engine/model_executor/model_runner.py").touch()
    (tmp_path / "engine/snapshot.py").write_text("import chatpaged.engine.executor")
    (tmp_path / path).write_text(source)
    assert len(rule(tmp_path)) >= 1


def test_permitted_imports_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "engine/model_executor").mkdir(parents=True)
    (tmp_path / "engine/model_executor/model_runner.py").write_text("import torch\nfrom chatpaged.errors import ModelError")
    (tmp_path / "errors.py").write_text("LIMITS = {}\n__all__ = []\nnames = ()")
    (tmp_path / "engine/llm_engine.py").write_text(
        "class LLMEngine:\n    def from_pretrained():\n        from chatpaged.engine.model_executor.model_runner import ModelRunner"
    )
    assert [rule(tmp_path) for rule in RULES] == [[]] * len(RULES)


# --- what importing costs ------------------------------------------------------------------------------------------------


HEAVY = frozenset({"torch", "transformers", "textual", "tokenizers", "safetensors", "jinja2", "huggingface_hub", "tomlkit", "numpy"})
# What a prompt that is only rendered may need of them.
RENDERING = frozenset({"tokenizers", "jinja2"})


def loaded_by(arguments: list[str], environment: dict[str, str]) -> tuple[set[str], str]:
    """Packages that a command imports, and what it writes."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "chatpaged", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "click" in loaded, "the list of imports is not being read"
    return loaded, done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["ask", "--help"],
        ["batch", "--help"],
        ["bench", "--help"],
        ["cache", "--help"],
        ["config", "--help"],
        ["sessions", "--help"],
        ["config", "show"],
        ["config", "show", "--origin", "--json"],
        ["config", "path"],
        ["cache", "show"],
        ["completion", "bash"],
    ],
    ids=" ".join,
)
def test_commands_that_answer_at_once_load_nothing_heavy_and_write_nothing(tmp_path: Path, arguments: list[str]) -> None:  # K1
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")} | {"HOME": str(home)}
    loaded, written = loaded_by(arguments, environment)
    assert loaded.isdisjoint(HEAVY)
    assert "chatpaged" in written or arguments[:2] == ["config", "show"]
    assert list(home.iterdir()) == []


@pytest.mark.starter
def test_rendering_a_prompt_loads_no_model_code(starter_model: Path) -> None:
    loaded, written = loaded_by(["ask", "--dry-run", "hi"], dict(os.environ))
    assert loaded & HEAVY == RENDERING
    assert "hi<|im_end|>" in written


def test_help_works_without_a_home() -> None:
    # Not even root could make a directory there.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")} | {"HOME": "/dev/null/nowhere"}
    done = subprocess.run([sys.executable, "-m", "chatpaged", "ask", "--help"], capture_output=True, text=True, check=True, env=environment)
    assert "--max-tokens" in done.stdout
    assert done.stderr == ""


TORCH_FREE = sorted(
    f"chatpaged.{name}".rstrip(".")
    for name in modules(PACKAGE)
    if not name.startswith("engine.model_executor") and not name.startswith("ui") and name != "__main__"
)
SCRIPTED_CHAT = """
import asyncio, importlib, sys
for name in ("torch", "transformers", "safetensors", "textual"):
    sys.modules[name] = None  # importing it raises ImportError
for name in sys.argv[1:]:
    importlib.import_module(name)
from chatpaged.chat_template import ChatMessage
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.scripted import ScriptedExecutor
from tests.byte_tokenizer import END, byte_template, byte_tokenizer

def make():
    tokenizer = byte_tokenizer()
    executor = ScriptedExecutor(lambda row, sample: (*b"Hello", END)[sample.position])
    return LLMEngine(executor, tokenizer, chat_template=byte_template(tokenizer))

async def chat():
    async with AsyncEngine(lambda _: make()) as engine:
        async for output in engine.generate([ChatMessage("user", "hi")]):
            for delta in output.deltas:
                print(delta.text, end="")

asyncio.run(chat())
import json, pathlib, tempfile
directory = pathlib.Path(tempfile.mkdtemp())
header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
(directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
(directory / "config.json").write_text('{"model_type": "llama"}')
try:
    LLMEngine.from_pretrained(directory)
except ImportError as error:
    print(" without", error.name)
"""


def test_core_works_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPTED_CHAT, *TORCH_FREE],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert done.stderr == ""
    assert done.stdout == "Hello without torch\n"
