"""The documents say what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import chatpaged
from tests import write_app_docs, write_cli_docs

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def test_the_architecture_names_every_module_and_no_other() -> None:
    package = Path(chatpaged.__file__).parent
    modules = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if not path.name.startswith("__")}
    table = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Modules")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([^`]+\.py)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(modules)


def test_the_readme_fits_a_sitting() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_files_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = [target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in target]
    paths = re.findall(r"`((?:docs|benchmarks|tests|chatpaged)/[\w./-]+)`", text)
    assert not [target for target in links if not (document.parent / target).exists()]
    assert not [target for target in paths if not (ROOT / target).exists()]


def test_the_command_line_page_is_what_the_commands_say() -> None:
    assert write_cli_docs.PAGE.read_text(encoding="utf-8") == write_cli_docs.page(), "run: make docs"


def test_the_page_of_the_app_has_all_commands_and_keys() -> None:
    page = write_app_docs.page()
    assert write_app_docs.PAGE.read_text(encoding="utf-8") == page, "run: make docs"
    assert "| `/export [FILE]` |" in page
    assert "| Shift+Enter, Alt+Enter, Ctrl+J | Begin a new line. | `keys.newline` |" in page


@pytest.mark.starter
@pytest.mark.parametrize("document", ["docs/python-api.md"])
def test_examples_run(document: str, starter_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        # One module: later examples go on with what earlier ones have imported.
        exec(compile(block.replace("asyncio.run(main())", ""), document, "exec", dont_inherit=True), names)
    exec(
        "with LLMEngine.from_pretrained(directory, config) as engine:\n    chat(engine)\n    talk(engine)\n    run(engine)\n"
        "asyncio.run(main())",
        names,
    )
    printed = capsys.readouterr().out
    assert "FinishReason." in printed
    assert printed.endswith("Hello there\n") or "Hello" in printed
