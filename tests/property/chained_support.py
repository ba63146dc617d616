"""Level-2 texts in which the result of one product, row by row normalised, is operand a of a second one.

They are what `test_chained_products.py` draws: sizes, masks by the positions of rows and columns, a loop that ends early, an
added tile, a result for each row. What they compute is softmax(mask(scale q k^T + bias)) v, in blocks of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Chain:
    """One kernel. `heads` of q share each of the `groups` of k and v; `window` is 0 for none; `hidden`: see `range_text`."""

    batch: int = 1
    heads: int = 2
    groups: int = 1
    rows: int = 64
    columns: int = 64
    depth: int = 32
    width: int = 32
    block: tuple[int, int] = (32, 32)
    warps: int = 2
    across: int = 1
    """Warps beside each other, which split columns."""
    causal: bool = False
    window: int = 0
    bias: bool = False
    statistic: bool = False
    scale: float = 0.17
    ranged: bool = True
    """Whether the loop leaves out blocks that no row of the CTA sees."""
    policy: str = ""
    score_policy: str = ""
    schedule: dict[str, object] = field(default_factory=dict)

    def with_schedule(self, **fields: object) -> Chain:
        return replace(self, schedule=self.schedule | fields)

    @property
    def padded(self) -> tuple[int, int]:
        return -(-self.depth // 16) * 16, -(-self.width // 16) * 16

    def shapes(self) -> list[tuple[int, ...]]:
        b, h, g = self.batch, self.heads, self.groups
        shapes = [(b, h, self.rows, self.depth), (b, g, self.columns, self.depth), (b, g, self.columns, self.width)]
        return [*shapes, (b, h, self.rows, self.columns)] if self.bias else shapes

    def arguments(self, seed: int, spread: float = 1.0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [(rng.standard_normal(shape) * spread).astype(np.float16) for shape in self.shapes()]

    # ---- the reference

    def mask(self) -> np.ndarray:
        row, col = np.arange(self.rows)[:, None] + self.columns - self.rows, np.arange(self.columns)[None, :]
        seen = np.ones((self.rows, self.columns), bool)
        if self.causal:
            seen &= row >= col
        if self.window:
            seen &= col > row - self.window
        return seen

    def reference(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *bias: np.ndarray) -> list[np.ndarray]:
        share = self.heads // self.groups
        wide = [np.repeat(x.astype(np.float64), n, axis=1) for x, n in ((q, 1), (k, share), (v, share))]
        scores = wide[0] @ wide[1].swapaxes(-1, -2) * self.scale + (bias[0].astype(np.float64) if bias else 0.0)
        with np.errstate(all="ignore"):
            scores = np.where(self.mask(), scores, -np.inf)
            top = scores.max(axis=-1, keepdims=True, initial=-1e30)
            p = np.exp(scores - top)
            total = p.sum(axis=-1, keepdims=True)
            out = np.where(total > 0, p / np.where(total > 0, total, 1.0), 0.0) @ wide[2]
            statistic = np.where(total > 0, top + np.log(total), -np.inf)[..., 0]
        return [out, statistic] if self.statistic else [out]

    # ---- the text

    def text(self) -> str:
        b, h, s, t = self.batch, self.heads, self.rows, self.columns
        (d, e), (m, n) = self.padded, self.block
        shapes = ["x".join(map(str, shape)) + "xf16" for shape in self.shapes()]
        names = ["q", "k", "v", "bias"][: len(shapes)]
        outs = [("o", f"{b}x{h}x{s}x{self.width}xf16")] + ([("l", f"{b}x{h}x{s}xf32")] if self.statistic else [])
        views = [*zip(names, shapes, strict=True), *outs]
        tensors = ", ".join(f"tensor<{shape}>" for _, shape in views)
        fields = {"block": [m, n, d], "warps": [self.warps, self.across], "fragments": 1, **self.schedule}
        schedule = ", ".join(f"{name} = {value}" for name, value in fields.items())
        allocated = "\n".join(f"  %{name} = tile.alloc [] : tensor<{shape}>" for name, shape in outs)
        results = ", ".join(f"tensor<{shape}>" for _, shape in outs)
        return f"""
func.func @f({", ".join(f"%{name}: tensor<{shape}>" for name, shape in views[: len(shapes)])}) -> ({results}) {{
{allocated}
  %ctas = arith.constant {b * h * -(-s // m)} : index
  tile.launch @chain[%ctas] ({", ".join(f"%{name}" for name, _ in views)}) : {tensors}
  func.return {", ".join(f"%{name}" for name, _ in outs)} : {results}
}}
tile.kernel @chain({", ".join(f"%{name}: !tile.view<{shape}>" for name, shape in views)}) schedule <{schedule}> {{
  %c0 = arith.constant 0 : index
  %step = arith.constant {n} : index
  %B = arith.constant {b} : index
  %H = arith.constant {h} : index
  %S = arith.constant {s} : index
  %T = arith.constant {t} : index
  %share = arith.constant {h // self.groups} : index
  %b, %h, %m = tile.grid [%B by 1, %H by 1, %S by {m}] raster 1
  %g = arith.divui %h, %share : index
{self.range_text()}
  %scale2 = arith.constant {self.scale * LOG2_E if not self.bias else LOG2_E} : f32
  %minus = arith.constant {-(self.scale * LOG2_E if not self.bias else LOG2_E)} : f32
  %scale = arith.constant {self.scale} : f32
  %hidden = arith.constant 0xFF800000 : f32
  %least = arith.constant 1.0e-30 : f32
  %q_tile = tile.load %q[%b, %h, %m, %c0] : !tile.view<{shapes[0]}> -> !tile.tile<{m}x{d}xf16>
  %none = tile.fill 0.0 : f32 : !tile.tile<{m}x{n}xf32>
  %m0 = tile.fill -1.0e30 : f32 : !tile.tile<{m}x1xf32>
  %l0 = tile.fill 0.0 : f32 : !tile.tile<{m}x8xf32>
  %o0 = tile.fill 0.0 : f32 : !tile.tile<{m}x{e}xf32>
  %mz, %lz, %oz = scf.for %j = %lo to %hi step %step iter_args(%mi = %m0, %li = %l0, %oi = %o0)
      -> (!tile.tile<{m}x1xf32>, !tile.tile<{m}x8xf32>, !tile.tile<{m}x{e}xf32>) {{
    %k_tile = tile.load %k[%b, %g, %j, %c0] : !tile.view<{shapes[1]}> -> !tile.tile<{n}x{d}xf16>
    %s = tile.dot %q_tile, %k_tile into %none transpose_b{self.score_policy}
      : (!tile.tile<{m}x{d}xf16>, !tile.tile<{n}x{d}xf16>, !tile.tile<{m}x{n}xf32>) -> !tile.tile<{m}x{n}xf32>
{self.scores_text(shapes)}
    %mx = tile.reduce max %x axis 1 : !tile.tile<{m}x{n}xf32> -> !tile.tile<{m}x1xf32>
    %mn = tile.map max %mi, %mx : (!tile.tile<{m}x1xf32>, !tile.tile<{m}x1xf32>) -> !tile.tile<{m}x1xf32>
    %nb = tile.map mul %mn, %minus : (!tile.tile<{m}x1xf32>, f32) -> !tile.tile<{m}x1xf32>
    %e = tile.map fma %x, %scale2, %nb : (!tile.tile<{m}x{n}xf32>, f32, !tile.tile<{m}x1xf32>) -> !tile.tile<{m}x{n}xf32>
    %p = tile.map exp2 %e : (!tile.tile<{m}x{n}xf32>) -> !tile.tile<{m}x{n}xf32>
    %md = tile.map sub %mi, %mn : (!tile.tile<{m}x1xf32>, !tile.tile<{m}x1xf32>) -> !tile.tile<{m}x1xf32>
    %ms = tile.map mul %md, %scale2 : (!tile.tile<{m}x1xf32>, f32) -> !tile.tile<{m}x1xf32>
    %al = tile.map exp2 %ms : (!tile.tile<{m}x1xf32>) -> !tile.tile<{m}x1xf32>
    %rs = tile.reduce sum %p axis 1 : !tile.tile<{m}x{n}xf32> -> !tile.tile<{m}x8xf32>
    %ln = tile.map fma %li, %al, %rs
      : (!tile.tile<{m}x8xf32>, !tile.tile<{m}x1xf32>, !tile.tile<{m}x8xf32>) -> !tile.tile<{m}x8xf32>
    %or = tile.map mul %oi, %al : (!tile.tile<{m}x{e}xf32>, !tile.tile<{m}x1xf32>) -> !tile.tile<{m}x{e}xf32>
    %pc = tile.cast %p : !tile.tile<{m}x{n}xf32> to !tile.tile<{m}x{n}xf16>
    %v_tile = tile.load %v[%b, %g, %j, %c0] : !tile.view<{shapes[2]}> -> !tile.tile<{n}x{e}xf16>
    %on = tile.dot %pc, %v_tile into %or{self.policy}
      : (!tile.tile<{m}x{n}xf16>, !tile.tile<{n}x{e}xf16>, !tile.tile<{m}x{e}xf32>) -> !tile.tile<{m}x{e}xf32>
    scf.yield %mn, %ln, %on : !tile.tile<{m}x1xf32>, !tile.tile<{m}x8xf32>, !tile.tile<{m}x{e}xf32>
  }} {{emmy.hidden_is_identity}}
  %l1 = tile.reduce sum %lz axis 1 : !tile.tile<{m}x8xf32> -> !tile.tile<{m}x1xf32>
  %some = tile.map max %l1, %least : (!tile.tile<{m}x1xf32>, f32) -> !tile.tile<{m}x1xf32>
  %inverse = tile.map rcp %some : (!tile.tile<{m}x1xf32>) -> !tile.tile<{m}x1xf32>
  %of = tile.map mul %oz, %inverse : (!tile.tile<{m}x{e}xf32>, !tile.tile<{m}x1xf32>) -> !tile.tile<{m}x{e}xf32>
  %oh = tile.cast %of : !tile.tile<{m}x{e}xf32> to !tile.tile<{m}x{e}xf16>
  tile.store %oh, %o[%b, %h, %m, %c0] : !tile.tile<{m}x{e}xf16>, !tile.view<{outs[0][1]}>
{self.statistic_text(outs[-1][1])}
}}
"""

    def range_text(self) -> str:
        """The first row's position among the columns, and the columns that the CTA's rows see (all, if not `ranged`)."""
        m = self.block[0]
        lines = ["%back = arith.subi %T, %S : index", "%base = arith.addi %m, %back : index"]
        low, high = "%c0", "%T"
        if self.causal and self.ranged:
            lines += [f"%M = arith.constant {m} : index", "%end = arith.addi %base, %M : index"]
            lines += ["%above = arith.minsi %end, %T : index", "%hi = arith.maxsi %above, %c0 : index"]
            high = "%hi"
        if self.window:
            lines += [f"%W = arith.constant {self.window - 1} : index", "%first = arith.subi %base, %W : index"]
            if self.ranged:
                lines += ["%inside = arith.maxsi %first, %c0 : index", "%blocks = arith.divui %inside, %step : index"]
                lines += ["%lo = arith.muli %blocks, %step : index"]
                low = "%lo"
        zero = "%c00 = arith.constant 0 : index"
        lines += [zero, f"%lo = arith.addi {low}, %c00 : index"] if low != "%lo" else [zero]
        lines += [f"%hi = arith.addi {high}, %c00 : index"] if high != "%hi" else []
        m1 = f"!tile.tile<{m}x1xi32>"
        lines += [f"%pos = tile.coord 0 from %base : {m1}"] if self.causal else []
        lines += [f"%oldest = tile.coord 0 from %first : {m1}"] if self.window else []
        return "\n".join("  " + line for line in lines)

    def scores_text(self, shapes: list[str]) -> str:
        """From scores to what the softmax sees: bias, then one select for each condition that can be false."""
        m, n = self.block
        full, row, col = f"!tile.tile<{m}x{n}xf32>", f"!tile.tile<{m}x1xi32>", f"!tile.tile<1x{n}xi32>"
        lines, last = [f"%key = tile.coord 1 from %j : {col}"], "%s"
        if self.bias:
            lines += [
                f"%bias_tile = tile.load %bias[%b, %h, %m, %j] : !tile.view<{shapes[3]}> -> !tile.tile<{m}x{n}xf16>",
                f"%wide = tile.cast %bias_tile : !tile.tile<{m}x{n}xf16> to {full}",
                f"%biased = tile.map fma %s, %scale, %wide : ({full}, f32, {full}) -> {full}",
            ]
            last = "%biased"
        conditions = []
        if self.causal:
            conditions.append((f"ge %pos, %key : ({row}, {col})", f"{m}x{n}"))
        if self.window:
            conditions.append((f"ge %key, %oldest : ({col}, {row})", f"{m}x{n}"))
        if self.columns % n:
            conditions.append((f"lt %key, %T : ({col}, index)", f"1x{n}"))
        for number, (condition, shape) in enumerate(conditions):
            lines.append(f"%seen{number} = tile.map {condition} -> !tile.tile<{shape}xi1>")
            lines.append(
                f"%x{number} = tile.map select %seen{number}, {last}, %hidden "
                f": (!tile.tile<{shape}xi1>, {full}, f32) -> {full}"
            )
            last = f"%x{number}"
        lines.append(f"%zero = arith.constant 0.0 : f32\n    %x = tile.map add {last}, %zero : ({full}, f32) -> {full}")
        return "\n".join("    " + line for line in lines)

    def statistic_text(self, shape: str) -> str:
        """log(sum of exp), -inf where no column is seen."""
        if not self.statistic:
            return ""
        m = self.block[0]
        one, flag = f"!tile.tile<{m}x1xf32>", f"!tile.tile<{m}x1xi1>"
        factor = 1.0 if self.bias else self.scale
        return f"""  %factor = arith.constant {factor} : f32
  %log = tile.map log %some : ({one}) -> {one}
  %sum = tile.map fma %mz, %factor, %log : ({one}, f32, {one}) -> {one}
  %any = tile.map ge %l1, %least : ({one}, f32) -> {flag}
  %stat = tile.map select %any, %sum, %hidden : ({flag}, {one}, f32) -> {one}
  %flat = tile.squeeze %stat axis 1 : {one} -> !tile.tile<{m}xf32>
  tile.store %flat, %l[%b, %h, %m] : !tile.tile<{m}xf32>, !tile.view<{shape}>"""
