"""What stock xDSL tools (`xdsl-opt`) find through the entry point `xdsl.universe`: our dialects, passes and target.

xDSL refuses a name that two universes define, so names that xDSL itself has are left out here.
"""

from __future__ import annotations

from functools import partial

from xdsl.dialects import get_all_dialects
from xdsl.targets import get_all_targets
from xdsl.transforms import get_all_passes
from xdsl.universe import Universe

from emmy.ir import DIALECTS, load_dialect
from emmy.ptx_target import PtxTarget
from emmy.registry import PASSES, load_pass

EMMY_UNIVERSE = Universe(
    all_dialects={name: partial(load_dialect, name) for name in DIALECTS if name not in get_all_dialects()},
    all_passes={name: partial(load_pass, name) for name in PASSES if name not in get_all_passes()},
    all_targets={} if PtxTarget.name in get_all_targets() else {PtxTarget.name: lambda: PtxTarget},
)
