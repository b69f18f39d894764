"""One conversation through a chat template: what the template sees, what it does not take, and what it writes around replies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chatpaged.engine.reasoning import ReasoningMarkers, starts_inside
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.errors import InvalidRequestError
from chatpaged.messages import ChatMessage, RenderedPrompt
from chatpaged.prompt_assembly import ANSWER, REASONING, TEXT, WHOLE, Assembly, Marks, Piece, join_reasoning, texts_in
from chatpaged.template_language import SPECIAL_TOKENS, TemplateProgram, TemplateRefusalError

# Under these names templates look for a message's thinking. Where a template knows none, it may look for it in the content.
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_READS_REASONING = re.compile(rf"[.'\"](?:{'|'.join(_REASONING_NAMES)})\b")


@dataclass(frozen=True, slots=True)
class _Header:
    """What a template writes between a user's text and the reply.

    Attributes:
        text: before a reply that is about to be written.
        lead: the end of it that a past reply does not have, such as the opening of a thinking block.
        surplus: space that only a past reply has before it; the model writes it itself.
    """

    text: str = ""
    lead: str = ""
    surplus: str = ""


class Rendering:
    """One prompt on its way from messages to ids."""

    def __init__(
        self,
        program: TemplateProgram,
        tokenizer: Tokenizer,
        markers: ReasoningMarkers | None,
        messages: Sequence[ChatMessage],
        arguments: Mapping[str, object],
        prefill: str,
    ) -> None:
        self._program = program
        self._tokenizer = tokenizer
        self._markers = markers
        # By their number, which stays when the system message is taken out.
        self._messages = dict(enumerate(messages))
        # Words begin with their space: one that stands alone would make the model's next word a rare one.
        self._prefill = prefill.removesuffix(" ")
        texts = [prefill, *texts_in(arguments), *(text for message in messages for text in (message.content, message.reasoning))]
        self._marks = Marks(tokenizer, (program.source, *texts))
        self._arguments = {name: self._marks.hide_in(value) for name, value in arguments.items()}
        self._max_characters = 16 * sum(map(len, texts))
        self._reads_reasoning = _READS_REASONING.search(program.source) is not None

    def prompt(self, *, generation: bool, keep_reasoning: bool) -> RenderedPrompt:
        """See `ChatTemplate.render`."""
        pieces, merged = self._pieces(generation=generation)
        header = self._header()
        assembly = Assembly(self._tokenizer, self._marks)
        pieces = join_reasoning(pieces, self._messages, self._markers, keep=keep_reasoning)
        for piece, following in pairwise(pieces):
            self._add(assembly, piece, following, header)
        last = pieces[-1]
        lead = header.lead if generation and last.text.endswith(header.lead) else ""
        assembly.add_text(last.text[: len(last.text) - len(lead)])
        lead_ids = assembly.extend_text(lead) if lead else ()
        prefill_ids = self._add_prefill(assembly, header.surplus if last.text.endswith(header.text) else "")
        markers = self._markers
        inside = generation and markers is not None and starts_inside(markers, last.text) and markers.end not in self._prefill
        return RenderedPrompt(
            "".join(assembly.text),
            tuple(assembly.ids),
            self._prefill,
            prefill_ids,
            lead_ids,
            in_reasoning=inside,
            system_merged=merged,
            replies=tuple(assembly.replies),
        )

    def _add(self, assembly: Assembly, piece: Piece, following: Piece, header: _Header) -> None:
        if piece.kind == TEXT:
            text = piece.text
            if following.kind != TEXT and header.surplus and text.endswith(header.text + header.surplus):
                text = text.removesuffix(header.surplus)
            assembly.add_text(text)
        elif piece.kind == REASONING:
            assembly.add_text(self._marks.hide(self._messages[piece.index].reasoning))
        else:
            assembly.add_reply(piece.index, self._messages[piece.index], reasoning=piece.kind == WHOLE)

    def _add_prefill(self, assembly: Assembly, surplus: str) -> tuple[int, ...]:
        if not self._prefill:
            return ()
        before = len(assembly.ids)
        hidden = self._marks.hide(self._prefill)
        if surplus:
            hidden = surplus + hidden
        elif hidden[:1].isspace():
            assembly.add_text("")  # kept apart from the header, as any text that begins with a space
        assembly.extend_text(hidden)
        return tuple(assembly.ids[before:])

    # --- running the template ------------------------------------------------------------------------------------------------

    def _pieces(self, *, generation: bool) -> tuple[list[Piece], bool]:
        """The rendered conversation, and whether the system prompt had to be put into a user's message."""
        rendered, merged = self._run_with_system(generation=generation)
        replies = {i for i, message in self._messages.items() if message.token_ids is not None}
        pieces = self._marks.pieces(rendered, replies)
        if pieces is None:
            # The template takes texts apart, and a placeholder with them: replies have to be encoded anew.
            for i in replies:
                self._messages[i] = replace(self._messages[i], token_ids=None, reasoning_ids=())
            pieces = self._marks.pieces(self._run_kept_apart(generation=generation), ())
        if pieces is None:
            raise InvalidRequestError("the model's chat template writes characters that stand for nothing (noncharacters of Unicode)")
        return pieces, merged

    def _run_with_system(self, *, generation: bool) -> tuple[str, bool]:
        refusal = None
        try:
            rendered = self._run_kept_apart(generation=generation)
            if not self._loses_system(rendered):
                return rendered, False
        except TemplateRefusalError as error:
            refusal = error
        original = self._messages
        if self._merge_system():
            try:
                return self._run_kept_apart(generation=generation), True
            except TemplateRefusalError as error:
                refusal = refusal or error
        elif refusal is None:
            return rendered, False
        self._messages = original
        raise InvalidRequestError(f"the model's chat template refuses these messages: {refusal}{self._hint()}") from refusal

    def _hint(self) -> str:
        roles = [message.role for message in self._messages.values()]
        if any(a == b for a, b in pairwise(roles)):
            return "; two messages in a row are of one role: join them, or use --template FILE"
        if roles[0] == "system":
            return "; try it without a system prompt, or use --template FILE"
        return ""

    def _loses_system(self, rendered: str) -> bool:
        """Whether the template silently leaves out the system prompt."""
        system = self._messages[0]
        if system.role != "system" or self._marks.hide(system.content).strip() in rendered:
            return False
        # It may be written in another form, such as JSON: a placeholder tells.
        place = self._marks.placeholder(ANSWER, 0)
        try:
            return place not in self._run([{"role": "system", "content": place}, {"role": "user", "content": "a"}], generation=True)
        except TemplateRefusalError:
            return False

    def _merge_system(self) -> bool:
        """Puts the system prompt before the user's first message; False if there is no place for it."""
        system, first = self._messages.get(0), self._messages.get(1)
        if system is None or first is None or system.role != "system" or first.role != "user":
            return False
        content = f"{system.content}\n\n{first.content}" if system.content.strip() else first.content
        self._messages = {1: replace(first, content=content), **{i: self._messages[i] for i in self._messages if i > 1}}
        return True

    def _run_kept_apart(self, *, generation: bool) -> str:
        """Renders with a mark before each text that begins with a space, which would merge with the line end before it.

        Without marks where the template would treat such texts differently with them, such as trim them.
        """
        contents = {i: self._content(i, message) for i, message in self._messages.items()}
        rendered = self._run(self._variables(contents), generation=generation)
        cut = self._marks.cut
        apart = {i: f"{cut}{content}" if content[:1].isspace() else content for i, content in contents.items()}
        if apart == contents:
            return rendered
        with_cuts = self._run(self._variables(apart), generation=generation)
        return with_cuts if with_cuts.replace(cut, "") == rendered else rendered

    def _run(self, messages: list[dict[str, object]], *, generation: bool) -> str:
        special = {name: self._tokenizer.special_text(name) or "" for name in SPECIAL_TOKENS}
        variables = {**special, **self._arguments, "messages": messages, "add_generation_prompt": generation, "tools": None}
        return self._program.render(variables, self._max_characters)

    # --- what the template sees ----------------------------------------------------------------------------------------------

    def _content(self, index: int, message: ChatMessage) -> str:
        return self._marks.hide(message.content) if message.token_ids is None else self._marks.placeholder(ANSWER, index)

    def _variables(self, contents: Mapping[int, str]) -> list[dict[str, object]]:
        return [self._message_variables(i, message, contents[i]) for i, message in self._messages.items()]

    def _message_variables(self, index: int, message: ChatMessage, content: str) -> dict[str, object]:
        variables: dict[str, object] = {"role": message.role, "content": content}
        if not message.reasoning:
            return variables
        generated = bool(message.reasoning_ids)
        reasoning = self._marks.placeholder(REASONING, index) if generated else self._marks.hide(message.reasoning)
        if self._reads_reasoning:
            variables |= dict.fromkeys(_REASONING_NAMES, reasoning)
        elif self._markers is not None:
            # The template finds the markers, if it looks for them, and leaves out or keeps what is between.
            start, end = self._markers.start, self._markers.end
            inner = f"{start}{reasoning}{end}" if generated else f"{start}\n{reasoning}\n{end}\n\n"
            variables["content"] = inner + content
        return variables

    def _header(self) -> _Header:
        """Compares the header of a reply that is about to be written with that of a past one, in a small conversation."""
        question, reply, more = (self._marks.placeholder(ANSWER, i) for i in range(3))
        first: dict[str, object] = {"role": "user", "content": question}
        try:
            now = self._run([first], generation=True)
            past = self._run(
                [first, {"role": "assistant", "content": reply}, {"role": "user", "content": more}],
                generation=False,
            )
        except TemplateRefusalError:
            return _Header()
        text = now.rpartition(question)[2] if question in now else ""
        before = past.partition(reply)[0].rpartition(question)[2] if question in past and reply in past else ""
        if before and text.startswith(before):
            return _Header(text, lead=text[len(before) :])
        if text and before.startswith(text) and before[len(text) :].isspace():
            return _Header(text, surplus=before[len(text) :])
        return _Header(text)
