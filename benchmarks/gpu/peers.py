"""transformers beside our engine, in this process: `generate`, one request after another, and its own continuous batching."""

from __future__ import annotations

from typing import Any

import transformers

from chatpaged.bench_replies import replies_from, reply_figures
from chatpaged.bench_workloads import Workload
from chatpaged.engine.model_executor.transformers_peer import TransformersPeer


class GpuPeer(TransformersPeer):
    """The model; greedy, end tokens ignored."""

    def one_by_one(self, workload: Workload) -> float:
        """New tokens a second of `generate`."""
        return reply_figures(replies_from(self.run(workload.plain(), 1)))["tokens_per_second"] or 0.0

    def continuous(self, workload: Workload) -> float:
        """New tokens a second of `generate_batch`, from the moment at which it takes up its first request: without its own start-up.

        Args:
            workload: requests whose answers are equally long.

        Raises:
            RuntimeError: requests failed, or were answered with another number of tokens.
        """
        new_tokens = workload.chats[0].new_tokens
        hf: Any = transformers
        # No token has this id, so none ends an answer.
        generation = hf.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        # Beside a CPU it would take most of the memory that there is.
        sizes = hf.ContinuousBatchingConfig(num_blocks=64) if self._device.type == "cpu" else None
        outputs = self._model.generate_batch(
            [list(chat.turns[0]) for chat in workload.chats], generation_config=generation, continuous_batching_config=sizes
        )
        answers = list(outputs.values())
        failed = next((str(answer.error) for answer in answers if answer.error), "")
        tokens = sum(len(answer.generated_tokens) for answer in answers)
        if failed or (len(answers), tokens) != (len(workload.chats), workload.num_new_tokens):
            raise RuntimeError(failed or f"{len(answers)} answers of {tokens} tokens in all came back")
        begin, end = min(answer.lifespan[0] for answer in answers), max(answer.lifespan[1] for answer in answers)
        return float(tokens / (end - begin))
