"""Level 3, mathematics: products of fragments, finished at once or four warps together and later; partial sums."""

from __future__ import annotations

from typing import ClassVar, cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation, SSAValue, Use
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    base,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import shape_text
from emmy.dialects.mma_fragments import ISSUE, FragmentType, LoadOp
from emmy.dialects.tensor_op import AccumulateAttr, check_accumulate, check_matmul_types


@irdl_op_definition
class MmaOp(IRDLOperation):
    """`c` + A * B^T of the logical operands: a is M x K, b is N x K, c is M x N. Sums in c's element type.

    `accumulate` is the policy still to be applied by `split-accumulation`; without it the op means what its types say.
    PTX: one `mma.sync` for each atom, K outermost, then rows, columns serpentine.
    """

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.mma"
    a = operand_def(FragmentType)
    b = operand_def(FragmentType)
    c = operand_def(ACC)
    accumulate = opt_prop_def(AccumulateAttr)
    result = result_def(ACC)
    traits = traits_def(Pure())
    assembly_format = (
        "$a `,` $b `,` $c (`accumulate` `` $accumulate^)? attr-dict "
        "`:` `(` type($a) `,` type($b) `)` `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, c: SSAValue, accumulate: AccumulateAttr | None = None):
        super().__init__(operands=[a, b, c], result_types=[c.type], properties={"accumulate": accumulate})

    def verify_(self) -> None:
        check_product(self.a, self.b, self.c)
        check_accumulate(self.accumulate, cast(FragmentType, self.a.type).element_type)


def check_product(*operands: SSAValue) -> None:
    """The fragments a, b, c of a product fit each other. Raises VerifyException."""
    a, b, c = (cast(FragmentType, v.type) for v in operands)
    for fragment, place in ((a, "a"), (b, "b"), (c, "c")):
        if fragment.place.data != place:
            raise VerifyException(f"operand {place} of mma is a fragment of place {place}, got {fragment.place.data}")
    if a.get_shape()[1] != b.get_shape()[1]:
        raise VerifyException(f"mma contracts K = {a.get_shape()[1]} of a with K = {b.get_shape()[1]} of b")
    if c.get_shape() != (a.get_shape()[0], b.get_shape()[0]):
        raise VerifyException(
            f"mma of these operands gives {shape_text((a.get_shape()[0], b.get_shape()[0]))}, "
            f"not {shape_text(c.get_shape())}"
        )
    if not a.atom == b.atom == c.atom:
        raise VerifyException("mma wants fragments of one atom")
    check_matmul_types(a.element_type, b.element_type, c.element_type)


@irdl_op_definition
class FenceOp(IRDLOperation):
    """What this warp wrote into registers before is there for the products that it issues from here on. PTX: wgmma.fence."""

    name = "mma.fence"
    assembly_format = "attr-dict"


@irdl_op_definition
class IssueOp(IRDLOperation):
    """`mma.mma` begun and not waited for: the result is in flight, and only another issue (as `c`) or a wait takes it.

    The four warps of a warpgroup issue together; each fragment is one warp's share, 16 rows of 64. b is read in place, a
    in place or from registers. PTX: wgmma.mma_async, one for each 256 columns or fewer.
    """

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = ISSUE
    a = operand_def(FragmentType)
    b = operand_def(FragmentType)
    c = operand_def(ACC)
    result = result_def(ACC)
    assembly_format = "$a `,` $b `,` $c attr-dict `:` `(` type($a) `,` type($b) `)` `->` type($result)"

    def __init__(self, a: SSAValue, b: SSAValue, c: SSAValue):
        super().__init__(operands=[a, b, c], result_types=[c.type])

    def verify_(self) -> None:
        check_product(self.a, self.b, self.c)
        if cast(FragmentType, self.a.type).get_shape()[0] != 16:
            raise VerifyException("mma.issue multiplies 16 rows of each warp, 64 of a warpgroup")
        if not isinstance(self.b.owner, LoadOp) or self.b.owner.in_place is None:
            raise VerifyException("operand b of mma.issue is read in place")
        for use in self.result.uses:
            if not takes_in_flight(use):
                raise VerifyException("the result of mma.issue is in flight: mma.wait for it first")
        before = self.prev_op
        while before is not None and not isinstance(before, FenceOp | IssueOp):
            before = before.prev_op
        if before is None:
            raise VerifyException("mma.fence stands in the block before its first mma.issue")


@irdl_op_definition
class CommitOp(IRDLOperation):
    """The products issued since the last commit are one group, for `mma.wait`. PTX: wgmma.commit_group."""

    name = "mma.commit"
    assembly_format = "attr-dict"


@irdl_op_definition
class WaitOp(IRDLOperation):
    """Wait until at most `pending` groups are unfinished; `sum`, of a finished one, is passed on. PTX: wgmma.wait_group."""

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.wait"
    pending = prop_def(IntegerAttr.constr(type=eq(i64)))
    sum = operand_def(ACC)
    result = result_def(ACC)
    assembly_format = "$pending $sum attr-dict `:` type($result)"

    def __init__(self, pending: int, sum_: SSAValue):
        super().__init__(operands=[sum_], result_types=[sum_.type], properties={"pending": IntegerAttr(pending, i64)})

    def verify_(self) -> None:
        if self.pending.value.data < 0:
            raise VerifyException(f"mma.wait leaves 0 or more groups pending, got {self.pending.value.data}")
        check_committed(self, self.sum, self.pending.value.data)


def check_committed(wait: Operation, total: SSAValue, pending: int) -> None:
    """A wait in the block of the issue that made `total` waits for its group: it has been committed, and at most `pending` groups
    are left, of newer ones. Raises VerifyException."""
    op, groups = total.owner, 0
    if not isinstance(op, IssueOp) or op.parent is not wait.parent:
        return
    while op is not None and op is not wait:
        groups += isinstance(op, CommitOp)
        op = op.next_op
    if op is wait and not groups:
        raise VerifyException(
            f"{wait.name} waits for committed groups: mma.commit is missing behind the products of its sum"
        )
    if op is wait and pending >= groups:
        raise VerifyException(
            f"{wait.name} {pending} leaves the group of its sum in flight, with {groups - 1} newer group(s) committed"
        )


def takes_in_flight(use: Use) -> bool:
    """Whether a use is for sums in flight: as `c` of further products, or to wait for them or for those before them."""
    issued = isinstance(use.operation, IssueOp) and use.index == 2
    return issued or isinstance(use.operation, WaitOp | WaitOlderOp)


@irdl_op_definition
class WaitOlderOp(IRDLOperation):
    """Wait until one group at most is unfinished, the newest, which is that of `sum`; its result is still in flight.

    It may be carried through loops; only an issue (as `c`) or a wait takes it. What older groups read in place is free from here
    on. PTX: wgmma.wait_group 1.
    """

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.wait_older"
    sum = operand_def(ACC)
    result = result_def(ACC)
    assembly_format = "$sum attr-dict `:` type($result)"

    def __init__(self, sum_: SSAValue):
        super().__init__(operands=[sum_], result_types=[sum_.type])

    def verify_(self) -> None:
        check_committed(self, self.sum, 0)
        seen: set[SSAValue] = set()
        work: list[SSAValue] = [self.result]
        while work:
            value = work.pop()
            if value in seen:
                continue
            seen.add(value)
            for use in value.uses:
                carried = carried_to(use)
                if not carried and not takes_in_flight(use):
                    raise VerifyException("the result of mma.wait_older is in flight: mma.wait for it first")
                work += carried


def carried_to(use: Use) -> list[SSAValue]:
    """What a value becomes that a loop begins with or yields: the loop's argument and its result; nothing for other uses."""
    loop, position = use.operation, use.index - 3
    if isinstance(loop, scf.YieldOp):
        loop, position = loop.parent_op(), use.index
    if not isinstance(loop, scf.ForOp) or position < 0:
        return []
    return [loop.body.block.args[1 + position], loop.results[position]]


@irdl_op_definition
class PromoteOp(IRDLOperation):
    """`acc` (f32) + `partial` (f16, or f32 of 8-bit operands), elementwise: ends a partial sum of the hybrid policy."""

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.promote"
    partial = operand_def(FragmentType)
    acc = operand_def(ACC)
    result = result_def(ACC)
    traits = traits_def(Pure())
    assembly_format = "$partial `into` $acc attr-dict `:` type($partial) `->` type($result)"

    def __init__(self, partial: SSAValue, acc: SSAValue):
        super().__init__(operands=[partial, acc], result_types=[acc.type])
