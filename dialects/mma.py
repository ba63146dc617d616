"""Level 3, mathematics: fragments and tensor-core atoms.

A *fragment* is a tile of one warp, held in the registers of its lanes, as one SSA value. Its type says the logical shape, the
element type, the *place* (operand `a`: M x K; operand `b`: N x K; accumulator `c`: M x N) and the atom whose register layout
it has (`emmy.atoms`). The order of ops here is the order of the PTX.

    %wm = mma.warp 0 of [2, 4]
    %fa = mma.load %s["a"][%row, %k] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %fb = mma.load %s["b"][%col, %k] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %d  = mma.mma %fa, %fb, %c : (...) -> !mma.fragment<64x64xf32, c, m16n8k16>
"""

from __future__ import annotations

from xdsl.ir import Dialect

from emmy.dialects.mma_clusters import PartOp, ScatterOp
from emmy.dialects.mma_elements import (
    AnyNonfiniteOp,
    AnyOp,
    ConvertOp,
    CoordOp,
    FillOp,
    JoinOp,
    MapOp,
    ReduceOp,
    SliceOp,
)
from emmy.dialects.mma_fragments import FragmentType, LoadGlobalOp, LoadOp, StoreGlobalOp, StoreOp, WarpOp
from emmy.dialects.mma_products import CommitOp, FenceOp, IssueOp, MmaOp, PromoteOp, WaitOlderOp, WaitOp

Mma = Dialect(
    "mma",
    [
        WarpOp,
        LoadOp,
        StoreOp,
        ScatterOp,
        PartOp,
        StoreGlobalOp,
        LoadGlobalOp,
        FillOp,
        MmaOp,
        FenceOp,
        IssueOp,
        CommitOp,
        WaitOp,
        WaitOlderOp,
        PromoteOp,
        MapOp,
        ReduceOp,
        AnyNonfiniteOp,
        AnyOp,
        ConvertOp,
        CoordOp,
        SliceOp,
        JoinOp,
    ],
    [FragmentType],
)
