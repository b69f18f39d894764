"""`chatpaged ask`: one prompt, the answer on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatpaged.cli.answer_view import AnswerView, ViewOptions, tell_about, view_options
from chatpaged.cli.answers import Answers, answers_as_json, stats_of, write_json
from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.prompt_options import PromptOptions, check_text, prompt_options
from chatpaged.cli.sampling_options import effective_sampling, given_sampling, sampling_options, with_defaults
from chatpaged.cli.setting_options import SettingsCommand
from chatpaged.cli.signals import Interrupted, dying, leaving_at_once
from chatpaged.cli.terminal import AnswerWriter, Status, configure_streams
from chatpaged.cli.truncation import check_length, cut_text
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, PromptTooLongError

if TYPE_CHECKING:
    from chatpaged.chat_template import ChatTemplate
    from chatpaged.engine.generation_defaults import GenerationDefaults
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.engine.outputs import Delta, RequestOutput
    from chatpaged.engine.tokenizer import Tokenizer
    from chatpaged.messages import RenderedPrompt

# An answer needs room: of a prompt that is cut, so many tokens are left to it unless --max-tokens says otherwise.
_ROOM_FOR_ANSWER = 512
_LONG_TEXT = 1_000_000
_RESERVED = {"schema": "structured output", "lora": "adapters"}


@click.command("ask", cls=SettingsCommand, context_settings={"max_content_width": 100})
@click.argument("prompt", nargs=-1)
@prompt_options
@sampling_options
@view_options
@engine_options
@click.option("--schema", hidden=True)
@click.option("--lora", hidden=True)
def command(*, prompt: tuple[str, ...], **options: Any) -> None:
    """Answer one prompt on standard output.

    Files and text that is piped in are put before PROMPT, with an empty line between them; one newline at the end of each is
    dropped. Several words of PROMPT are joined by spaces.

    Exit codes: 0 ok, 1 failed while running, 2 usage, 3 model, 4 input too long, 5 not enough memory, 130 interrupted.
    """
    configure_streams()
    _refuse_reserved(options)
    view = ViewOptions.take(options)
    asked = PromptOptions.take(options)
    given = given_sampling(options)
    _check_sampling(given, view)
    config = engine_config(**options)
    text, notes = asked.text(prompt)
    status = Status(quiet=view.quiet)
    for note in notes:
        status.note(note)
    model = open_model(asked, status, trust_remote_code=config.trust_remote_code)
    with dying():  # long texts take seconds to encode
        rendered = _render(model, asked, text, given, config, status)
    params = with_defaults(given, model.sampling_defaults())
    if view.dry_run:
        _show_prompt(rendered, params, as_json=view.as_json)
        return
    model.check_fits(rendered, config, can_cut=asked.truncate is None)
    tell_ignored(model.sampling_defaults(), status)
    shown = AnswerView(view, params.n, prefill="" if rendered.in_reasoning else rendered.prefill)
    with model.load(config, status) as llm:
        answers = run_request(llm, rendered, params, shown.show, split_reasoning=not asked.raw_prompt)
        answers.with_prefill(rendered)
        if view.as_json:
            facts = {"model": model.name, "sampling": effective_sampling(params)}
            write_json(facts | answers_as_json(answers, model.tokenizer))
        else:
            shown.finish(answers)
    tell_about(answers, status, stops_on_repeat=params.stop_on_repeat)
    if view.stats and answers.metrics is not None:
        status.write(stats_of(answers.metrics))
    if answers.interrupted_by is not None:
        raise click.exceptions.Exit(answers.interrupted_by)


# --- before ----------------------------------------------------------------------------------------------------------


def _refuse_reserved(options: dict[str, Any]) -> None:
    for name, what in _RESERVED.items():
        if options.pop(name) is not None:
            raise InvalidRequestError(f"--{name} is reserved for {what}, which is not there yet")


def _check_sampling(given: dict[str, Any], view: ViewOptions) -> None:
    """Refuses wrong values before anything is read or loaded."""
    SamplingParams(**given)
    for text in given.get("stop", ()):
        check_text(text)
    if view.raw and given.get("n", 1) > 1:
        raise InvalidRequestError("--raw writes the characters of one answer; several of them are told apart with --json")
    if "logprobs" in given and not view.as_json:
        raise InvalidRequestError("--logprobs are told with --json only")


@dataclass(frozen=True, slots=True)
class Model:
    """A model on disk, of which only the text side has been read."""

    directory: Path
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @property
    def name(self) -> str:
        """What to call it."""
        from chatpaged.engine.weight_files import model_name

        return model_name(self.directory)

    def context(self, config: EngineConfig) -> int | None:
        """Longest sequence in tokens, if that is known before the model is loaded."""
        from chatpaged.model_files import context_length

        return config.max_model_len if config.max_model_len is not None else context_length(self.directory)

    def check_fits(self, rendered: RenderedPrompt, config: EngineConfig, *, can_cut: bool) -> None:
        """Refuses a prompt that is too long before seconds are spent on loading the weights."""
        from chatpaged.engine.limits import check_prompt_fits

        try:
            check_prompt_fits(
                len(rendered.token_ids), context=self.context(config), num_blocks=config.kv_blocks, block_size=config.block_size
            )
        except PromptTooLongError as error:
            hint = ", or --truncate middle" if can_cut else ""
            raise PromptTooLongError(f"{error}{hint}") from error

    def sampling_defaults(self) -> GenerationDefaults:
        """What the model's makers recommend."""
        from chatpaged.engine.generation_defaults import generation_defaults
        from chatpaged.engine.tokenizer import read_json

        return generation_defaults(read_json(self.directory / "generation_config.json"))

    def load(self, config: EngineConfig, status: Status) -> LLMEngine:
        """The engine, with the weights loaded."""
        from chatpaged.model_usage import record_use

        status.show(f"loading {self.name}")
        try:
            with leaving_at_once():
                from chatpaged.engine.llm_engine import LLMEngine

                llm = LLMEngine.from_pretrained(self.directory, config, tokenizer=self.tokenizer, chat_template=self.template)
        finally:
            status.clear()
        record_use(self.directory)
        return llm


def open_model(asked: PromptOptions, status: Status, *, trust_remote_code: bool) -> Model:
    """Finds the model, fetches it if need be, and reads its text side."""
    from chatpaged.engine.tokenizer import Tokenizer
    from chatpaged.model_files import resolve_model

    try:
        directory = resolve_model(asked.model, status.tell, show=status.show, trust_remote_code=trust_remote_code)
    finally:
        status.clear()
    tokenizer = Tokenizer.from_directory(directory)
    return Model(directory, tokenizer, asked.chat_template(directory, tokenizer))


def _render(model: Model, asked: PromptOptions, text: str, given: dict[str, Any], config: EngineConfig, status: Status) -> RenderedPrompt:
    """The prompt, shortened if the user has said so and it does not fit."""

    def render(content: str) -> RenderedPrompt:
        return asked.render(content, model.tokenizer, model.template)

    context = model.context(config) if asked.truncate is not None or len(text) > _LONG_TEXT else None
    if asked.truncate is None and context is not None:
        check_length(text, model.tokenizer, context)
    if asked.truncate is not None:
        rooms = [context] if context is not None else []
        rooms += [config.kv_blocks * config.block_size] if config.kv_blocks is not None else []
        if rooms:
            room = min(rooms)
            limit = room - min(given.get("max_tokens", _ROOM_FOR_ANSWER), room // 4)
            cut = cut_text(text, asked.truncate, limit, model.tokenizer, lambda content: len(render(content).token_ids))
            text = cut.text
            if cut.num_cut:
                status.note(f"left out {cut.num_cut} tokens from the {asked.truncate} of the prompt, which has to fit {limit}")
    rendered = render(text)
    if text.strip() not in rendered.text:
        status.note("the chat template leaves out what you ask; is it one for chats?")
    if rendered.system_merged:
        status.note("this model's chat template has no system prompt; it was put before the first message")
    return rendered


def tell_ignored(defaults: GenerationDefaults, status: Status) -> None:
    """Says what of the model's recommendation is not followed."""
    if defaults.ignored:
        status.note(f"the model recommends {', '.join(defaults.ignored)}, which is not supported and left out")


def _show_prompt(rendered: RenderedPrompt, params: SamplingParams, *, as_json: bool) -> None:
    if as_json:
        facts = {"prompt": rendered.text, "token_ids": rendered.token_ids, "prompt_tokens": len(rendered.token_ids)}
        write_json(facts | {"sampling": effective_sampling(params)})
    else:
        writer = AnswerWriter(sys.stdout)
        writer.write(rendered.text)
        writer.end()


# --- running ---------------------------------------------------------------------------------------------------------


def run_request(
    llm: LLMEngine, rendered: RenderedPrompt, params: SamplingParams, show: Callable[[Delta], None], *, split_reasoning: bool = True
) -> Answers:
    """Runs the request; Ctrl-C and a request to end leave what there is so far.

    Raises:
        ChatpagedError: the request was refused, or has failed.
    """
    answers = Answers()
    request_id = llm.add_request(rendered, params, interactive=True, split_reasoning=split_reasoning)
    answers.seed = llm.seed_of(request_id) or 0
    try:
        while llm.has_unfinished:
            for output in llm.step():
                _take(answers, output, show)
    except Interrupted as error:
        answers.interrupted_by = error.status
        last = llm.abort(request_id)
        if last is not None:
            _take(answers, last, show)
    answers.completions.sort(key=lambda completion: completion.index)
    return answers


def _take(answers: Answers, output: RequestOutput, show: Callable[[Delta], None]) -> None:
    if output.error is not None:
        raise output.error
    answers.completions += output.completions
    answers.metrics = output.metrics
    for delta in output.deltas:
        answers.repeats = max(answers.repeats, delta.repeats)
        show(delta)
