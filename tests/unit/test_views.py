"""`emmy view`: well-formed pictures and pages, with the contents that the layouts and the locations say. No browser."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from emmy.atoms import fragment_layout, get_atom
from emmy.compilation import lower
from emmy.ir import parse_module, print_module
from emmy.layout import shared_layout
from emmy.options import Options
from emmy.tools import cli
from emmy.views.ir_page import Panel, ir_page, panels_of, print_with_sources
from emmy.views.svg import Cell, Grid, draw

SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"

CHAIN = """// a comment with <angle> & ampersand
func.func @mm(%a: tensor<64x32xf16>, %b: tensor<32x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>
  %d = tensor_op.map exp %c
    : (tensor<64x64xf16>) -> tensor<64x64xf16>
  func.return %d : tensor<64x64xf16>
}
"""


def view(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What `emmy view` prints."""
    assert cli.main(["view", *map(str, words)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def cells(text: str) -> dict[str, tuple[str, str]]:
    """Tooltip -> (label, fill) of every cell of a picture."""
    found = {}
    for group in ElementTree.fromstring(text).iter(f"{SVG}g"):
        title, box, label = group
        found[title.text] = (label.text, box.get("fill"))
    return found


# ---- layouts ---------------------------------------------------------------------------------------------------------


def test_a_swizzled_tile(capsys: pytest.CaptureFixture[str]):
    text = view(capsys, "layout", "--shared", "128x64xf16", "--swizzle", 128, "--rows", 16)
    drawn = cells(text)
    tile = shared_layout(128, 64, 2, 128)
    assert len(drawn) == 16 * 8
    for row in (0, 1, 7, 9):
        for column in (0, 8, 56):
            offset = int(tile.offset(row, column))
            bank = offset // 4 % 32
            title = f"row {row}, columns {column}-{column + 7}: bytes {offset}-{offset + 15}, banks {bank}-{bank + 3}"
            assert drawn[title][0] == str(offset)
    # eight rows of one chunk column, which ldmatrix reads at once, have eight colours
    first = [fill for title, (_, fill) in drawn.items() if re.match(r"row [0-7], columns 0-7:", title)]
    assert len(set(first)) == 8
    assert "ldmatrix of rows 0-7: 1 wavefront for each matrix" in text
    assert "TMA writes it with swizzle 128B" in text
    assert "112 more rows" in text


def test_without_a_swizzle_the_rows_collide(capsys: pytest.CaptureFixture[str]):
    text = view(capsys, "layout", "--shared", "16x64xf16", "--swizzle", "none")
    first = [fill for title, (_, fill) in cells(text).items() if re.match(r"row [0-7], columns 0-7:", title)]
    assert len(set(first)) == 1
    assert "8 wavefronts" in text


def test_padding_is_drawn_and_said(capsys: pytest.CaptureFixture[str]):
    text = view(capsys, "layout", "--shared", "5x59xbf16")
    assert "laid out as 5x64" in text
    assert len(cells(text)) == 5 * 8


@pytest.mark.parametrize(("place", "shape"), [("a", (64, 16)), ("b", (16, 32)), ("c", (16, 16))])
def test_a_fragment(place: str, shape: tuple[int, int], capsys: pytest.CaptureFixture[str]):
    rows, cols = shape
    drawn = cells(view(capsys, "layout", "--fragment", f"{rows}x{cols}", "--place", place, "--atom", "m16n8k16"))
    layout = fragment_layout(get_atom("m16n8k16", "f16", "f32"), place, rows, cols)
    assert len(drawn) == rows * cols
    colours: dict[str, str] = {}
    for title, (label, fill) in drawn.items():
        row, col = map(int, re.match(r"\((\d+), (\d+)\)", title).groups())
        register, lane = (int(number) for number in layout.apply(row, col))
        assert label == f"{lane}/{register}"
        word = register if place == "c" else register // 2
        assert f"lane {lane}, element {register}: 32-bit register {word}" in title
        assert colours.setdefault(str(lane), fill) == fill
    assert len(colours) == len(set(colours.values())) == 32


def test_a_row_value_is_held_by_four_lanes(capsys: pytest.CaptureFixture[str]):
    drawn = cells(view(capsys, "layout", "--fragment", "16x1", "--place", "c"))
    assert ("4../0", "hsl(45, 60%, 86%)") in drawn.values()
    assert any("lanes 4, 5, 6, 7" in title for title in drawn)


def test_text_is_escaped_and_output_repeats(capsys: pytest.CaptureFixture[str]):
    grid = Grid(["<a> & 'b'"], ["<"], [("&", [Cell("<t>", "#fff", 'a "title"')])], 40, legend=[("&", "#000")])
    assert {t.text for t in ElementTree.fromstring(draw(grid)).iter(f"{SVG}text")} == {"<a> & 'b'", "<", "&", "<t>"}
    words = ("layout", "--fragment", "16x16")
    assert view(capsys, *words) == view(capsys, *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shared", "5x5xf64"], "--shared is ROWSxCOLSxDTYPE with a dtype of"),
        (["--shared", "5x5"], "--shared is ROWSxCOLSxDTYPE with a dtype of"),
        (["--shared", "0x5xf16"], "a shared tile needs positive extents"),
        (["--shared", "100000x100000xf16"], "a tile of 20000000000 bytes is in no shared memory"),
        (["--shared", "8x8xf16", "--swizzle", "128"], "a 128-byte swizzle does not fit 8 columns"),
        (["--shared", "8x8xf16", "--rows", "0"], "--rows draws 1 row or more, got 0"),
        (["--fragment", "16x17"], "a fragment a of 16x17 is not made of whole operands"),
        (["--fragment", "0x16"], "--fragment is ROWSxCOLS"),
        (["--fragment", "1600x1600"], "a picture of 1600x1600 elements is too large"),
        (["--fragment", "16x16", "--dtype", "bf16", "--accumulate", "f16"], "has no f16 accumulator"),
    ],
)
def test_what_cannot_be_drawn(words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["view", "layout", *words, "-o", str(tmp_path / "out.svg")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# ---- levels ----------------------------------------------------------------------------------------------------------


def test_lines_keep_their_source():
    module = parse_module(CHAIN, "t.mlir")
    lines, sources = print_with_sources(module, "t.mlir")
    assert "\n".join([*lines, ""]) == print_module(module)
    placed = {line.split()[0]: source for line, source in zip(lines, sources, strict=True) if source is not None}
    assert placed == {"func.func": 2, "%c": 3, "%d": 4, "func.return": 6}
    assert set(print_with_sources(module, "another.mlir")[1]) == {None}


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, output = tmp_path / "chain.mlir", tmp_path / "chain.html"
    source.write_text(CHAIN)
    assert view(capsys, "ir", source, "--target", "sm_80", "-o", output) == ""
    text = output.read_text()
    assert view(capsys, "ir", source, "--target", "sm_80") == text
    root = ElementTree.fromstring(text)
    sections = list(root.iter(f"{HTML}section"))
    titles = [section[0].text for section in sections]
    assert titles[0] == str(source)
    assert [title.split(",")[0] for title in titles[1:]] == ["tensor_op", "tile", "level3", "ptx", "PTX for sm_80"]
    linked = [{span.get("data-line") for span in section.iter(f"{HTML}span")} - {None} for section in sections]
    assert linked[0] >= {"2", "3", "4"}
    for level in linked[1:4]:  # both the product and the map can be followed through the tiles to level 3
        assert {"3", "4"} <= level
    assert linked[4] >= {"3", "4"}
    shown = "".join(sections[0].itertext())
    assert "a comment with <angle> & ampersand" in shown
    assert not re.search(r"""(src|href)=|url\(|@import|https?://(?!www\.w3\.org)""", text), (
        "the page needs nothing else"
    )


def test_every_pass():
    names = [panel.title.rpartition(" ")[2] for panel in panels_of(CHAIN, "t.mlir", Options("sm_80"), every_pass=True)]
    steps = lower(CHAIN, "t.mlir", Options("sm_80")).steps
    assert names[1:-1] == [step.name for step in steps]
    assert len(steps) > 8


def test_a_page_escapes_everything():
    text = ir_page("<title>", [Panel("<b>", ["<script>alert('&')</script>", ""], [1, None])])
    spans = list(ElementTree.fromstring(text).iter(f"{HTML}span"))
    assert [span.text for span in spans] == ["<script>alert('&')</script>", " "]
    assert text.count("<script>") == 1


def test_an_error_of_the_module_is_told_as_always(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.mlir"
    path.write_text(CHAIN.replace("exp %c", "exp %q"))
    assert cli.main(["view", "ir", str(path), "-o", str(tmp_path / "out.html")]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:4:26: error: %q is used but not defined\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.mlir"]
