"""Native attention against the plain one in float64, over blocks in no order, full of NaN where nothing was written.

Each token's result is the same to the last bit however its row is cut into steps, and whatever is computed beside it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.torch_paged import plain_attention
from chatpaged.engine.model_executor.native.interface import AttentionConfig, Step
from chatpaged.engine.model_executor.native.library import Team, instruction_sets, native_problem
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache, NativeKVLayout
from tests.model_executor.native.conftest import Teams

SETS = instruction_sets() if native_problem() is None else ()
TOLERANCE = 1e-4
"""Against a reference that sees the same keys and values, rounded in the same way. The numbers are of order one."""
NUM_LAYERS = 2
CHUNK = 128


@dataclass(frozen=True)
class Shape:
    """Of attention, and of the blocks it reads."""

    kv_heads: int = 2
    groups: int = 2
    head_dim: int = 16
    block_size: int = 16
    kv_dtype: str = "fp32"
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def heads(self) -> int:
        return self.kv_heads * self.groups


@dataclass
class Row:
    """A sequence: what it computes for each of its tokens, and the blocks it lies in."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    table: list[int]
    done: int = 0


def stored(x: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """What a pool keeps of keys or values `[..., head_dim]`."""
    if kv_dtype == "fp16":
        return x.half().float()
    if kv_dtype == "int8":
        largest = x.abs().amax(-1, keepdim=True)
        codes = (x * torch.where(largest > 0, torch.tensor(127.0).div(largest), 0)).round()
        return codes * (largest / 127)
    return x


@dataclass
class World:
    """Sequences in one pool, which is NaN (as bytes 255) wherever none of their tokens is stored."""

    shape: Shape
    team: Team
    seed: int = 0
    layer: int = 1
    num_blocks: int = 0
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = self.shape
        self.generator = torch.Generator().manual_seed(self.seed)
        layout = NativeKVLayout(
            num_layers=NUM_LAYERS,
            block_size=shape.block_size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            kv_dtype=shape.kv_dtype,
        )
        self.cache = NativeKVCache(layout, self.num_blocks or 1 + 2 * (1200 // shape.block_size + 8))
        self.cache.pool.fill_(255)
        self.free = (torch.randperm(self.cache.num_blocks - 1, generator=self.generator) + 1).tolist()
        self.sinks = self.random(shape.heads) if shape.sinks else None

    def random(self, *shape: int) -> torch.Tensor:
        return 2 * torch.randn(*shape, generator=self.generator)

    def add(self, length: int, like: Row | None = None, shared: int = 0) -> Row:
        """A new sequence; its first `shared` tokens, whole blocks of them, are those of another and computed already."""
        shape = self.shape
        blocks = -(-length // shape.block_size)
        first = shared // shape.block_size
        table, self.free = self.free[: blocks - first], self.free[blocks - first :]
        query, key, value = (self.random(length, heads, shape.head_dim) for heads in (shape.heads, shape.kv_heads, shape.kv_heads))
        if like is not None:
            assert shared % shape.block_size == 0
            assert shared <= like.done
            table = like.table[:first] + table
            key[:shared], value[:shared] = like.key[:shared], like.value[:shared]
        row = Row(query, key, value, table, shared)
        self.rows.append(row)
        return row

    def step(self, grants: Sequence[tuple[Row, int]]) -> list[torch.Tensor]:
        """Computes so many more tokens of rows together."""
        spans = [slice(row.done, row.done + count) for row, count in grants]
        tables = [row.table[: -(-span.stop // self.shape.block_size)] for (row, _), span in zip(grants, spans, strict=True)]
        inputs = [
            torch.cat([getattr(row, name)[span].flatten(1) for (row, _), span in zip(grants, spans, strict=True)])
            for name in ("query", "key", "value")
        ]
        result = torch.full_like(inputs[0], torch.nan)
        counts, starts, blocks, table = (
            torch.tensor(numbers, dtype=torch.int32)
            for numbers in (
                [count for _, count in grants],
                [span.start for span in spans],
                [len(part) for part in tables],
                [block for part in tables for block in part],
            )
        )
        step = Step(num_tokens=len(result), num_rows=len(grants), pool=self.cache.pool.data_ptr())
        step.row_tokens, step.row_starts, step.row_blocks, step.tables = (x.data_ptr() for x in (counts, starts, blocks, table))
        code = self.team.library.cp_attention(
            self.team.handle, ctypes.byref(self.config()), self.layer, ctypes.byref(step), *(x.data_ptr() for x in (*inputs, result))
        )
        assert code == 0
        for (row, _), span in zip(grants, spans, strict=True):
            row.done = span.stop
        return [part.view(-1, self.shape.heads, self.shape.head_dim) for part in torch.split(result, counts.tolist())]

    def config(self) -> AttentionConfig:
        shape = self.shape
        return AttentionConfig(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            kv_format=self.cache.layout.format,
            num_layers=NUM_LAYERS,
            window=shape.window or 0,
            scale=shape.head_dim**-0.5,
            softcap=shape.softcap or 0.0,
            sinks=self.sinks.data_ptr() if self.sinks is not None else None,
        )

    def expected(self, row: Row, start: int, end: int) -> torch.Tensor:
        """Tokens `[start, end)` of a row, by the plain attention."""
        shape = self.shape
        kept = [stored(part, shape.kv_dtype)[:end] for part in (row.key, row.value)]
        query, key, value = (part.double().transpose(0, 1).unsqueeze(0) for part in (row.query[start:end], *kept))
        queries, keys = torch.arange(start, end).unsqueeze(1), torch.arange(end)
        hidden = keys > queries
        if shape.window is not None:
            hidden |= keys <= queries - shape.window
        bias = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill_(hidden, -torch.inf)
        options = AttentionOptions(softcap=shape.softcap, sinks=self.sinks.double() if self.sinks is not None else None)
        return plain_attention(query, key, value, bias, options).squeeze(0).transpose(0, 1)

    def check(self, grants: Sequence[tuple[Row, int]], tolerance: float = TOLERANCE) -> None:
        """A step, and whether each of its numbers is right."""
        starts = [row.done for row, _ in grants]
        for (row, count), start, got in zip(grants, starts, self.step(grants), strict=True):
            wanted = self.expected(row, start, start + count)
            assert bool(got.isfinite().all()), (start, count)
            assert float((got.double() - wanted).abs().max()) < tolerance, (start, count)


def mixed_steps(world: World) -> None:
    """Prompts, chunks of all sizes, decodes: alone and together, over the boundaries of chunks of 128 keys."""
    a, b, c, d = (world.add(length) for length in (330, 290, 150, 20))
    world.check([(a, 100), (b, 1)])
    world.check([(a, 30), (b, 60), (c, 17)])
    world.check([(d, 1), (a, 1), (c, 16), (b, 65)])
    world.check([(a, 2), (b, 1), (c, 1), (d, 3)])
    world.check([(c, 95), (a, 123), (b, 2)])
    world.check([(a, 1), (b, 1), (c, 1), (d, 1)])
    world.check([(b, 128), (a, 16), (d, 15), (c, 17)])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
def test_every_instruction_set(kv_dtype: str, name: str, teams: Teams) -> None:
    for threads in (1, 3):
        mixed_steps(World(Shape(kv_dtype=kv_dtype, head_dim=20), teams(threads, name)))


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 32, 128, 256, 512])
def test_block_sizes(block_size: int, kv_dtype: str, team: Team) -> None:
    mixed_steps(World(Shape(block_size=block_size, kv_dtype=kv_dtype, head_dim=8), team))


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("head_dim", [1, 2, 8, 16, 20, 32, 64, 80, 96, 112, 128, 250, 256])
def test_head_dimensions(head_dim: int, kv_dtype: str, team: Team) -> None:
    world = World(Shape(head_dim=head_dim, kv_dtype=kv_dtype, kv_heads=1), team)
    a, b = world.add(150), world.add(40)
    world.check([(a, 127), (b, 5)])
    world.check([(a, 1), (b, 1)])
    world.check([(a, 22), (b, 34)])


@pytest.mark.parametrize(("kv_heads", "groups"), [(1, 1), (3, 1), (8, 1), (1, 6), (2, 7), (1, 48), (1, 49), (2, 71), (1, 128)])
def test_grouped_heads(kv_heads: int, groups: int, team: Team) -> None:
    """More of them than fit one call of a kernel (48) as well."""
    for kv_dtype in ("fp32", "int8"):
        world = World(Shape(kv_heads=kv_heads, groups=groups, head_dim=8, kv_dtype=kv_dtype), team)
        a, b = world.add(150), world.add(40)
        world.check([(a, 20), (b, 17)])
        world.check([(a, 110), (b, 2)])
        world.check([(a, 1), (b, 1)])
        world.check([(a, 19), (b, 20)])


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
@pytest.mark.parametrize("window", [1, 2, 15, 16, 100, 128, 129, 200, 1000])
def test_windows(window: int, kv_dtype: str, team: Team) -> None:
    for block_size in (1, 16, 256):
        mixed_steps(World(Shape(window=window, block_size=block_size, kv_dtype=kv_dtype, head_dim=8), team))


@pytest.mark.parametrize("options", [{"softcap": 1.5}, {"sinks": True}, {"softcap": 30.0, "sinks": True, "window": 40}], ids=str)
def test_softcap_and_sinks(options: dict[str, float], teams: Teams) -> None:
    for name in SETS:
        mixed_steps(World(Shape(**options), teams(1, name)))  # type: ignore[arg-type]


def test_large_scores_and_values(team: Team) -> None:
    for kv_dtype in ("fp32", "fp16", "int8"):
        world = World(Shape(kv_dtype=kv_dtype), team)
        row = world.add(300)
        row.query *= 100
        row.key[5:200:7] = 0
        row.value[::3] = 0
        for count in (200, 1, 99):
            world.check([(row, count)], tolerance=2e-3)  # scores of some thousand are rounded to that


def test_half_precision_keeps_to_its_range(team: Team) -> None:
    world = World(Shape(kv_dtype="fp16", kv_heads=1, groups=1), team)
    row = world.add(3)
    row.value[:] = 1e6
    (out,) = world.step([(row, 3)])
    assert torch.allclose(out, torch.tensor(65504.0))


@pytest.mark.parametrize("shared", [128, 256])
@pytest.mark.parametrize("block_size", [1, 16, 128])
@pytest.mark.parametrize("window", [None, 150])
def test_rows_that_share_blocks(window: int | None, block_size: int, shared: int, team: Team) -> None:
    """Many rows with the same beginning read it together: more tokens than one piece of work takes, of all short lengths."""
    for kv_dtype in ("fp32", "fp16"):
        world = World(Shape(block_size=block_size, window=window, kv_dtype=kv_dtype, head_dim=8), team, num_blocks=4000)
        first = world.add(300)
        world.check([(first, 270)])
        rows = [world.add(shared + 10 + i, first, shared) for i in range(20)]
        world.check([(first, 1), *((row, 1 + i % 5) for i, row in enumerate(rows))])
        world.check([*((row, 1) for row in rows), (first, 2)])
        world.check([(rows[0], 3), (rows[1], 17 - 9), (first, 20), *((row, 1) for row in rows[2:])])


def test_shared_part_of_a_chunk(team: Team) -> None:
    """Rows part within a stretch of 128 keys, where they no longer read together."""
    world = World(Shape(), team)
    first = world.add(200)
    world.check([(first, 170)])
    rows = [world.add(180, first, shared) for shared in (16, 112, 144, 160)]
    world.check([(row, 5) for row in rows])
    world.check([(first, 1), *((row, 1) for row in rows)])


def test_no_rows_and_no_tokens(team: Team) -> None:
    world = World(Shape(), team)
    step = Step()
    assert team.library.cp_attention(team.handle, ctypes.byref(world.config()), 0, ctypes.byref(step), None, None, None, None) == 0
    row = world.add(20)
    world.check([(row, 5)])
    other = world.add(40)
    got = world.step([(other, 0), (row, 3), (other, 0)])
    assert [len(part) for part in got] == [0, 3, 0]
    assert torch.allclose(got[1].double(), world.expected(row, 5, 8), atol=TOLERANCE)


@pytest.mark.parametrize(
    "wrong", [{"head_dim": 257}, {"head_dim": 0}, {"block_size": 12}, {"block_size": 0}, {"kv_heads": 3}, {"kv_heads": 0}, {"kv_format": 3}]
)
def test_other_shapes_are_refused(wrong: dict[str, int], team: Team) -> None:
    config, step = World(Shape(), team).config(), Step()
    for name, value in wrong.items():
        setattr(config, name, value)
    assert team.library.cp_attention(team.handle, ctypes.byref(config), 0, ctypes.byref(step), None, None, None, None) == -2


def test_other_layers_stay_as_they_are(team: Team) -> None:
    for kv_dtype in ("fp32", "fp16", "int8"):
        world = World(Shape(kv_dtype=kv_dtype), team, layer=0)
        row = world.add(40)
        world.check([(row, 30)])
        assert bool((world.cache.pool[:, world.cache.layout.block_bytes // NUM_LAYERS :] == 255).all())
        used = torch.zeros(world.cache.num_blocks, dtype=torch.bool)
        used[row.table[:2]] = True
        assert bool((world.cache.pool[~used] == 255).all())


SHAPES = st.builds(
    Shape,
    kv_heads=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2, 3, 16]),
    head_dim=st.sampled_from([8, 20, 48, 80]),
    block_size=st.sampled_from([1, 4, 16, 64, 256]),
    kv_dtype=st.sampled_from(["fp32", "fp16", "int8"]),
    window=st.sampled_from([None, 1, 20, 140]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
)


def fresh(world: World, threads: int, teams: Teams) -> World:
    """The same sequences, nothing computed, in other blocks."""
    other = World(world.shape, teams(threads, world.team.instruction_set), seed=world.seed + 1, num_blocks=world.cache.num_blocks)
    other.sinks = world.sinks
    for row in world.rows:
        copy = other.add(len(row.query))
        copy.query, copy.key, copy.value = row.query, row.key, row.value
    return other


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, data=st.data())
def test_results_do_not_depend_on_anything_else(shape: Shape, teams: Teams, data: st.DataObject) -> None:
    """Rows in steps of any sizes, together and one by one, on one thread or several, in these blocks or those: the same bits."""
    name = data.draw(st.sampled_from(SETS))
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    world = World(shape, teams(1, name), num_blocks=2 + sum(-(-length // shape.block_size) for length in lengths))
    for length in lengths:
        world.add(length)
    whole = [world.step([(row, len(row.query))])[0] for row in world.rows]
    for row, result in zip(world.rows, whole, strict=True):
        some = slice(max(0, len(result) - 20), None)
        wanted = world.expected(row, some.start, len(result))
        assert float((result[some].double() - wanted).abs().max()) < TOLERANCE
    other = fresh(world, data.draw(st.sampled_from([1, 2])), teams)
    parts: list[list[torch.Tensor]] = [[] for _ in lengths]
    while unfinished := [i for i, row in enumerate(other.rows) if row.done < len(row.query)]:
        chosen = [i for i in unfinished if data.draw(st.booleans())] or unfinished
        grants = [(other.rows[i], min(len(other.rows[i].query) - other.rows[i].done, data.draw(CHUNKS))) for i in chosen]
        for i, part in zip(chosen, other.step(grants), strict=True):
            parts[i].append(part)
    for result, pieces in zip(whole, parts, strict=True):
        assert torch.equal(torch.cat(pieces), result)


CHUNKS = st.one_of(st.integers(1, 3), st.sampled_from([15, 16, 17, 100, 128]), st.integers(20, 300))


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
def test_shared_blocks_give_the_same_bits(kv_dtype: str, teams: Teams) -> None:
    for name in SETS:
        results = []
        for together in (True, False):
            world = World(Shape(kv_dtype=kv_dtype, head_dim=24), teams(2 if together else 1, name))
            first = world.add(280)
            world.step([(first, 270)])
            rows = [world.add(260 + i, first, 256) for i in range(9)]
            grants = [(first, 1), *((row, 4) for row in rows)]
            results.append(world.step(grants) if together else [world.step([grant])[0] for grant in grants])
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
