"""Level 2: the work of one CTA over tiles, and the host's launch plan. No threads, no barriers, no transports.

A kernel reads like the algorithm on a whiteboard:

    tile.kernel @matmul(%a: !tile.view<512x3840xf16>, %b: !tile.view<4096x3840xf16>, %c: !tile.view<512x4096xf16>)
        schedule <block = [128, 256, 64], warps = [2, 4]> {
      %M = arith.constant 512 : index ...
      %m, %n = tile.grid [%M by 128, %N by 256] raster 8        // element offsets of this CTA's tile
      %zero = tile.fill 0.0 : !tile.tile<128x256xf32>
      %acc = scf.for %k = %c0 to %K step %c64 iter_args(%s = %zero) -> (!tile.tile<128x256xf32>) {
        %x = tile.load %a[%m, %k] : !tile.view<512x3840xf16> -> !tile.tile<128x64xf16>
        %y = tile.load %b[%n, %k] : !tile.view<4096x3840xf16> -> !tile.tile<256x64xf16>
        %d = tile.dot %x, %y into %s transpose_b : (...) -> !tile.tile<128x256xf32>
        scf.yield %d : !tile.tile<128x256xf32>
      }
      %out = tile.cast %acc : !tile.tile<128x256xf32> to !tile.tile<128x256xf16>
      tile.store %out, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<512x4096xf16>
    }

Edges need no code: a load beyond a view's bounds gives zeros, a store beyond them is dropped.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from emmy.dialects.tile_elements import CastOp, ClusterSumOp, CoordOp, DotOp, FillOp, MapOp, ReduceOp, SqueezeOp
from emmy.dialects.tile_host import AllocOp, DispatchOp, LaunchOp, RequireEqualOp, ReshapeOp, SmCountOp
from emmy.dialects.tile_kernels import (
    CtaCountOp,
    CtaIdOp,
    DependencyWaitOp,
    DimOp,
    GridOp,
    KernelOp,
    LaunchDependentsOp,
    LoadOp,
    ReadOp,
    SliceOp,
    StoreOp,
)
from emmy.dialects.tile_types import ScheduleAttr, TileType, ViewType

Tile = Dialect(
    "tile",
    [
        DimOp,
        AllocOp,
        ReshapeOp,
        LaunchOp,
        RequireEqualOp,
        DispatchOp,
        KernelOp,
        DependencyWaitOp,
        LaunchDependentsOp,
        GridOp,
        CtaIdOp,
        CtaCountOp,
        SmCountOp,
        SliceOp,
        LoadOp,
        ReadOp,
        StoreOp,
        FillOp,
        DotOp,
        MapOp,
        CastOp,
        ReduceOp,
        ClusterSumOp,
        SqueezeOp,
        CoordOp,
    ],
    [TileType, ViewType, ScheduleAttr],
)
