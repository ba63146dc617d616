"""Ops on fragments (`mma.*`) at level 4: a line each; `ptx_fragments` and `ptx_wgmma` have the instructions that they become."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import f32, i1
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import mma
from emmy.dialects.async_copy_rings import ring_name
from emmy.lowering.ptx_addresses import ANYWHERE, SharedAddresses
from emmy.lowering.ptx_builder import Builder
from emmy.lowering.ptx_clusters import ClusterFragments
from emmy.lowering.ptx_events import Convert
from emmy.lowering.ptx_fragments import Fragments
from emmy.lowering.ptx_maps import Argument
from emmy.lowering.ptx_shapes import shape_of
from emmy.lowering.ptx_tma import TmaLowering
from emmy.lowering.ptx_wgmma import InPlace, WarpgroupProducts
from emmy.schedules import Schedule
from emmy.targets import Target


class FragmentLowering(TmaLowering):
    """Lowers the events and fragments of one kernel."""

    def __init__(self, builder: Builder, block: Block, target: Target, params: list[str], schedule: Schedule | None):
        """block, params: as of `EventLowering`. schedule: of the kernel, if it has one."""
        super().__init__(builder, block, target, params)
        self.schedule = schedule
        self.shared = SharedAddresses(builder)
        self.fragments = Fragments(builder, self.shared, self.lane, target)
        self.products = WarpgroupProducts(builder)

    def warp(self, op: mma.WarpOp) -> None:
        """The warp's number in its role, and its coordinate."""
        b, grid, axis = self.builder, op.get_grid(), op.axis.value.data
        found = b.divide(self.role_warp(), op.stride)
        if op.stride * grid[axis] < prod(grid):
            found = b.remainder(found, grid[axis])
        self.values[op.result] = 0 if grid[axis] == 1 else found

    def load(self, op: mma.LoadOp) -> None:
        """`ldmatrix`, or a descriptor"""
        field, slot = self.place(op.slot, op.field.data)
        at = self.offsets_in(op.indices)
        if op.in_place is not None:
            self.values[op.result] = self.products.operand(op, field, slot, at, self.role_warp())
            return
        self.values[op.result] = self.fragments.load(op, field, slot, at, op.transposed is not None)

    def store(self, op: mma.StoreOp) -> None:
        """`stmatrix` or `st.shared`"""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"fragments into @{ring_name(op.slot)}.{op.field.data}")
        self.fragments.store(op, self.registers(op.value), field, slot, self.offsets_in(op.indices))

    def scatter(self, op: mma.ScatterOp) -> None:
        """`st.async` into the slots of other CTAs"""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"fragments into @{ring_name(op.slot)}.{op.field.data} of other CTAs")
        barrier = self.mbarrier(op, op.slot, "full", self.pair(op.slot)[1])
        shape, at = shape_of(op.value.type), (slot, self.number(op.row))
        part = self.number(op.part)
        self.exchange().scatter(shape, self.registers(op.value), field, at, part, barrier, op)

    def part(self, op: mma.PartOp) -> None:
        """`selp` of registers"""
        registers, parts = self.registers(op.arg), op.parts.value.data
        self.values[op.result] = self.exchange().part(shape_of(op.arg.type), registers, self.number(op.part), parts)

    def exchange(self) -> ClusterFragments:
        """What the CTAs of a cluster give each other."""
        return ClusterFragments(self.builder, self.lane)

    def store_global(self, op: mma.StoreGlobalOp) -> None:
        """`st.global`. Without a schedule nothing is known of the CTA's tile, and every element is checked."""
        block = self.schedule.block if self.schedule else (ANYWHERE,) * 3
        self.builder.comment("fragments to global memory")
        values, at = self.registers(op.value), self.tile_offset(op.indices)
        self.fragments.store_global(op, values, self.view_from(op.view, at), at, block)

    def load_global(self, op: mma.LoadGlobalOp) -> None:
        """`ld.global`. Without a schedule nothing is known of the CTA's tile, and every element is checked."""
        block = self.schedule.block if self.schedule else (ANYWHERE,) * 3
        self.builder.comment("a fragment from global memory")
        at, transposed = self.tile_offset(op.indices), op.transposed is not None
        view = self.view_from(op.view, at)
        self.values[op.result] = self.fragments.load_global(op, view, at, transposed, block)

    def fill(self, op: mma.FillOp) -> None:
        """Constants"""
        self.values[op.result] = self.fragments.fill(shape_of(op.result.type), op.value.value.data)

    def mma(self, op: mma.MmaOp) -> None:
        """`mma.sync`"""
        a, b, c = (self.registers(v) for v in (op.a, op.b, op.c))
        by_columns = self.schedule is not None and self.schedule.ahead > 0
        self.values[op.result] = self.fragments.multiply(op, a, b, c, by_columns)

    def issue(self, op: mma.IssueOp) -> None:
        """`wgmma.mma_async`"""
        a, b = self.values[op.a], self.values[op.b]
        assert isinstance(a, InPlace | list)
        assert isinstance(b, InPlace)
        self.values[op.result] = self.products.issue(op, a, b, self.registers(op.c))

    def fence(self, op: mma.FenceOp) -> None:
        """`wgmma.fence`. Sums that go on from one register several times get their own before it, for behind it nothing may write
        them."""
        following = op.next_op
        while following is not None and not isinstance(following, mma.CommitOp):
            if isinstance(following, mma.IssueOp) and following.c in self.values:
                self.values[following.c] = self.products.apart(self.registers(following.c))
            following = following.next_op
        self.builder.emit("wgmma_fence", ())

    def commit(self, op: mma.CommitOp) -> None:
        """`wgmma.commit_group`"""
        self.builder.emit("wgmma_commit_group", ())

    def wait_products(self, op: mma.WaitOp) -> None:
        """`wgmma.wait_group`"""
        self.values[op.result] = self.products.wait(op.pending.value.data, self.registers(op.sum))

    def wait_older(self, op: mma.WaitOlderOp) -> None:
        """`wgmma.wait_group 1`; the registers stay what they are."""
        self.values[op.result] = self.products.wait(1, self.registers(op.sum))

    def promote(self, op: mma.PromoteOp) -> None:
        """As the schedule says, else as the target is best at."""
        by = self.schedule.promotion if self.schedule else "auto"
        partial, sums = self.registers(op.partial), self.registers(op.acc)
        by = self.target.promotion if by == "auto" else by
        self.values[op.result] = self.fragments.promote(op, partial, sums, by)

    def map(self, op: mma.MapOp) -> None:
        """Elementwise"""
        self.values[op.result] = self.fragments.map(op, [self.argument(arg) for arg in op.args])

    def argument(self, value: SSAValue) -> Argument:
        """An operand of a map; floats and conditions as registers."""
        if isinstance(value.type, mma.FragmentType):
            return self.registers(value)
        return self.flat(value)[0] if value.type in (f32, i1) else self.number(value)

    def reduce(self, op: mma.ReduceOp) -> None:
        """Shuffles"""
        self.values[op.result] = self.fragments.reduce(op, self.registers(op.arg))

    def any_nonfinite(self, op: mma.AnyNonfiniteOp) -> None:
        """A vote"""
        self.values[op.result] = self.fragments.any_nonfinite(op, self.registers(op.arg))

    def any(self, op: mma.AnyOp) -> None:
        """A vote"""
        self.values[op.result] = self.fragments.any(op, self.registers(op.arg))

    def convert_fragment(self, op: mma.ConvertOp) -> None:
        """`cvt`"""
        self.values[op.result] = self.fragments.convert(op, self.registers(op.arg))

    def coord(self, op: mma.CoordOp) -> None:
        """Lane arithmetic"""
        self.values[op.result] = self.fragments.coordinates(op, self.number(op.base))

    def slice(self, op: mma.SliceOp) -> None:
        """No instruction"""
        self.values[op.result] = self.fragments.slice(op, self.registers(op.arg))

    def join(self, op: mma.JoinOp) -> None:
        """No instruction"""
        self.values[op.result] = self.fragments.join(op, [self.registers(arg) for arg in op.args])


FRAGMENT_OPS: dict[type[Operation], Convert] = {
    mma.WarpOp: FragmentLowering.warp,
    mma.LoadOp: FragmentLowering.load,
    mma.ScatterOp: FragmentLowering.scatter,
    mma.PartOp: FragmentLowering.part,
    mma.StoreOp: FragmentLowering.store,
    mma.StoreGlobalOp: FragmentLowering.store_global,
    mma.LoadGlobalOp: FragmentLowering.load_global,
    mma.FillOp: FragmentLowering.fill,
    mma.MmaOp: FragmentLowering.mma,
    mma.IssueOp: FragmentLowering.issue,
    mma.FenceOp: FragmentLowering.fence,
    mma.CommitOp: FragmentLowering.commit,
    mma.WaitOp: FragmentLowering.wait_products,
    mma.WaitOlderOp: FragmentLowering.wait_older,
    mma.PromoteOp: FragmentLowering.promote,
    mma.MapOp: FragmentLowering.map,
    mma.ReduceOp: FragmentLowering.reduce,
    mma.AnyNonfiniteOp: FragmentLowering.any_nonfinite,
    mma.AnyOp: FragmentLowering.any,
    mma.ConvertOp: FragmentLowering.convert_fragment,
    mma.CoordOp: FragmentLowering.coord,
    mma.SliceOp: FragmentLowering.slice,
    mma.JoinOp: FragmentLowering.join,
}
"""How each op on fragments is lowered."""
