"""`verify-pipelines`, `place-roles` and `lower-transport` reject what they must, in a sentence with a place."""

from __future__ import annotations

import pytest

from emmy.dialects.async_copy import RoleOp
from emmy.errors import EmmyError
from emmy.ir import make_context, parse_module
from emmy.passes.lower_transport import LowerTransport
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.verify_pipelines import VerifyPipelines

CONTEXT = make_context()

HEAD = """
!slot = !async_copy.slot<@k, read>
!cursor = !async_copy.cursor<@k, read>
tile.kernel @kernel(%v: !tile.view<?x16xf16>, %o: !tile.view<?x16xf16>) {
  async_copy.pipeline @k stages 2 {k = !tile.tile<16x16xf16>}
  %n = tile.dim %v, 0 : !tile.view<?x16xf16>
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %p = arith.cmpi ult, %c16, %n : index
"""

PRODUCER = """
  async_copy.producer {
    %f0 = async_copy.begin_fill @k
    %f = scf.for %i = %c0 to %n step %c16 iter_args(%c = %f0) -> (!async_copy.cursor<@k, fill>) {
      %s, %next = async_copy.acquire @k[%c]
      async_copy.copy %v[%i, %c0] -> %s["k"] : !tile.view<?x16xf16> -> !async_copy.slot<@k, fill>
      async_copy.commit @k, %s
      scf.yield %next : !async_copy.cursor<@k, fill>
    }
  }
"""

LOAD = '%f = mma.load %s["k"][%c0, %c0] : !slot -> !mma.fragment<16x16xf16, a, m16n8k16>'


def loop(body: str, carried: str = "%c = %r0", types: str = "!cursor", yields: str = "%next : !cursor") -> str:
    """A consumer whose one loop has that body."""
    return f"""
    %r0 = async_copy.begin_read @k
    %r = scf.for %i = %c0 to %n step %c16 iter_args({carried}) -> ({types}) {{
      {body}
      scf.yield {yields}
    }}"""


def kernel(consumer: str, producer: str = PRODUCER) -> str:
    return f"{HEAD}{producer}\n  async_copy.consumer {{\n{consumer}\n  }}\n}}\n"


WAIT = "%s, %next = async_copy.wait @k[%c]"
RELEASE = "async_copy.release @k, %s"

LEGAL = {
    "plain": loop(f"{WAIT}\n{LOAD}\n{RELEASE}"),
    "both paths": loop(f"{WAIT}\n scf.if %p {{ {RELEASE} }} else {{ {LOAD}\n {RELEASE} }}"),
    "read under a condition": loop(f"{WAIT}\n scf.if %p {{ {LOAD} }}\n {RELEASE}"),
    "read in an inner loop": loop(f"{WAIT}\n scf.for %j = %c0 to %n step %c16 {{ {LOAD} }}\n {RELEASE}"),
}

WRONG = {
    "missing": (loop(f"{WAIT}\n{LOAD}"), "a slot of pipeline @k is not released on every path"),
    "double": (loop(f"{WAIT}\n{RELEASE}\n{RELEASE}"), "a slot of pipeline @k is used after it was consumed"),
    "early": (loop(f"{WAIT}\n{RELEASE}\n{LOAD}"), "a slot of pipeline @k is used after it was consumed"),
    "early, in a region": (
        loop(f"{WAIT}\n{RELEASE}\n scf.if %p {{ {LOAD} }}"),
        "a slot of pipeline @k is used after it was consumed",
    ),
    "one path": (loop(f"{WAIT}\n scf.if %p {{ {RELEASE} }}"), "a slot of pipeline @k is consumed in one branch only"),
    "in an inner loop": (
        loop(f"{WAIT}\n scf.for %j = %c0 to %n step %c16 {{ {RELEASE} }}"),
        "a slot of pipeline @k from outside a loop is consumed in it: carry it as an iter_arg",
    ),
    "cursor reset in the loop": (
        loop(f"%s, %next = async_copy.wait @k[%r0]\n{RELEASE}"),
        "a cursor of pipeline @k is used after it was consumed",
    ),
    "cursor from outside": (
        "%r0 = async_copy.begin_read @k\n scf.for %i = %c0 to %n step %c16 {"
        f"%s, %next = async_copy.wait @k[%r0]\n{RELEASE} }}",
        "a cursor of pipeline @k from outside a loop is consumed in it",
    ),
    "cursor reused": (
        loop(f"{WAIT}\n{RELEASE}\n%t, %u = async_copy.wait @k[%c]\n async_copy.release @k, %t"),
        "a cursor of pipeline @k is used after it was consumed",
    ),
    "last deferred one forgotten": (
        """
    %r0 = async_copy.begin_read @k
    %s0, %r1 = async_copy.wait @k[%r0]
    %last, %r = scf.for %i = %c16 to %n step %c16 iter_args(%kept = %s0, %c = %r1) -> (!slot, !cursor) {
      %s, %next = async_copy.wait @k[%c]
      async_copy.release @k, %kept
      scf.yield %s, %next : !slot, !cursor
    }""",
        "a slot of pipeline @k is not released on every path",
    ),
    "three held of two": (
        loop(
            "%s, %n1 = async_copy.wait @k[%c]\n %t, %n2 = async_copy.wait @k[%n1]\n %u, %next = async_copy.wait @k[%n2]\n"
            "async_copy.release @k, %s\n async_copy.release @k, %t\n async_copy.release @k, %u"
        ),
        r"pipeline @k has 2 stage\(s\) and every slot is held here: it wants more stages",
    ),
    "released behind a held one": (
        loop(
            "%s, %n1 = async_copy.wait @k[%c]\n %t, %n2 = async_copy.wait @k[%n1]\n async_copy.release @k, %t\n"
            "%u, %next = async_copy.wait @k[%n2]\n async_copy.release @k, %s\n async_copy.release @k, %u"
        ),
        r"pipeline @k has 2 stage\(s\) and every slot is held here or stands behind one that is",
    ),
    "a loop behind a held slot": (
        """
    %r0 = async_copy.begin_read @k
    %s0, %r1 = async_copy.wait @k[%r0]
    %r = scf.for %i = %c16 to %n step %c16 iter_args(%c = %r1) -> (!cursor) {
      %s, %next = async_copy.wait @k[%c]
      async_copy.release @k, %s
      scf.yield %next : !cursor
    }
    async_copy.release @k, %s0""",
        "pipeline @k: a slot is given back in this loop while an older one is held",
    ),
    "two chains": (
        loop(f"{WAIT}\n{RELEASE}") + "\n%again = async_copy.begin_read @k",
        "pipeline @k has two first cursors on one side",
    ),
    "begins in a loop": (
        "scf.for %i = %c0 to %n step %c16 {\n %c = async_copy.begin_read @k\n" + f"{WAIT}\n{RELEASE} }}",
        "the first cursor of pipeline @k stands in a loop",
    ),
    "never read": ("", "pipeline @k is filled but never waited for"),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    VerifyPipelines().apply(CONTEXT, parse_module(kernel(LEGAL[name]), "k.mlir", CONTEXT))


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    consumer, message = WRONG[name]
    module = parse_module(kernel(consumer), "k.mlir", CONTEXT)
    with pytest.raises(EmmyError, match=message) as raised:
        VerifyPipelines().apply(CONTEXT, module)
    assert raised.value.location is not None
    assert raised.value.location.file == "k.mlir"


SIMPLE = loop(f"{WAIT}\n{RELEASE}")

WRONG_HALVES = {
    "never filled": ("", "pipeline @k is never filled: no acquire names it"),
    "commits under another condition": (
        """
  async_copy.producer {
    %f0 = async_copy.begin_fill @k
    %s, %f1 = async_copy.acquire @k[%f0] if %p
    async_copy.commit @k, %s
  }""",
        "a slot of pipeline @k is committed under another condition than it was acquired",
    ),
    "not committed": (
        "async_copy.producer {\n %f0 = async_copy.begin_fill @k\n %s, %f1 = async_copy.acquire @k[%f0]\n }",
        "a slot of pipeline @k is not committed on every path",
    ),
    "waits in the producer": (
        PRODUCER.replace("%f0 =", "%w = async_copy.begin_read @k\n %x, %y = async_copy.wait @k[%w]\n %f0 =", 1),
        "the producer fills inbound pipelines only; async_copy.wait of @k is the consumer's",
    ),
}


@pytest.mark.parametrize("name", WRONG_HALVES)
def test_wrong_producer(name: str) -> None:
    producer, message = WRONG_HALVES[name]
    consumer = "" if "waits" in name else SIMPLE
    with pytest.raises(EmmyError, match=message):
        VerifyPipelines().apply(CONTEXT, parse_module(kernel(consumer, producer), "k.mlir", CONTEXT))


TWO_LOOPS = """
  async_copy.producer {
    %f0 = async_copy.begin_fill @k
    %f = scf.for %i = %c0 to %n step %c16 iter_args(%c = %f0) -> (!async_copy.cursor<@k, fill>) {
      %s, %next = async_copy.acquire @k[%c]
      async_copy.commit @k, %s
      scf.yield %next : !async_copy.cursor<@k, fill>
    }
    %g = scf.for %i = %c0 to %n step %c16 iter_args(%c = %f) -> (!async_copy.cursor<@k, fill>) {
      %s, %next = async_copy.acquire @k[%c]
      async_copy.commit @k, %s
      scf.yield %next : !async_copy.cursor<@k, fill>
    }
  }
"""


def outer(ub: str, body: str, side: str, begin: str) -> str:
    return f"""
    %b0 = async_copy.begin_{begin} @k
    %b = scf.for %t = %c0 to {ub} step %c16 iter_args(%x = %b0) -> (!async_copy.cursor<@k, {side}>) {{
      %e = scf.for %i = %c0 to %n step %c16 iter_args(%c = %x) -> (!async_copy.cursor<@k, {side}>) {{
        {body}
        scf.yield %next : !async_copy.cursor<@k, {side}>
      }}
      scf.yield %e : !async_copy.cursor<@k, {side}>
    }}"""


FILL = "%s, %next = async_copy.acquire @k[%c]\n async_copy.commit @k, %s"

UNPLACEABLE = {
    "two producer loops": (
        kernel(SIMPLE, TWO_LOOPS),
        "@k is filled at two places of one producer block: fuse them first",
    ),
    "wait under a condition": (
        kernel(
            loop(
                f"%next = scf.if %p -> (!cursor) {{ %s, %y = async_copy.wait @k[%c]\n {RELEASE}\n scf.yield %y : !cursor }}"
                " else { scf.yield %c : !cursor }"
            )
        ),
        "pipeline @k is waited for or released under a condition",
    ),
    "outer loops differ": (
        kernel(
            outer("%n", f"{WAIT}\n{RELEASE}", "read", "read"),
            f"async_copy.producer {{ {outer('%c16', FILL, 'fill', 'fill')} }}",
        ),
        "the outer loops of producer and consumer run over different values",
    ),
    "no outer loop": (
        kernel(
            SIMPLE, f"async_copy.producer {{ {outer('%n', FILL, 'fill', 'fill').replace('%n step', '%c16 step')} }}"
        ),
        "the outer loops of producer and consumer run over different values|filled in a loop of loops",
    ),
}


@pytest.mark.parametrize("name", UNPLACEABLE)
def test_unplaceable(name: str) -> None:
    text, message = UNPLACEABLE[name]
    with pytest.raises(EmmyError, match=message) as raised:
        PlaceRoles().apply(CONTEXT, parse_module(text, "k.mlir", CONTEXT))
    assert raised.value.location is not None


LARGE = "block = [128, 256, 64], warps = [2, 4], roles = specialized"


def roles(schedule: str, target: str = "sm_90a") -> list[tuple[str, int, int | None]]:
    """(name, warps, registers) of the roles of a kernel with that schedule."""
    text = kernel("%w = mma.warp 0 of [2, 4]" + SIMPLE).replace(") {", f") schedule <{schedule}> {{", 1)
    module = parse_module(text, "k.mlir", CONTEXT)
    PlaceRoles(target=target).apply(CONTEXT, module)
    found = [op for op in module.walk() if isinstance(op, RoleOp)]
    return [(op.role.data, op.warps.value.data, op.regs.value.data if op.regs else None) for op in found]


def test_roles_share_the_registers() -> None:
    assert roles(f"{LARGE}, transport = tma") == [("consumer", 8, 240), ("producer", 4, 24)]
    assert roles(f"{LARGE}, transport = tma", "sm_89") == [("consumer", 8, None), ("producer", 4, None)]
    assert roles(f"{LARGE}, producer_warps = 1") == [("consumer", 8, None), ("producer", 1, None)]
    with pytest.raises(
        EmmyError, match="8 warps with 240 registers a thread and 4 with 40 are more than the 64512"
    ) as raised:
        roles(f"{LARGE}, producer_regs = 40, consumer_regs = 240")
    assert raised.value.location is not None


def test_one_role_where_nothing_is_filled() -> None:
    text = "tile.kernel @k() {\n async_copy.consumer {\n %c = arith.constant 1 : index\n }\n}\n"
    module = parse_module(text, "k.mlir", CONTEXT)
    PlaceRoles("specialized").apply(CONTEXT, module)
    assert [op.role.data for op in module.walk() if isinstance(op, RoleOp)] == ["main"]


def test_warps_must_agree() -> None:
    text = kernel("%w = mma.warp 0 of [3]" + SIMPLE).replace(
        "async_copy.consumer {", "async_copy.consumer attributes {warps = 2} {"
    )
    with pytest.raises(EmmyError, match=r"the consumer has 2 warps, but an mma.warp of it splits 3"):
        PlaceRoles().apply(CONTEXT, parse_module(text, "k.mlir", CONTEXT))


def test_transport_wants_roles() -> None:
    with pytest.raises(EmmyError, match="lower-transport wants roles"):
        LowerTransport().apply(CONTEXT, parse_module(kernel(SIMPLE), "k.mlir", CONTEXT))


ROLE = """
  async_copy.role "main" warps 2 {{
    %f0 = async_copy.begin_fill @k
    %r0 = async_copy.begin_read @k
    {body}
  }}
}}
"""

UNLOWERABLE = {
    "paths differ": (
        """scf.for %i = %c0 to %n step %c16 iter_args(%c = %f0) -> (!async_copy.cursor<@k, fill>) {
          %s, %next = async_copy.acquire @k[%c]
          async_copy.copy %v[%i, %c0] -> %s["k"] : !tile.view<?x16xf16> -> !async_copy.slot<@k, fill>
          async_copy.commit @k, %s
          scf.yield %next : !async_copy.cursor<@k, fill>
        }
        %t, %r1 = async_copy.wait @k[%r0]
        async_copy.release @k, %t""",
        "pipeline @k: the paths that meet here leave 0 and 1 tickets outstanding: drain the pipeline before",
    ),
    "nothing outstanding": (
        """%t, %r1 = async_copy.wait @k[%r0]
        async_copy.release @k, %t
        %s, %f1 = async_copy.acquire @k[%f0]
        async_copy.copy %v[%c0, %c0] -> %s["k"] : !tile.view<?x16xf16> -> !async_copy.slot<@k, fill>
        async_copy.commit @k, %s""",
        "pipeline @k is waited for here with no ticket outstanding",
    ),
    "joined with nothing": (
        """%s, %f1 = async_copy.acquire @k[%f0]
        async_copy.copy %v[%c0, %c0] -> %s["k"] : !tile.view<?x16xf16> -> !async_copy.slot<@k, fill>
        async_copy.commit @k, %s joined
        %t, %r1 = async_copy.wait @k[%r0]
        async_copy.release @k, %t""",
        "pipeline @k is waited for before the commit that its joined commit belongs to",
    ),
}


@pytest.mark.parametrize("name", UNLOWERABLE)
def test_unlowerable(name: str) -> None:
    body, message = UNLOWERABLE[name]
    body = "%f = " + body if body.startswith("scf.for") else body
    module = parse_module(HEAD + ROLE.format(body=body), "k.mlir", CONTEXT)
    with pytest.raises(EmmyError, match=message):
        LowerTransport("cp_async").apply(CONTEXT, module)
