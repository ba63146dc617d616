"""Schedules: what a target can run, and which one a product starts from."""

from dataclasses import replace

import pytest

import emmy
from emmy.assemble import assemble_in_registers, find_tool
from emmy.errors import EmmyError
from emmy.ir import make_context, parse_module
from emmy.layout.shared import shared_layout
from emmy.passes.assign_schedule import AssignSchedule
from emmy.schedule_choice import Product, choose_schedule
from emmy.schedule_limits import (
    Epilogue,
    RegisterSplit,
    least_registers,
    problem_on_target,
    register_split,
    shared_bytes,
)
from emmy.schedule_table import CANDIDATES, EIGHT_BIT_CANDIDATES, TABLES
from emmy.schedules import Schedule
from emmy.targets import TARGETS, get_target

H200, ADA = get_target("sm_90a"), get_target("sm_89")
LARGE = Schedule((128, 256, 64), (2, 4), stages=3)


def test_shared_memory_is_the_ring_overlaid_by_the_result_tile():
    assert shared_bytes(LARGE) == 3 * (128 + 256) * 64 * 2 == 147456
    one_stage = Schedule((128, 256, 32), (2, 4), stages=1)
    assert shared_bytes(one_stage, epilogue=Epilogue(2)) == 128 * 256 * 2
    assert shared_bytes(one_stage, epilogue=Epilogue(4)) == 128 * 256 * 4
    assert (
        shared_bytes(Schedule((128, 256, 32), (2, 4), stages=1, epilogue="direct"), Epilogue(4)) == (128 + 256) * 32 * 2
    )


def test_shared_memory_of_an_epilogue():
    """A residual tile and a bias row lie behind the ring, each at a multiple of 1024 bytes (`allocate-shared`)."""
    residual, bias = (True, True, 2), (False, True, 2)
    for tensors in ((residual, bias), (bias, residual)):  # the largest first
        assert shared_bytes(LARGE, Epilogue(2, tensors)) == 147456 + 128 * 256 * 2 + 256 * 2 == 213504


def test_registers_of_a_warp_tile_of_64_by_64():
    assert least_registers(LARGE) == 128 + 32 + 24
    assert least_registers(LARGE, f16_sums=True) == 64 + 32 + 24


@pytest.mark.parametrize(
    ("schedule", "options", "sentence"),
    [
        (LARGE, {}, None),
        (Schedule((256, 256, 64), (2, 4), stages=3), {"f16_sums": True}, None),
        (Schedule((256, 256, 64), (4, 4), stages=3), {}, "at least 184 registers and can have 128"),
        (
            Schedule((256, 256, 64), (4, 4), stages=4),
            {},
            "262176 bytes of shared memory, and a CTA of sm_90a has 232448",
        ),
        (Schedule((128, 256, 64), (2, 2)), {}, "at least 328 registers and can have 255"),
        (Schedule((128, 256, 64), (2, 2)), {"f16_sums": True}, None),
        (Schedule((256, 256, 32), (8, 4)), {}, "at least 112 registers and can have 64"),
        (Schedule(transport="tma"), {}, None),
        (Schedule(roles="specialized"), {}, None),
        (Schedule((128, 256, 64), (2, 4), roles="specialized", producer_regs=24, consumer_regs=240), {}, None),
        (
            Schedule((128, 256, 64), (2, 4), roles="specialized", producer_regs=40, consumer_regs=240),
            {},
            "8 warps with 240 registers a thread and 4 with 40 are more than the 64512 registers that 384 threads start with",
        ),
        (
            Schedule(roles="specialized", producer_warps=1, producer_regs=24),
            {},
            "setmaxnreg is for whole warpgroups of 4 warps, and the roles have 4 and 1",
        ),
        (
            Schedule((128, 256, 64), (2, 4), roles="specialized", producer_warps=1),
            {},
            None,
        ),
        (Schedule((256, 256, 64), (4, 4), roles="specialized"), {}, "at least 184 registers and can have 112"),
        (Schedule((128, 256, 64), (2, 4), persistent=1), {}, None),
        (Schedule((128, 256, 64), (2, 4), stages=4, persistent=1), {}, "262176 bytes of shared memory"),
    ],
)
def test_what_the_h200_can_run(schedule, options, sentence):
    problem = problem_on_target(schedule, H200, **options)
    assert problem is None if sentence is None else sentence in problem


@pytest.mark.parametrize("partial", [0, 16, 32])
@pytest.mark.parametrize("target", EIGHT_BIT_CANDIDATES)
def test_every_candidate_of_8_bits_runs_on_its_target(target, partial):
    """`partial`: bits of partial sums."""
    for candidate in TABLES[True, partial][target]:
        schedule = candidate.schedule
        assert schedule.problem() is None
        assert problem_on_target(schedule, TARGETS[target], operand_bytes=1, partial_bits=partial) is None
        assert schedule.fragment_atom_of(8) == "m16n8k32"
        assert schedule.block[2] % 32 == 0
        assert schedule.split_k == 1 or not partial  # its CTAs add up f32 sums that are whole


@pytest.mark.parametrize("target", TARGETS)
def test_every_candidate_runs_on_its_target(target):
    for candidate in CANDIDATES[target]:
        assert candidate.schedule.problem() is None
        assert problem_on_target(candidate.schedule, TARGETS[target]) is None
        # 64 x 64 elements a warp is what the register file holds with double-buffered fragments.
        assert candidate.schedule.block[0] // candidate.schedule.warps[0] <= 64
        # (A warpgroup's products read theirs from shared memory.)
        assert candidate.schedule.block[1] // candidate.schedule.warps[1] <= 64 or candidate.schedule.atom == "wgmma"
    usual = [candidate for candidate in CANDIDATES[target] if not candidate.least_waves]
    assert usual[0].rate == max(candidate.rate for candidate in usual)


@pytest.mark.parametrize(
    ("m", "n", "batch", "block"),
    [
        (None, 4096, 1, (128, 256, 64)),  # `?` rows are many
        (None, None, None, (128, 256, 64)),
        (4096, 4096, 1, (128, 256, 64)),
        (4096, 3840, 1, (128, 320, 64)),  # whole waves
        (256, 256, 1, (64, 64, 128)),  # 16 tiles rather than 2, and two CTAs for each
        (256, 256, 256, (128, 256, 64)),  # a batch makes up for it
        (None, 64, 1, (128, 64, 64)),  # no column of the tile is wasted
        (0, 64, 1, (128, 256, 64)),  # nothing to do: any
    ],
)
def test_choice_by_waves(m, n, batch, block):
    assert choose_schedule(H200, Product(m, n, batch)).block == block


@pytest.mark.parametrize(
    ("m", "n", "block"),
    [(4096, 4096, (128, 128, 64)), (4096, 3840, (128, 192, 64)), (256, 256, (64, 64, 64)), (None, 64, (128, 64, 64))],
)
def test_a_row_of_another_atom_is_another_row(m, n, block):
    """With mma.sync the tiles are those of mma.sync, not a warpgroup's tile with another atom."""
    schedule = choose_schedule(H200, Product(m, n, asked=lambda schedule: replace(schedule, atom="m16n8k16")))
    assert (schedule.block, schedule.roles) == (block, "unified")


def test_an_f32_result_takes_a_tile_that_can_be_staged():
    assert choose_schedule(ADA, Product(None, 4096, epilogue=Epilogue(2))).block == (128, 256, 32)
    assert choose_schedule(ADA, Product(None, 4096, epilogue=Epilogue(4))).block == (128, 128, 32)


def test_an_epilogue_that_leaves_little_room_takes_fewer_stages():
    many = Epilogue(2, ((True, True, 4),) * 5)
    schedule = choose_schedule(ADA, Product(None, 4096, epilogue=many))
    assert (schedule.block, schedule.stages) == ((64, 64, 64), 1)
    assert problem_on_target(schedule, ADA, many) is None
    too_many = Epilogue(2, ((True, True, 4),) * 120)
    assert "reduce block or stages" in problem_on_target(
        choose_schedule(ADA, Product(64, 64, 1, too_many)), ADA, too_many
    )


def assign(pin, policy="f32", **options):
    text = f"""func.func @f(%a: tensor<64x64xf16>) -> tensor<64x64xf16> {{
      %y = tensor_op.matmul %a, %a accumulate<{policy}> {pin} : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
      func.return %y : tensor<64x64xf16>
    }}"""
    context = make_context()
    module = parse_module(text, "t.mlir", context)
    AssignSchedule(**options).apply(context, module)
    return module.body.block.first_op.body.block.first_op.attributes["emmy.schedule"].data


@pytest.mark.parametrize(
    ("pin", "policy", "options", "sentence"),
    [
        ("{emmy.schedule = 3}", "f32", {}, "emmy.schedule is a #tile.schedule<..>, got 3 : i64"),
        ("{emmy.schedule = #tile.schedule<atom = m64n256k16>}", "f32", {}, "there is no atom m64n256k16"),
        ("{emmy.schedule = #tile.schedule<promote = 32>}", "f32", {}, "promote belongs to the hybrid policy"),
        (
            "{emmy.schedule = #tile.schedule<promote = 64>}",
            "hybrid, max_k = 32",
            {},
            "promote = 64 is more than the policy's max_k = 32",
        ),
        ("", "f32", {"block_m": 100}, "block is three positive multiples of 16 (M, N, K), got [100, 64, 64]"),
        ("", "f32", {"block_n": 64, "warps_n": 8}, "block[1] = 64 does not split over 8 warps in multiples of 16"),
        ("", "f32", {"transport": "pigeon"}, "transport is one of auto, cp_async, plain, tma, got 'pigeon'"),
        ("", "f32", {"stages": 16, "block_k": 256}, "a CTA of sm_90a has 232448; reduce block or stages"),
    ],
)
def test_illegal_schedules_are_errors_at_the_product(pin, policy, options, sentence):
    with pytest.raises(EmmyError) as caught:
        assign(pin, policy, **options)
    assert sentence in caught.value.message
    assert (caught.value.location.line, caught.value.location.column) == (2, 7)


def test_options_replace_single_fields():
    schedule = assign("", block_m=32, warps_m=1, epilogue="direct", fragments=1, opt_level=0)
    assert schedule.block == (32, 64, 64)
    assert schedule.warps == (1, 2)
    assert (schedule.epilogue, schedule.fragments, schedule.opt_level) == ("direct", 1, 0)
    assert assign("", "hybrid, max_k = 32", promote=16).promote == 16


@pytest.mark.parametrize(
    "options",
    [
        {"atom": "wgmma", "warps_m": 4, "warps_n": 2},  # parts of a result are for warps with whole rows
        {"block_m": 16, "block_n": 16, "block_k": 16},
        {"atom": "wgmma", "roles": "unified"},
        {"store_columns": 32},
        {"consumer_regs": 160},
    ],
)
def test_fields_that_options_do_not_say_fit_those_that_they_do(options):
    schedule = assign("", **options)
    assert problem_on_target(schedule, H200) is None
    said = dict(zip(("block_m", "block_n", "block_k"), schedule.block, strict=True), warps_m=schedule.warps[0])
    said |= vars(schedule) | {"warps_n": schedule.warps[1]}
    assert all(said[name] == value for name, value in options.items())


def test_a_pin_wins_over_options():
    pin = "{emmy.schedule = #tile.schedule<block = [16, 16, 16], warps = [1, 1]>}"
    assert assign(pin, block_m=64).block == (16, 16, 16)


SPLITS = [
    ("sm_90a", {"transport": "tma"}, RegisterSplit(24, 240)),
    ("sm_120a", {"transport": "cp_async"}, RegisterSplit(40, 232)),
    ("sm_90a", {"producer_regs": 56}, RegisterSplit(56, 224)),
    ("sm_89", {}, None),
    ("sm_90a", {"producer_warps": 1}, None),
    ("sm_90a", {"warps": (2, 2)}, None),
    ("sm_90a", {"warps": (2, 3), "consumers": "pingpong"}, None),  # 12 warps, but 6 of each consumer
]


@pytest.mark.parametrize(("target", "fields", "split"), SPLITS)
def test_registers_of_specialised_roles(target, fields, split):
    """The pool is what all threads have at entry: 384 threads begin with 168 each."""
    schedule = Schedule(**{"block": (128, 256, 64), "warps": (2, 4), "roles": "specialized", **fields})
    assert register_split(schedule, get_target(target)) == split


def test_setmaxnreg_is_not_on_every_target():
    schedule = Schedule((128, 256, 64), (2, 4), roles="specialized", consumer_regs=232)
    problem = register_split(schedule, get_target("sm_89"))
    assert problem == "producer_regs and consumer_regs need setmaxnreg, which sm_89 has not"


def test_tma_needs_a_target_with_it():
    problem = problem_on_target(Schedule(transport="tma"), get_target("sm_89"))
    assert problem == "transport = tma needs sm_90 or later, and the target is sm_89; use cp_async"


def test_registers_belong_to_roles():
    assert Schedule(producer_regs=24).problem() == "producer_regs belongs to roles = specialized"
    assert "a multiple of 8 from 24 to 256, got 30" in str(Schedule(roles="specialized", consumer_regs=30).problem())


@pytest.mark.parametrize("roles", ["unified", "specialized"])
@pytest.mark.parametrize("transport", ["tma", "cp_async"])
@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("stages", [1, 3])
def test_shared_memory_is_what_is_allocated(roles, transport, persistent, stages):
    """The table that rules schedules out knows what allocate-shared will need: rings, overlaid results, mbarriers."""
    tensors = "tensor<?x512xf16>, tensor<512x512xf16>"
    text = f"""func.func @f(%a: tensor<?x512xf16>, %b: tensor<512x512xf16>) -> tensor<?x512xf16> {{
      %c = tensor_op.matmul %a, %b transpose_b : ({tensors}) -> tensor<?x512xf16>
      func.return %c : tensor<?x512xf16>
    }}"""
    block = {"block": (64, 128, 32), "warps": (2, 2)}
    schedule = Schedule(**block, roles=roles, transport=transport, persistent=persistent, stages=stages)
    fields = {
        name: getattr(schedule, name) for name in ("block", "warps", "roles", "transport", "persistent", "stages")
    }
    module = emmy.compile(text, "sm_90a", schedule=fields)
    kernel = next(op for op in parse_module(module.ir("level3"), "level3").walk() if op.name == "tile.kernel")
    assert kernel.attributes["emmy.shared_bytes"].value.data == shared_bytes(schedule)


@pytest.mark.parametrize(("rows", "columns", "element"), [(128, 1, 2), (128, 1, 4), (1, 256, 2), (128, 48, 4)])
def test_tiles_of_further_tensors_take_what_their_layout_takes(rows: int, columns: int, element: int):
    """A row of one element is padded to 32 bytes."""
    schedule = Schedule(block=(max(rows, 16), max(columns, 16), 16), warps=(1, 1), stages=8, epilogue="direct")
    tensor = (rows > 1, columns > 1, element)
    added = shared_bytes(schedule, Epilogue(tensors=(tensor,))) - shared_bytes(schedule)
    start = -(-shared_bytes(schedule) // 1024) * 1024 - shared_bytes(schedule)
    size = shared_layout(rows, columns, element).size_bytes
    assert added == start + -(-size // 128) * 128


def test_a_default_leaves_room_for_a_column():
    """The rows of a `?` x 1 tensor took 16 times what was reckoned: the schedule that was chosen did not fit."""
    text = """func.func @f(
      %a: tensor<?x?xf16>, %b: tensor<?x?xf16>, %c: tensor<?x1xf16>, %r: tensor<1x?xf16>
    ) -> tensor<?x?xf16> {
      %0 = tensor_op.matmul %a, %b transpose_a : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
      %1 = tensor_op.map sub %0, %c : (tensor<?x?xf16>, tensor<?x1xf16>) -> tensor<?x?xf16>
      %2 = tensor_op.map sub %1, %r : (tensor<?x?xf16>, tensor<1x?xf16>) -> tensor<?x?xf16>
      func.return %2 : tensor<?x?xf16>
    }"""
    assert emmy.compile(text, "sm_90a").portable_artefact


def test_a_default_leaves_room_for_two_results():
    """A persistent CTA stages each result in a place of its own."""
    text = """func.func @f(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>) -> (tensor<?x?xf16>, tensor<?x?xf16>) {
      %0 = tensor_op.matmul %a, %b : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
      %1 = tensor_op.map relu %0 : (tensor<?x?xf16>) -> tensor<?x?xf16>
      func.return %0, %1 : tensor<?x?xf16>, tensor<?x?xf16>
    }"""
    assert emmy.compile(text, "sm_90a").portable_artefact


@pytest.mark.parametrize(
    ("m", "n", "k", "block", "consumers", "raster"),
    [
        (512, 262144, 3840, (64, 192, 64), "pingpong", 8),
        (1024, 262144, 3840, (64, 256, 64), "pingpong", 32),
        (None, 262144, 3840, (128, 256, 64), "cooperative", 8),
        (512, 512, 3840, (64, 64, 128), "cooperative", 2),
        (4096, 30720, 3840, (128, 192, 64), "cooperative", 8),
        (8192, 8192, 1024, (64, 256, 64), "pingpong", 8),
        (8192, None, 1024, (128, 256, 64), "cooperative", 8),
        (2048, 2048, 512, (128, 256, 64), "cooperative", 8),
        (2048, 512, 3840, (64, 128, 64), "cooperative", 4),
        (512, 2048, 3840, (64, 128, 64), "cooperative", 8),
        (2048, 3840, 4096, (128, 240, 64), "cooperative", 8),
        (512, 3840, 4096, (128, 120, 64), "cooperative", 8),
    ],
)
def test_rows_for_many_waves_short_contractions_and_whole_waves(m, n, k, block, consumers, raster):
    """Ping-pong wants known sizes: many waves, or some and a short K. A low group of tiles is for more rows than it holds."""
    chosen = choose_schedule(get_target("sm_90a"), Product(m, n, k=k))
    assert (chosen.block, chosen.consumers, chosen.raster) == (block, consumers, raster)


@pytest.mark.parametrize(
    ("target", "m", "n", "asked", "evict"),
    [
        ("sm_90a", 512, 4096, {}, "b"),
        ("sm_90a", 512, 512, {}, "b"),
        ("sm_90a", 512, 4096, {"evict": "none"}, "none"),
        ("sm_90a", 512, 4096, {"block": (64, 64, 64), "warps": (4, 1)}, "none"),  # 512 CTAs
        ("sm_90a", 512, 4096, {"atom": "m16n8k16"}, "none"),
        ("sm_90a", 4096, 4096, {}, "none"),
        ("sm_90a", None, 4096, {}, "none"),
        ("sm_120a", 512, 4096, {}, "none"),
    ],
)
def test_operands_that_one_wave_reads_leave_the_cache_first(target, m, n, asked, evict):
    product = Product(m, n, k=3840, asked=lambda schedule: replace(schedule, **asked))
    assert choose_schedule(get_target(target), product).evict == evict


def test_tma_stores_whole_units_of_32_bytes():
    """120 columns of f16 that lie beside each other are padded to 128: TMA does not store them, and an operand takes room."""
    schedule = Schedule(
        atom="wgmma", block=(128, 120, 64), warps=(8, 1), stages=6, roles="specialized", persistent=1, transport="tma"
    )
    target = get_target("sm_90a")
    assert "stores rows of whole 32 bytes, and 120 columns" in str(problem_on_target(schedule, target))
    assert problem_on_target(replace(schedule, transport="auto"), target) is None
    wide = replace(schedule, block=(128, 128, 64))
    assert shared_bytes(schedule, Epilogue(columns_first=True)) == shared_bytes(wide)
    assert shared_bytes(schedule) == shared_bytes(wide) - 6 * 8 * 64 * 2


@pytest.mark.skipif(find_tool("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("partial", ["", ", partial = f16"])
def test_a_single_step_of_narrow_partial_sums_assembles(partial):
    """Tiles of 128 columns, or of 256 with sums of f16, are in loops what the table takes; one step of them is serialised."""
    a, c = "tensor<4096x96xf8E4M3FN>", "tensor<4096x4096xf16>"
    text = (
        f"func.func @f(%a: {a}, %b: {a}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b transpose_b accumulate<hybrid, max_k = 32{partial}> : ({a}, {a}) -> {c}\n"
        f"  func.return %c : {c}\n}}\n"
    )
    assemble_in_registers(emmy.compile(text, "sm_90a", variants="dense").ptx, "sm_90a")
