"""nano-vllm's published setting: 256 requests at once, 100 to 1,024 tokens in and as many out at random, on the shape of Qwen3-0.6B."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING

from benchmarks.gpu.models import about, model_directory, shape
from benchmarks.gpu.rows import Report

if TYPE_CHECKING:
    from benchmarks.gpu.engines import Loaded
    from chatpaged.bench_replies import Figures
    from chatpaged.bench_workloads import Workload

LEAST_RATIO = 20
REQUESTS, TOKENS, CONTEXT, BATCHED_TOKENS = 256, (100, 1024), 4096, 8192
_PEER_REQUESTS, _PEER_NEW = 4, 128
_LOOK_EVERY = 16


@dataclass(slots=True)
class _Use:
    """What is seen of the pool now and then."""

    live: list[float] = field(default_factory=list)
    most_running: int = 0
    steps: int = 0

    def look(self, ours: Loaded) -> None:
        """Called after each step."""
        self.steps += 1
        self.most_running = max(self.most_running, len(ours.engine.scheduler.running))
        if self.steps % _LOOK_EVERY == 0:
            now = ours.engine.snapshot()
            slots = (now.used_blocks + now.shared_blocks) * now.block_size
            if slots:
                self.live.append(100 * now.live_tokens / slots)


def run(report: Report) -> None:
    """The part of this module."""
    from benchmarks.gpu.engines import loaded, random_requests, release

    smoke = report.settings.smoke
    directory = model_directory(report, "qwen3")
    count, tokens, context = (6, (10, 40), 96) if smoke else (REQUESTS, TOKENS, CONTEXT)
    workload = random_requests(count, tokens, tokens, shape("qwen3", smoke=smoke)["vocab_size"])
    title = f"{about(directory, 'qwen3')}, {count} requests"
    use = _Use()
    figures: Figures = {}
    with (
        report.attempt(title),
        loaded(directory, report.settings.device, max_num_seqs=count, max_model_len=context, max_num_batched_tokens=BATCHED_TOKENS) as ours,
    ):
        figures = ours.answer(workload, lambda _: use.look(ours))
        _tell(report, title, figures, use, ours, workload)
    ratio = f"{title}: by transformers' generate one by one"
    if not figures or not report.has_time(ratio, 10, least=LEAST_RATIO):
        return
    with report.attempt(ratio):
        from benchmarks.gpu.peers import GpuPeer

        release()
        sample = random_requests(_PEER_REQUESTS, tokens, tokens, shape("qwen3", smoke=smoke)["vocab_size"])
        peer = GpuPeer(directory, device=report.settings.device, dtype="auto")
        theirs = peer.one_by_one(_shortened(sample))
        note = f"{theirs:.1f} tokens/s, from the first {_PEER_REQUESTS} requests, of whose answers at most {_PEER_NEW} tokens"
        least = None if smoke else LEAST_RATIO
        report.add(ratio, (figures["tokens_per_second"] or 0.0) / theirs, "times", least=least, note=note)


def _tell(report: Report, title: str, figures: Figures, use: _Use, ours: Loaded, workload: Workload) -> None:
    longest = mean(chat.num_tokens for chat in workload.chats)
    report.add(title, figures["tokens_per_second"] or 0.0, "tokens/s", note=str(ours.engine.code))
    report.add(f"{title}: seconds", figures["seconds"] or 0.0, "s", note=f"{workload.num_new_tokens:,} new tokens")
    report.add(f"{title}: first token, mean", figures["first_token_ms_mean"] or 0.0, "ms")
    report.add(f"{title}: slots of blocks in use that hold tokens", mean(use.live or [0.0]), "%", note="over all steps")
    report.add(f"{title}: most at the same time", use.most_running, "requests")
    report.add(f"{title}: preemptions", figures["preemptions"] or 0, "")
    context = ours.engine.config.max_model_len or 1
    reserved = (ours.runner.num_blocks - 1) * ours.block_size // context
    note = f"{reserved} if {context} tokens were reserved for each"
    report.add(f"{title}: that the pool holds to their end", ours.room(int(longest)), "requests", note=note)


def _shortened(workload: Workload) -> Workload:
    """The same prompts with short answers: `generate` needs as long for each token, whichever it is."""
    from dataclasses import replace

    return replace(workload, chats=tuple(replace(chat, new_tokens=min(_PEER_NEW, chat.new_tokens)) for chat in workload.chats))
