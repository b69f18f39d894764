"""Token ids are those of transformers' own chat templating, for every template and every text that holds no control token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatpaged.chat_template import ChatMessage, ChatTemplate
from chatpaged.engine.tokenizer import Tokenizer
from tests.small_tokenizers import STARTER_TEXT

pytestmark = pytest.mark.starter

TEMPLATES = {
    "starter": None,
    "llama 3": (
        "{% for m in messages %}{% set text = '<|im_start|>' + m['role'] + '<file_sep>\n\n' + m['content'] | trim + '<|im_end|>' %}"
        "{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant<file_sep>\n\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
        "{{ '<|im_start|>' + role + '\n' + (m['content'] | trim) + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{%- for m in messages %}\n    {%- if m['role'] == 'user' %}\n        {{- '[INST] ' + m['content'] + ' [/INST]' }}\n"
        "    {%- else %}\n        {{- ' ' + m['content'] + eos_token }}\n    {%- endif %}\n{%- endfor %}"
    ),
    "qwen": (
        "{%- for message in messages %}\n{%- if message.content is string %}{%- set content = message.content %}"
        "{%- else %}{%- set content = '' %}{%- endif %}\n"
        "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}\n"
        "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}\n"
        "{%- elif message.role == 'assistant' %}\n{%- if '</think>' in content %}\n"
        "{%- set content = content.split('</think>')[-1].lstrip('\n') %}\n{%- endif %}\n"
        "{{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}\n{%- else %}\n{{- content + '\n\n' }}{%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\n' }}\n{%- endif %}"
    ),
    "json": "{% for m in messages %}{{ m | tojson }}{{ strftime_now('%Y') }}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
}


@pytest.fixture(scope="module")
def reference(starter_model: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(starter_model, local_files_only=True)


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def pair(request: pytest.FixtureRequest, starter_model: Path) -> tuple[ChatTemplate, str | None]:
    tokenizer = Tokenizer.from_directory(starter_model)
    source = TEMPLATES[request.param]
    template = ChatTemplate(source, tokenizer) if source is not None else ChatTemplate.from_directory(starter_model, tokenizer)
    assert template is not None
    return template, source


# What begins with a space is kept apart from the template's line end (case A7), which transformers does not do.
TEXT = STARTER_TEXT.filter(lambda text: not text[:1].isspace()) | st.sampled_from(
    ["hi", "x\r\ny ", "tail  \n\n", "<b>&amp;</b>", "<|im_", "|>", "[INST] nested", "don't 日本語 😀", "{{ 7 * 7 }}{% raw %}"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(system=st.none() | TEXT, texts=st.lists(TEXT, min_size=1, max_size=5), add_generation_prompt=st.booleans())
def test_same_ids_as_transformers(
    reference: Any, pair: tuple[ChatTemplate, str | None], system: str | None, texts: list[str], add_generation_prompt: bool
) -> None:
    template, source = pair
    messages = [ChatMessage("system", system)] if system is not None else []
    messages += [ChatMessage("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
    expected = reference.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        tokenize=True,
        return_dict=False,
    )
    assert list(template.render(messages, add_generation_prompt=add_generation_prompt).token_ids) == expected
