"""The generated page `docs/guide/wgmma.md`: one GEMM at level 3 before and after `mma.sync` is replaced by `wgmma`."""

from __future__ import annotations

import html
from pathlib import Path

from emmy.compiler import compile
from emmy.tools.loops import loop_around, main_loop
from emmy.tools.schedule_option import parse_schedule

EXAMPLE = "docs/examples/matmul.mlir"
TARGET = "sm_90a"
SCHEDULE = "atom = wgmma, block = [64, 64, 64], warps = [4, 1], stages = 4, fragments = 1"
"""All that the page shows, so that another choice of the table does not change it."""

SPLIT = "split_k = 2, persistent = 0"
INTURN = f"{SCHEDULE}, roles = specialized, persistent = 1, consumers = pingpong"
"""Two consumers that compute tiles in turn."""

TOGETHER = "roles = specialized, share = b"
"""Two CTAs that share the tiles of operand b."""

SHARED = f"{SCHEDULE}, {SPLIT}"
"""The same with two CTAs for each tile."""

TEXT = """
# From `mma.sync` to `wgmma`

On Hopper four warps, a warpgroup, can issue one product together: 64 rows, up to 256 columns, operands read from shared
memory where they lie. In Emmy that is one rewrite of level 3, `issue-products`, and one word of the schedule:

```console
$ emmy run {example} --target {target} --device emulator --schedule "{schedule}" --check
...
emulated in ... wgmma ...
c: f16 256x256
...
c: RMS error ... of the RMS, bound ...: ok
```

A warp's share of such a product is 16 rows of all columns, and lies in its registers exactly as the accumulator of
`m16n8k16` does. So level 2, the rings, roles, transports, fragments and the epilogue are those of every other kernel; only how
a product is executed changes. It is begun (`mma.issue`), committed in groups, and waited for, and `mma.wait` hands its sums
on: no op can name a sum that is in flight. A computed operand (the probabilities of attention) stays in registers.

On this target the schedule table prefers `wgmma`; `--schedule "atom = m16n8k16"` asks for `mma.sync`. What a kernel took, and
why, is what `--report` says. A schedule may state any fields; others are chosen so that they fit. Attention takes `wgmma` too,
with 16 rows a warp: `"atom = wgmma, block = [128, 128, 64], warps = [8, 1]"`.

Where the sums of 64 rows are more than a warpgroup has registers for, as at head dimension 512, two warpgroups stand beside
each other: `"atom = wgmma, block = [64, 64, 512], warps = [4, 2], repeat = 1"`. Both compute the same scores, and each its half
of the result's columns. Nothing passes between them: as halves of 32 keys each, products with an operand in shared memory
would be bound by its 128 bytes a cycle (64 x 32 x 16 multiply-adds take 16 cycles, their operands 24), and half of the
probabilities would have to be exchanged.

Where keys are the values (Gemma's global layers), `reuse = 1` copies a tile once for both products. That is half of the bytes,
and leaves room for a second slot: `"reuse = 1, stages = 2"`. With `turns = 1` one of the two warpgroups multiplies while the
other computes its probabilities.

## The consumer's loop, before and after

<table>
<tr><th>after <code>double-buffer-fragments</code></th><th>after <code>issue-products</code></th></tr>
<tr><td><pre>
{before}
</pre></td><td><pre>
{after}
</pre></td></tr>
</table>

## The same as PTX

Descriptors are 64-bit numbers that are the same in all lanes: what the layout says (`emmy.layout.descriptor`), the start of
the operand, and the slot, in units of 16 bytes.

```
{ptx}
```

## Two CTAs on one tile

Where tiles fill half a wave, half of the multiprocessors would be idle (512 x 512 of Gemma's projections). There the table has
`split_k = 2`: the two CTAs of a cluster share the contraction of one tile (`split-k`, at level 2), and each computes and stores
half of its columns. `{option}` asks for it; 4 and 8 are legal too. A target without clusters refuses it.

```console
$ emmy run {example} --target {target} --device emulator --schedule "{shared}" --check
...
c: RMS error ... of the RMS, bound ...: ok
```

What a CTA has of the other's columns it writes into the other's shared memory, from registers, without a fence or a barrier
between the two: `st.async` counts its bytes on an mbarrier beside them, for which the other one waits. The sums are always added
in the same order, so that results do not depend on timing. At level 3 that is a pipeline of the cluster, with one slot:

<table>
<tr><th>after <code>lower-tile</code></th><th>after <code>lower-transport</code></th></tr>
<tr><td><pre>
{given}
</pre></td><td><pre>
{sent}
</pre></td></tr>
</table>

The same as PTX:

```
{stores}
```

## Two CTAs on one operand

CTAs whose tiles lie below each other multiply by the same tile of operand b. With `share = b` two of them are a cluster
(`share-operands`, at level 2): each reads half of that tile, and TMA writes it into the shared memory of both. `share = a` does
so for CTAs beside each other. A slot is full when both halves are there, and empty when the warps of both CTAs have released it;
a CTA that fills slots of the other one begins when both have begun, and ends when all its slots have been released.

<table>
<tr><th>the producer after <code>lower-transport</code></th><th>a release</th></tr>
<tr><td><pre>
{halves}
</pre></td><td><pre>
{releases}
</pre></td></tr>
</table>

Half of the reads of one operand from the L2 cache are saved. On an H200 that changed the ratio to cuBLAS of 23 products by -4 to
+1 % (b) and -9 to 0 % (a), so no row of the table has it: the cache is fast enough, and CTAs that wait for each other are not.

## Two consumers, a tile each

The consumers of the kernels above compute one tile together (`cooperative`): while they store it, no product runs. With
`consumers = pingpong` a CTA has two of them, each with the schedule's `warps` and `block`, and they compute its tiles in turn:
the main loop of one runs under the epilogue of the other (`alternate-tiles`).

```console
$ emmy run {example} --target {target} --device emulator --schedule "{inturn}" --check
...
c: RMS error ... of the RMS, bound ...: ok
```

The producer does not know: it fills one ring, in the order of the tiles. Each consumer takes its turn before a tile's first wait,
passes it behind the last one, and then passes over the tickets of the other's tile. A wait tells a phase of a slot from the one
before it and no more, so it is the turn that makes a wait mean what it says; `verify-pipelines` refuses text where a turn is
missing, or goes to the wrong consumer, or where other numbers of tickets are passed over, and the interpreter of level 3 stops at
such a wait. A turn is passed only if there is a tile for it, so that none is left over.

<table>
<tr><th>consumer 0 after <code>alternate-tiles</code></th><th>consumer 1</th></tr>
<tr><td><pre>
{even}
</pre></td><td><pre>
{odd}
</pre></td></tr>
</table>

The same as PTX, of consumer 0: a turn is taken by `bar.sync` and passed by `bar.arrive`, which waits for nobody.

```
{turns}
```

It wants `roles = specialized` and `persistent = 1`; any atom and transport will do, and `share`. Registers and staged results are
those of two consumers: tiles of one warpgroup each, `block = [64, 256, 128], warps = [4, 1], stages = 2`, have 240 registers a
thread, tiles of two (`block = [128, 128, 64], warps = [8, 1], stages = 4`) 112.

On an H200 (`962_pingpong` of the [measurements](../measurements.md)) it wins where storing a tile takes long beside its loop:
8192 x 8192 with K = 256 has 1.11 to 1.13 of cuBLAS by `block = [64, 256, 64]` with `carry = 1`, where cooperative consumers have
1.02, and 1.06 instead of 1.04 at K = 1024. It loses at K = 4096, where tiles of 64 rows read more from the L2 cache for each
product than tiles of 128: 0.94 to 1.01. At 262144 columns it wins 2 to 8 %, most of it where the card is at its limit of power.
The table has it for known sizes in these two cases: K of 1024 or less in 16 waves of tiles, and 60 waves of any K, where tiles
have 192 columns for up to 512 rows (1.02 to 1.04 of those of 256).

## Products over the end of an iteration

Between the end of a slot's products and the first of the next slot a lone warpgroup leaves the tensor cores idle: printed kernels
of one warpgroup (64 x 256, slots of 64) reached 0.83 of what two reach, and 0.925 with one group of products left in flight.
`carry = 1` does that to any main loop of `wgmma` whose K is known (`carry-products`): an iteration waits for the products before
its own (`mma.wait_older`), and releases their slot. In ping-pong a turn is passed while the last products still run.

<table>
<tr><th>a consumer's loop after <code>carry-products</code></th></tr>
<tr><td><pre>
{carried}
</pre></td></tr>
</table>

It goes with `consumers = pingpong`, and with tiles of one warpgroup: with it 128 tiles of 64 x 128 are 1.08 times as fast at
2048 x 512 x 3840 as pairs of CTAs that share 64 tiles of 128 x 128. Two cooperative warpgroups cover each other: of 39 products
of Gemma's projections and the six shapes it gave 0.4 % in the mean, so that most of the table's rows leave it out.
"""


def wgmma_page(notice: str, root: Path) -> str:
    """The page, after a line that says what made it."""
    module = compile(root / EXAMPLE, TARGET, schedule=parse_schedule(SCHEDULE))
    before, after = (consumer_loop(module.ir(name)) for name in ("double-buffer-fragments", "issue-products"))
    return notice + TEXT.format(
        example=EXAMPLE,
        target=TARGET,
        schedule=SCHEDULE,
        before=html.escape(before),
        after=html.escape(after),
        ptx="\n".join(map(shorten, main_loop(module.ptx, "wgmma.mma_async").splitlines())),
        **exchange_texts(root),
        **sharing_texts(root),
        **turn_texts(root),
    )


def exchange_texts(root: Path) -> dict[str, str]:
    """The sum over a cluster at level 3, before and after its events, and the stores into another CTA."""
    module = compile(root / EXAMPLE, TARGET, schedule=parse_schedule(SHARED))
    given, sent = (
        lines_between(module.ir(name), first, "async_copy.begin_fill @out")
        for name, first in (("lower-tile", "async_copy.acquire @sums"), ("lower-transport", "async_copy.cluster_wait"))
    )
    stores = [line.strip() for line in module.ptx.splitlines() if "st.async" in line or "mapa" in line]
    return {
        "option": SPLIT,
        "shared": SHARED,
        "given": html.escape(given),
        "sent": html.escape(sent),
        "stores": "\n".join([*stores[:4], "..."]),
    }


def sharing_texts(root: Path) -> dict[str, str]:
    """The producer that fills slots of two CTAs, and the release of a slot at level 4."""
    module = compile(root / EXAMPLE, TARGET, schedule=parse_schedule(f"{SCHEDULE}, {TOGETHER}"))
    text = module.ir("lower-transport")
    role = text[text.index('role "producer"') :]
    loop = lines_between(role, "async_copy.wait_empty", "scf.yield")
    last = next(line.strip() for line in role.splitlines() if "async_copy.wait_released" in line)
    producer = "\n...\n".join(["async_copy.cluster_wait", loop, last])
    releases = [line.strip() for line in module.ptx.splitlines() if "mapa" in line or "arrive.shared::cluster" in line]
    return {"halves": html.escape(producer), "releases": "\n".join(releases)}


def turn_texts(root: Path) -> dict[str, str]:
    """The loops over tiles of two consumers, and the turns of one of them at level 4."""
    module = compile(root / EXAMPLE, TARGET, schedule=parse_schedule(INTURN))
    _, even, odd = module.ir("alternate-tiles").split("async_copy.consumer {")
    kept = ("consumer", "@", "scf.", "arith.addi", "arith.cmpi slt")
    loops: list[str] = []
    for consumer in (even, odd):
        whole = consumer.partition("async_copy.drain")[0].splitlines()
        short = [line.partition(" : ")[0].partition(" iter_args")[0].removeprefix("      ") for line in whole]
        loops.append("\n".join(x for x in short if "mma." not in x and (any(w in x for w in kept) or x.strip() == "}")))
    text = compile(root / EXAMPLE, TARGET, schedule=parse_schedule(f"{INTURN}, carry = 1")).ir("carry-products")
    whole = loop_around(text[text.index("async_copy.consumer") :], "mma.wait_older").splitlines()
    carried = "\n".join(line.partition(" : ")[0].partition(" -> (")[0] for line in whole)
    role = module.ptx[module.ptx.index("// role consumer") : module.ptx.index("// role consumer_1")].splitlines()
    turns = [i for i, line in enumerate(role) if "bar.sync %r" in line or "bar.arrive %r" in line]
    taken, passed = role[turns[0]], role[turns[1] - 3 : turns[1] + 2]
    return {
        "inturn": INTURN,
        "carried": html.escape(carried),
        "even": html.escape(loops[0]),
        "odd": html.escape(loops[1]),
        "turns": "\n".join([taken, "\t...", *passed]),
    }


def lines_between(text: str, first: str, last: str) -> str:
    """The lines from one that holds `first` to the one before `last`, without their types."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i in range(start, len(lines)) if last in lines[i])
    return "\n".join(line.partition(" : ")[0].strip() for line in lines[start:end])


def consumer_loop(text: str) -> str:
    """The consumer's loop over tiles; types, which repeat the operands', are left out."""
    loop = loop_around(text[text.index("async_copy.consumer") :], "mma.fill").splitlines()
    return "\n".join(line.partition(" : ")[0].partition(" iter_args")[0] for line in loop)


def shorten(line: str) -> str:
    """`{%f0,%f1,...,%f31}` for a list of 32 registers."""
    head, brace, rest = line.partition("{")
    names, _, tail = rest.partition("}")
    listed = names.split(",")
    return f"{head}{{{listed[0]},{listed[1]},...,{listed[-1]}}}{tail}" if brace and len(listed) > 4 else line
