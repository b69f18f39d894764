"""`chatpaged ask`: one prompt, the answer on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatpaged.cli.completion import complete_model_names
from chatpaged.cli.main import INTERRUPTED, TERMINATED, Terminated
from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.setting_options import SettingsCommand
from chatpaged.cli.terminal import AnswerWriter, Status, configure_streams
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.generation_defaults import generation_defaults
from chatpaged.engine.sampling_params import MAX_SEED, SamplingParams
from chatpaged.errors import InvalidRequestError, ModelError

if TYPE_CHECKING:
    from chatpaged.chat_template import ChatMessage, ChatTemplate, RenderedPrompt
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.engine.outputs import Completion, RequestMetrics
    from chatpaged.engine.tokenizer import Tokenizer

_POSITIVE = click.IntRange(min=1)


@dataclass(slots=True)
class Answers:
    """What came back, complete or as far as it got."""

    seed: int = 0
    completions: list[Completion] = field(default_factory=list)
    metrics: RequestMetrics | None = None
    interrupted_by: int | None = None


@click.command("ask", cls=SettingsCommand, context_settings={"max_content_width": 100})
@click.argument("prompt", nargs=-1)
@click.option(
    "-m",
    "--model",
    "model_name",
    shell_complete=complete_model_names,
    help="A model directory, or 'starter'.  [default: the starter model]",
)
@click.option("-s", "--system", help="System prompt.")
@click.option("--max-tokens", type=_POSITIVE, help="Longest answer in tokens.  [default: what the context allows]")
@click.option("--temperature", type=click.FloatRange(0, 100), help="0 picks the most likely token.  [default: the model's, else 0.7]")
@click.option("--top-p", type=float, help="Keep the most likely tokens that sum up to this.  [default: the model's, else 0.95]")
@click.option("--top-k", type=click.IntRange(min=-1), help="Keep the k most likely tokens; 0 or -1 keeps all.  [default: the model's]")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), help="Makes the answer repeatable.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text (repeatable).")
@click.option("-n", "samples", type=_POSITIVE, default=1, show_default=True, help="Answers to give.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of text.")
@click.option("--dry-run", is_flag=True, help="Show the rendered prompt, with --json its token ids too; run nothing.")
@click.option("--stats", is_flag=True, help="Write figures to standard error.")
@engine_options
def command(  # noqa: PLR0913 - one parameter an option
    *,
    prompt: tuple[str, ...],
    model_name: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    stop: tuple[str, ...],
    samples: int,
    as_json: bool,
    dry_run: bool,
    stats: bool,
    **engine: Any,
) -> None:
    """Answer one prompt on standard output.

    Text that is piped in is put before PROMPT, with an empty line between them; one newline at its end is dropped. Several
    words of PROMPT are joined by spaces.

    Exit codes: 0 ok, 1 failed while running, 2 usage, 3 model, 4 input too long, 5 not enough memory, 130 interrupted.
    """
    configure_streams()
    messages = _messages(" ".join(prompt), _read_stdin(), system)
    config = engine_config(**engine)
    given: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed, "max_tokens": max_tokens}
    asked = SamplingParams(**{name: value for name, value in given.items() if value is not None}, n=samples, stop=stop)
    status = Status()
    model = _open_model(model_name, status)
    rendered = model.render(messages)
    if dry_run:
        _show_prompt(rendered, as_json=as_json)
        return
    model.check_fits(rendered, config)
    params = replace(asked, **{name: value for name, value in model.sampling_defaults().items() if given[name] is None})
    writer = AnswerWriter(sys.stdout)
    show = _no_text if as_json or samples > 1 else writer.write
    with model.load(config, status) as llm:
        answers = _run(llm, rendered, params, show)
    _finish(answers, writer, model.directory.name, as_json=as_json, streamed=samples == 1)
    if stats and answers.metrics is not None:
        sys.stderr.write(_stats(answers.metrics))
    if answers.interrupted_by is not None:
        raise click.exceptions.Exit(answers.interrupted_by)


# --- before ----------------------------------------------------------------------------------------------------------


def _read_stdin() -> str:
    """What is piped in, less one newline at its end; empty on a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not UTF-8 text (byte {data[error.start]:#04x} at {error.start})") from error
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def _messages(question: str, document: str, system: str | None) -> list[ChatMessage]:
    from chatpaged.chat_template import ChatMessage

    # The document first: whatever is asked about it, its blocks are shared.
    content = "\n\n".join(part for part in (document, question) if part)
    if not content:
        raise InvalidRequestError("empty prompt; give one as an argument or pipe it in")
    for text in (content, system or ""):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidRequestError("the prompt is not valid UTF-8 text")
    return [*([ChatMessage("system", system)] if system is not None else []), ChatMessage("user", content)]


@dataclass(frozen=True, slots=True)
class Model:
    """A model on disk, of which only the text side has been read."""

    directory: Path
    tokenizer: Tokenizer
    template: ChatTemplate | None

    def render(self, messages: list[ChatMessage]) -> RenderedPrompt:
        """The prompt as the model gets it."""
        from chatpaged.engine.prompts import render_prompt

        return render_prompt(messages, self.tokenizer, self.template)

    def check_fits(self, rendered: RenderedPrompt, config: EngineConfig) -> None:
        """Refuses a prompt that is too long before seconds are spent on loading the weights."""
        from chatpaged.engine.limits import check_prompt_fits
        from chatpaged.model_files import context_length

        context = config.max_model_len if config.max_model_len is not None else context_length(self.directory)
        check_prompt_fits(len(rendered.token_ids), context=context, num_blocks=config.kv_blocks, block_size=config.block_size)

    def sampling_defaults(self) -> dict[str, Any]:
        """What the model's makers recommend."""
        from chatpaged.engine.tokenizer import read_json

        return generation_defaults(read_json(self.directory / "generation_config.json")).values

    def load(self, config: EngineConfig, status: Status) -> LLMEngine:
        """The engine, with the weights loaded."""
        from chatpaged.engine.llm_engine import LLMEngine

        status.show(f"loading {self.directory.name}")
        try:
            return LLMEngine.from_pretrained(self.directory, config, tokenizer=self.tokenizer)
        finally:
            status.clear()


def _open_model(name: str | None, status: Status) -> Model:
    from chatpaged.chat_template import ChatTemplate
    from chatpaged.engine.tokenizer import Tokenizer
    from chatpaged.model_files import resolve_model

    try:
        directory = resolve_model(name, status.tell)
    finally:
        status.clear()
    tokenizer = Tokenizer.from_directory(directory)
    return Model(directory, tokenizer, ChatTemplate.from_directory(directory, tokenizer))


def _show_prompt(rendered: RenderedPrompt, *, as_json: bool) -> None:
    if as_json:
        _write_json({"prompt": rendered.text, "token_ids": rendered.token_ids, "prompt_tokens": len(rendered.token_ids)})
    else:
        writer = AnswerWriter(sys.stdout)
        writer.write(rendered.text)
        writer.end()


# --- running ---------------------------------------------------------------------------------------------------------


def _run(llm: LLMEngine, rendered: RenderedPrompt, params: SamplingParams, show: Callable[[str], None]) -> Answers:
    """Runs the request; Ctrl-C and SIGTERM end it with what there is so far."""
    answers = Answers()
    request_id = llm.add_request(rendered.token_ids, params, interactive=True)
    answers.seed = llm.seed_of(request_id) or 0
    try:
        while llm.has_unfinished:
            for output in llm.step():
                answers.completions += output.completions
                answers.metrics = output.metrics
                for delta in output.deltas:
                    show(delta.text)
    except (KeyboardInterrupt, Terminated) as error:
        answers.interrupted_by = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        last = llm.abort(request_id)
        if last is not None:
            answers.completions += last.completions
            answers.metrics = last.metrics
            for delta in last.deltas:
                show(delta.text)
    answers.completions.sort(key=lambda completion: completion.index)
    return answers


# --- after -----------------------------------------------------------------------------------------------------------


def _finish(answers: Answers, writer: AnswerWriter, model: str, *, as_json: bool, streamed: bool) -> None:
    if as_json:
        _write_json(_as_json(answers, model))
    elif streamed:
        writer.end()
    else:
        for completion in answers.completions:
            writer.write(f"--- {completion.index + 1} of {len(answers.completions)} ---\n{completion.text}")
            writer.end()


def _as_json(answers: Answers, model: str) -> dict[str, Any]:
    metrics = answers.metrics
    if metrics is None or not answers.completions:
        raise ModelError("the engine gave no answer")
    first = answers.completions[0]
    return {
        "model": model,
        "text": first.text,
        "reasoning": None,
        "finish_reason": first.finish_reason.value,
        "answers": [
            {
                "index": completion.index,
                "text": completion.text,
                "finish_reason": completion.finish_reason.value,
                "completion_tokens": completion.num_tokens,
                "token_ids": completion.token_ids,
                "seed": answers.seed + completion.index,
            }
            for completion in answers.completions
        ],
        "usage": {
            "prompt_tokens": metrics.prompt_tokens,
            "cached_tokens": metrics.cached_tokens,
            "prefill_tokens": metrics.prefill_tokens,
            "completion_tokens": metrics.completion_tokens,
        },
        "seed": answers.seed,
        "engine": {
            name: value
            for name, value in asdict(metrics).items()
            if name not in {"prompt_tokens", "cached_tokens", "prefill_tokens", "completion_tokens"}
        },
    }


def _stats(metrics: RequestMetrics) -> str:
    first = f"{metrics.time_to_first_token:.2f} s" if metrics.time_to_first_token is not None else "none"
    speed = f"{metrics.tokens_per_second:.1f} tok/s" if metrics.tokens_per_second is not None else "- tok/s"
    return (
        f"prompt {metrics.prompt_tokens} tokens: {metrics.cached_tokens} cached, {metrics.prefill_tokens} read · "
        f"answer {metrics.completion_tokens} tokens · first token {first} · {speed} · {metrics.total_time:.2f} s in all\n"
        f"blocks {metrics.peak_blocks} · copies on write {metrics.cow} · preemptions {metrics.preemptions} · "
        f"read again {metrics.recomputed_tokens} tokens\n"
    )


def _write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _no_text(_: str) -> None:
    """Nothing is shown before the end."""
