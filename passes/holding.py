"""Which slots of a ring are in use, in ring order.

Slots are used in turn: the next ticket takes the slot after the last one. So a slot that is given back while an older one is
held is of no use yet; only when the older one goes too are both free. `Holding` follows slots through loops by their values.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from emmy.passes.protocol import fail

Side = tuple[str, str]
"""A ring and one of its sides, `fill` or `read`."""

Windows = dict[Side, list[int | None]]


class Holding:
    """The slots that are taken and not yet free, of every side, oldest first; None where one is given back behind a held one."""

    def __init__(self):
        self.windows: Windows = {}
        self._tokens: dict[SSAValue, int] = {}

    def in_use(self, side: Side) -> int:
        """How many slots of the ring are not free."""
        return len(self.windows.get(side, []))

    def take(self, side: Side, slot: SSAValue) -> None:
        """A slot is waited for or acquired."""
        self._tokens[slot] = len(self._tokens)
        self.windows.setdefault(side, []).append(self._tokens[slot])

    def give(self, side: Side, slot: SSAValue) -> int:
        """A slot is released or committed; how many slots are free through this."""
        window, token = self.windows.get(side, []), self._tokens.get(slot)
        if token not in window:
            return 0
        window[window.index(token)] = None
        before = len(window)
        while window and window[0] is None:
            window.pop(0)
        return before - len(window)

    def copy(self) -> Windows:
        """The windows as they are."""
        return {side: list(window) for side, window in self.windows.items()}

    def enter(self, loop: scf.ForOp) -> Windows:
        """Begin a loop's body; gives the windows at its head."""
        for init, arg in zip(loop.iter_args, loop.body.block.args[1:], strict=True):
            if init in self._tokens:
                self._tokens[arg] = self._tokens[init]
        return self.copy()

    def leave(self, loop: scf.ForOp, head: Windows) -> None:
        """End a loop's body: it must give back what it takes, up to slots carried as iter_args. Back to the head's windows."""
        last = loop.body.block.last_op
        yields = last.operands if isinstance(last, scf.YieldOp) else ()
        carried: dict[int | None, int | None] = {
            self._tokens[init]: self._tokens.get(value)
            for init, value in zip(loop.iter_args, yields, strict=False)
            if init in self._tokens
        }
        expected = {side: [carried.get(token, token) for token in window] for side, window in head.items()}
        self._compare(loop, expected, "the body of this loop does not give back what it takes")
        self.windows = head
        for init, result in zip(loop.iter_args, loop.results, strict=True):
            if init in self._tokens:
                self._tokens[result] = self._tokens[init]

    def meet(self, at: scf.IfOp, other: Windows) -> None:
        """The other branch left these windows: they must agree in kind."""
        kinds = {side: [token is None for token in window] for side, window in other.items()}
        mine = {side: [token is None for token in window] for side, window in self.windows.items()}
        for side in {*kinds, *mine}:
            if kinds.get(side, []) != mine.get(side, []):
                fail(at, f"pipeline @{side[0]}: the branches here do not hold the same slots")
        for region in at.regions:
            self._name_results(at, region.block if region.blocks else None)

    def _name_results(self, at: scf.IfOp, block: Block | None) -> None:
        last = block.last_op if block else None
        if isinstance(last, scf.YieldOp):
            for value, result in zip(last.operands, at.results, strict=True):
                token = self._tokens.get(value)
                if token is not None and any(token in window for window in self.windows.values()):
                    self._tokens[result] = token

    def _compare(self, at: Operation, expected: Windows, reason: str) -> None:
        for side in sorted({*expected, *self.windows}):
            window, wanted = self.windows.get(side, []), expected.get(side, [])
            if window != wanted:
                behind = None in window and sum(t is not None for t in window) == sum(t is not None for t in wanted)
                order = "a slot is given back in this loop while an older one is held: slots are free in the order of the ring"
                fail(at, f"pipeline @{side[0]}: {order if behind else reason}")


def none_free(ring: str, stages: int, window: list[int | None]) -> str:
    """The sentence for a ring without a free slot."""
    behind = " or stands behind one that is" if None in window else ""
    return f"pipeline @{ring} has {stages} stage(s) and every slot is held here{behind}: it wants more stages"
