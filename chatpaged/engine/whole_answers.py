"""Requests run to their end, for whoever does not drive the engine step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable

from chatpaged.engine.outputs import Completion, RequestOutput, RequestResult
from chatpaged.engine.prompts import Prompt
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler import Scheduler
from chatpaged.messages import RenderedPrompt


class WholeAnswers(ABC):
    """What `LLMEngine` offers on top of its steps.

    Attributes:
        scheduler: the engine's.
    """

    scheduler: Scheduler

    @abstractmethod
    def render(self, prompt: Prompt) -> RenderedPrompt:
        """See `LLMEngine.render`."""

    @abstractmethod
    def add_request(self, prompt: Prompt, params: SamplingParams | None = None, *, interactive: bool = False) -> str:
        """See `LLMEngine.add_request`."""

    @abstractmethod
    def abort(self, request_id: str) -> RequestOutput | None:
        """See `LLMEngine.abort`."""

    @abstractmethod
    def step(self) -> list[RequestOutput]:
        """See `LLMEngine.step`."""

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, interactive: bool = True
    ) -> Generator[RequestOutput, None, None]:
        """Runs one request and yields its outputs as they come. Closing the iterator cancels the request.

        Other requests that have been added go on meanwhile, but their outputs are lost: use `step` for several.
        """
        request_id = self.add_request(prompt, params, interactive=interactive)
        try:
            while self.scheduler.group(request_id) is not None:
                yield from (output for output in self.step() if output.request_id == request_id)
        finally:
            self.abort(request_id)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestResult:
        """Runs one request to its end. Arguments and errors as for `add_request`."""
        return self.generate_many([(prompt, params)])[0]

    def generate_many(self, requests: Iterable[tuple[Prompt, SamplingParams | None]]) -> list[RequestResult]:
        """Runs requests together in one batch; results in the order of the requests.

        Raises:
            InvalidRequestError: as for `add_request`; then none of the requests is run.
            PromptTooLongError: likewise.
            ChatpagedError: one of them failed; the others are cancelled.
        """
        prompts: dict[str, tuple[int, ...]] = {}
        results: dict[str, RequestResult] = {}
        try:
            for prompt, params in requests:
                ids = self.render(prompt).token_ids
                prompts[self.add_request(ids, params)] = ids
            answers: dict[str, list[Completion]] = {request_id: [] for request_id in prompts}
            while len(results) < len(prompts):
                for output in self.step():
                    if output.request_id in prompts and output.error is not None:
                        raise output.error
                    if output.request_id in prompts:
                        answers[output.request_id] += output.completions
                        if output.metrics is not None:
                            results[output.request_id] = RequestResult(
                                request_id=output.request_id,
                                prompt_token_ids=prompts[output.request_id],
                                completions=tuple(sorted(answers[output.request_id], key=lambda completion: completion.index)),
                                metrics=output.metrics,
                            )
        finally:
            for request_id in prompts:
                self.abort(request_id)
        return [results[request_id] for request_id in prompts]
