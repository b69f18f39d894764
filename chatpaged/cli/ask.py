"""`chatpaged ask`: one prompt, the answer on standard output."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chatpaged.cli.answer_view import AnswerView, ViewOptions, tell_about, view_options
from chatpaged.cli.answers import Answers, answers_as_json, stats_of, write_json
from chatpaged.cli.engine_notes import engine_notes
from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.prompt_options import PromptOptions, check_text, prompt_options
from chatpaged.cli.sampling_options import effective_sampling, given_sampling, sampling_options, with_defaults
from chatpaged.cli.session_options import SessionChoice, run_draft, session_options
from chatpaged.cli.setting_options import SettingsCommand
from chatpaged.cli.signals import dying, leaving_at_once
from chatpaged.cli.terminal import AnswerWriter, Status, configure_streams
from chatpaged.cli.truncation import cut_text
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, ModelError, PromptTooLongError, StoreError

if TYPE_CHECKING:
    from chatpaged.engine.generation_defaults import GenerationDefaults
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.local_model import LocalModel
    from chatpaged.messages import RenderedPrompt
    from chatpaged.session import ChatSession, Draft

# An answer needs room: of a prompt that is cut, so many tokens are left to it unless --max-tokens says otherwise.
_ROOM_FOR_ANSWER = 512
_LONG_TEXT = 1_000_000
_RESERVED = {"schema": "structured output", "lora": "adapters"}


@click.command("ask", cls=SettingsCommand, context_settings={"max_content_width": 100})
@click.argument("prompt", nargs=-1)
@prompt_options
@sampling_options
@view_options
@session_options
@engine_options
@click.option("--schema", hidden=True)
@click.option("--lora", hidden=True)
def command(*, prompt: tuple[str, ...], **options: Any) -> None:
    """Answer one prompt on standard output.

    Files and text that is piped in are put before PROMPT, with an empty line between them; one newline at the end of each is
    dropped. Several words of PROMPT are joined by spaces. What is said is kept, unless --no-save; -c goes on with it.

    Exit codes: 0 ok, 1 failed while running, 2 usage, 3 model, 4 input too long, 5 not enough memory, 130 interrupted.
    """
    configure_streams()
    _refuse_reserved(options)
    view = ViewOptions.take(options)
    asked = PromptOptions.take(options)
    given = given_sampling(options)
    _check_sampling(given, view)
    choice = SessionChoice.take(options)
    config = engine_config(**options)
    text, notes = asked.text(prompt)
    status = Status(quiet=view.quiet)
    for note in notes:
        status.note(note)
    model = open_model(asked, status, trust_remote_code=config.trust_remote_code)
    defaults = model.sampling_defaults()
    params = with_defaults(given, defaults)
    with ExitStack() as stack:
        session = _open_session(stack, choice, model, asked, status, dry_run=view.dry_run)
        with dying():  # long texts take seconds to encode
            draft = _draft(session, model, asked, text, given, config, status)
        if view.dry_run:
            _show_prompt(draft.prompt, params, as_json=view.as_json)
            return
        _check_fits(model, draft.prompt, config, can_cut=asked.truncate is None)
        tell_ignored(defaults, status)
        stack.enter_context(engine_notes(status))
        llm = stack.enter_context(load_model(model, config, status))
        answers = _answer(llm, session, draft, params, view)
    tell_about(answers, status, stops_on_repeat=params.stop_on_repeat)
    if view.stats and answers.metrics is not None:
        status.write("\n".join((stats_of(answers.metrics), f"runs on {llm.code.with_reason}", *answers.rereads)))
    if answers.interrupted_by is not None:
        raise click.exceptions.Exit(answers.interrupted_by)


def _answer(llm: LLMEngine, session: ChatSession, draft: Draft, params: SamplingParams, view: ViewOptions) -> Answers:
    """Runs the request and shows what comes of it."""
    prompt = draft.prompt
    shown = AnswerView(view, params.n, prefill="" if prompt.in_reasoning else prompt.prefill)
    answers = run_draft(llm, session, draft, params, shown.show)
    answers.with_prefill(prompt)
    if view.as_json:
        facts: dict[str, Any] = {"model": session.model.name, "sampling": effective_sampling(params)}
        kept = {"session": session.conversation.id, "messages": [draft.question.id, *answers.message_ids]}
        write_json(facts | (kept if session.store is not None else {"session": None}) | answers_as_json(answers, session.model.tokenizer))
    else:
        shown.finish(answers)
    return answers


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


def _check_fits(model: LocalModel, rendered: RenderedPrompt, config: EngineConfig, *, can_cut: bool) -> None:
    """Refuses a prompt that is too long before seconds are spent on loading the weights."""
    try:
        model.check_fits(rendered, config)
    except PromptTooLongError as error:
        hint = ", or --truncate middle" if can_cut else ""
        raise PromptTooLongError(f"{error}{hint}") from error


def load_model(model: LocalModel, config: EngineConfig, status: Status) -> LLMEngine:
    """The engine, with the weights loaded; says meanwhile that this is being done."""
    status.show(f"loading {model.name}")
    try:
        with leaving_at_once():
            return model.load(config)
    finally:
        status.clear()


def open_model(asked: PromptOptions, status: Status, *, trust_remote_code: bool) -> LocalModel:
    """Finds the model, fetches it if need be, and reads its text side."""
    from chatpaged.engine.tokenizer import Tokenizer
    from chatpaged.local_model import LocalModel
    from chatpaged.model_files import resolve_model

    try:
        directory = resolve_model(asked.model, status.tell, show=status.show, trust_remote_code=trust_remote_code)
    finally:
        status.clear()
    tokenizer = Tokenizer.from_directory(directory)
    return LocalModel(directory, tokenizer, asked.chat_template(directory, tokenizer))


def _open_session(
    stack: ExitStack, choice: SessionChoice, model: LocalModel, asked: PromptOptions, status: Status, *, dry_run: bool
) -> ChatSession:
    """The conversation that the question belongs to. One that is begun and cannot be kept is held all the same."""
    from chatpaged.engine.prompts import NO_TEMPLATE
    from chatpaged.session import SessionModel

    if asked.raw_prompt and not choice.is_new:
        raise InvalidRequestError("--raw-prompt takes a text as it is; it does not go on with a conversation")
    if model.template is None and not asked.raw_prompt:
        raise ModelError(NO_TEMPLATE)
    if dry_run:
        choice = replace(choice, no_save=True)
    given = click.get_current_context().get_parameter_source("system") is ParameterSource.COMMANDLINE
    # A system prompt of the settings is for conversations that are begun.
    system = asked.system if (choice.is_new or given) and not asked.raw_prompt else None
    whom = SessionModel(model.name, model.tokenizer, None if asked.raw_prompt else model.template)
    options = choice.with_keeping(asked.session_options())
    try:
        return stack.enter_context(choice.opened(whom, system=system, options=options))
    except StoreError as error:
        if not choice.is_new:
            raise
        status.note(f"this conversation is not kept: {error}")
        return stack.enter_context(replace(choice, no_save=True).opened(whom, system=system, options=options))


def _draft(
    session: ChatSession, model: LocalModel, asked: PromptOptions, text: str, given: dict[str, Any], config: EngineConfig, status: Status
) -> Draft:
    """The prompt, shortened if the user has said so and it does not fit."""

    def draft(content: str) -> Draft:
        return session.draft(content, prefill=asked.prefill, max_tokens=given.get("max_tokens"))

    context = model.context(config) if asked.truncate is not None or len(text) > _LONG_TEXT else None
    if asked.truncate is None and context is not None:
        from chatpaged.text_length import check_length

        check_length(text, model.tokenizer, context)
    if asked.truncate is not None:
        rooms = [context] if context is not None else []
        rooms += [config.kv_blocks * config.block_size] if config.kv_blocks is not None else []
        if rooms:
            room = min(rooms)
            limit = room - min(given.get("max_tokens", _ROOM_FOR_ANSWER), room // 4)
            cut = cut_text(text, asked.truncate, limit, model.tokenizer, lambda content: len(draft(content).prompt.token_ids))
            text = cut.text
            if cut.num_cut:
                status.note(f"left out {cut.num_cut} tokens from the {asked.truncate} of the prompt, which has to fit {limit}")
    drafted = draft(text)
    if text.strip() not in drafted.prompt.text:
        status.note("the chat template leaves out what you ask; is it one for chats?")
    if drafted.prompt.system_merged:
        status.note("this model's chat template has no system prompt; it was put before the first message")
    return drafted


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
