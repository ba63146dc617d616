"""The artefact cache: keys, whole entries only, writers that are killed or race, eviction, folders that cannot be used."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import emmy
from emmy import cache
from emmy.artefact import Artefact, Image
from emmy.assemble import find_tool
from emmy.cache import Cache, CacheWarning, key_of, size_limit
from emmy.errors import EmmyError
from emmy.options import Options
from emmy.tools import cli

MATMUL = """func.func @mm(%a: tensor<?x64xf16>, %b: tensor<64x64xf16>) -> tensor<?x64xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<?x64xf16>, tensor<64x64xf16>) -> tensor<?x64xf16>
  func.return %c : tensor<?x64xf16>
}
"""
SCHEDULE = {"block": (64, 64, 32), "warps": (2, 1), "stages": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMMY_CACHE", "1")
    monkeypatch.setenv("EMMY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("EMMY_CACHE_SIZE", raising=False)
    monkeypatch.setattr(cache, "_warned", set())
    return tmp_path / "cache"


def compile_matmul(**options):
    return emmy.compile(MATMUL, "sm_90a", **{"schedule": SCHEDULE, "verify_each": False, **options})


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-2, 3, shape).astype(np.float16)


def artefact(size: int = 1000, number: int = 0) -> Artefact:
    return Artefact("sm_90a", {"kernels": Image(f"// {number}\n" + "x" * size, os.urandom(size))}, {})


def entry_folder(root: Path, key: str) -> Path:
    return root / cache.LAYOUT / key


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_what_was_compiled_is_not_lowered_again(folder: Path):
    first = compile_matmul()
    ptx, artefact = first.ptx, first.artefact
    second = compile_matmul()
    assert second._lowered_now is None
    assert (second.ptx, second.artefact, second.entries) == (ptx, artefact, ("mm",))
    a, b = integers(65, 64), integers(64, 64)
    assert np.array_equal(second.mm(a, b, device="emulator"), a.astype(np.float64) @ b.astype(np.float64).T)
    assert str(second.report()) == str(first.report())
    assert second._lowered_now is None
    assert second.ir("tile") == first.ir("tile")
    assert second.steps == first.steps


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
def test_what_the_emulator_kept_is_assembled_without_lowering(folder: Path):
    assert compile_matmul().portable_artefact.images["kernels"].cubin is None
    second = compile_matmul()
    assert second.artefact.images["kernels"].cubin is not None
    assert second._lowered_now is None
    assert len(Cache().entries()) == 2


def test_everything_that_can_change_the_result_is_in_the_key(monkeypatch: pytest.MonkeyPatch):
    base = Options("sm_90a")
    options = [
        base,
        Options("sm_80"),
        Options("sm_90a", accumulate="f16"),
        Options("sm_90a", schedule=(("stages", 2),)),
        Options("sm_90a", schedule=(("stages", 3),)),
        Options("sm_90a", opt_level=1),
        Options("sm_90a", entry="mm"),
    ]
    keys = [key_of(MATMUL, each, assembled) for each in options for assembled in (True, False)]
    keys.append(key_of(MATMUL + "\n", base, True))
    monkeypatch.setattr(cache, "assembler_identity", lambda: "another ptxas")
    keys.append(key_of(MATMUL, base, True))
    assert key_of(MATMUL, base, False) in keys
    monkeypatch.setattr(cache, "compiler_identity", lambda: "another compiler")
    keys += [key_of(MATMUL, base, True), key_of(MATMUL, base, False)]
    assert len(set(keys)) == len(keys)
    assert key_of(MATMUL, Options("sm_90a", verify_each=True), True) == key_of(MATMUL, base, True)


def test_the_compiler_is_known_by_its_source_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "passes").mkdir()
    (tmp_path / "emulator").mkdir()
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    identities = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("passes/b.py", "1"), ("emulator/c.py", "1"), ("d.txt", "1")):
        (tmp_path / name).write_text(text)
        identities.append(cache.compiler_identity.__wrapped__())
    assert len(set(identities)) == 3
    assert identities[2] == identities[3] == identities[4]


FRESH = """
import sys, time
import numpy as np
import emmy
module = emmy.compile(sys.argv[1], "sm_90a", verify_each=False)
a = np.ones((3, 64), np.float16)
print(float(module.mm(a, np.ones((64, 64), np.float16), device="emulator")[2, 5]), module.ptx.count(".entry"))
print("xdsl" in sys.modules)
"""


def test_a_fresh_process_imports_no_xdsl(folder: Path, tmp_path: Path):
    (tmp_path / "mm.mlir").write_text(MATMUL)
    assert emmy.compile(tmp_path / "mm.mlir", "sm_90a", verify_each=False).entries == ("mm",)
    command = [sys.executable, "-c", FRESH, str(tmp_path / "mm.mlir")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["64.0", "2", "False"]  # two tiles, for few rows and for many


def test_errors_are_not_kept_and_come_at_once(folder: Path):
    for _ in range(2):
        with pytest.raises(EmmyError, match="<text>:2:"):
            emmy.compile(MATMUL.replace("matmul", "matmull"), "sm_90a", verify_each=False)
    assert Cache().entries() == []


def test_reading_the_passes_goes_past_the_cache(folder: Path, tmp_path: Path):
    compile_matmul().portable_artefact
    assert compile_matmul(verify_each=True)._lowered_now is not None
    assert compile_matmul(dump_ir=tmp_path / "dump")._lowered_now is not None
    assert (tmp_path / "dump" / "00_input.mlir").is_file()


def test_it_can_be_disabled(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EMMY_CACHE", "0")
    assert compile_matmul().portable_artefact.entries
    assert not folder.exists()


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("EMMY_CACHE_DIR", str(tmp_path / "x"))
    assert cache.cache_folder() == tmp_path / "x"
    monkeypatch.delenv("EMMY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "y"))
    assert cache.cache_folder() == tmp_path / "y" / "emmy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "emmy"
    monkeypatch.setenv("EMMY_CACHE", "1")
    assert cache.is_enabled()
    monkeypatch.setattr(cache.os.path, "expanduser", lambda path: path)  # as for a user that the system does not know
    assert not cache.is_enabled()
    with pytest.raises(EmmyError, match="no home directory"):
        cache.cache_folder()


# ---- what is broken --------------------------------------------------------------------------------------------------


def truncate(folder: Path):
    data = (folder / "kernels.cubin").read_bytes()
    (folder / "kernels.cubin").write_bytes(data[: len(data) // 2])


def flip(folder: Path):
    data = bytearray((folder / "kernels.ptx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "kernels.ptx").write_bytes(data)


def empty_manifest(folder: Path):
    (folder / cache.MANIFEST).write_text("")


def another_manifest(folder: Path):
    (folder / cache.MANIFEST).write_text('{"files": [1]}')


def another_format(folder: Path):
    (folder / "launch.json").write_text(json.dumps({"format": 99}))
    cache._write_manifest(folder)
    (folder / cache.MANIFEST).unlink()
    cache._write_manifest(folder)


def no_json(folder: Path):
    (folder / "launch.json").write_text("[]")
    (folder / cache.MANIFEST).unlink()
    cache._write_manifest(folder)


DAMAGE = [
    truncate,
    flip,
    empty_manifest,
    another_manifest,
    another_format,
    no_json,
    lambda folder: (folder / "kernels.cubin").unlink(),
    lambda folder: (folder / cache.MANIFEST).unlink(),
    lambda folder: (folder / "extra").write_text("what is this"),
    lambda folder: [path.unlink() for path in folder.iterdir()],
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_entry_is_removed_and_built_anew(folder: Path, damage):
    kept = Cache()
    assert kept.put("key", artefact())
    damage(entry_folder(folder, "key"))
    assert kept.get("key") is None
    assert kept.entries() == []
    anew = artefact()
    assert kept.put("key", anew)
    assert kept.get("key") == anew


def test_a_file_in_the_place_of_an_entry(folder: Path):
    kept = Cache()
    kept.put("other", artefact())
    entry_folder(folder, "key").write_text("no folder")
    assert kept.get("key") is None
    assert kept.put("key", artefact())
    assert kept.get("key") is not None


def forked(action) -> int:
    """The process id of a child that runs `action`."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr)
            os._exit(1)
    return child


def test_writers_that_are_killed_leave_a_usable_cache(folder: Path):
    generator = random.Random(0)
    kept = Cache()
    assert kept.put("first", artefact())

    def write():
        for number in range(100_000):
            kept.put(f"key{number % 5}", artefact(200_000, number))
            if number % 3 == 0:
                kept._discard(entry_folder(folder, f"key{(number + 2) % 5}"))

    interrupted = 0
    for _ in range(20):
        child = forked(write)
        time.sleep(generator.uniform(0.002, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        interrupted += any(path.name.startswith(cache.STAGING) for path in kept._paths())
        for entry in kept.entries():
            assert kept.get(entry.path.name) is not None
    assert interrupted > 0
    whole = artefact()
    kept._discard(entry_folder(folder, "key0"))
    assert kept.put("key0", whole)
    assert kept.get("key0") == whole
    long_ago = time.time() - 2 * cache.STAGING_SECONDS
    for path in kept._paths():
        if path.name.startswith(cache.STAGING):
            os.utime(path, (long_ago, long_ago))
    kept.put("last", artefact())
    assert not [path for path in kept._paths() if path.name.startswith(cache.STAGING)]


def test_two_processes_that_compile_the_same_file(folder: Path):
    start, go = os.pipe()

    def work():
        os.read(start, 1)
        result = compile_matmul()
        assert result.artefact.entries
        assert compile_matmul().artefact.images.keys() == result.artefact.images.keys()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        children = [forked(work) for _ in range(2)]
    os.write(go, b"..")
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert compile_matmul().artefact.entries
    assert all(Cache().get(entry.path.name) for entry in Cache().entries())


def test_the_second_writer_uses_the_entry_of_the_first(folder: Path):
    first, second = artefact(), artefact()
    assert Cache().put("key", first)
    assert Cache().put("key", second)
    assert Cache().get("key") == first
    assert [path.name for path in Cache()._paths()] == ["key"]


# ---- folders that cannot be used -------------------------------------------------------------------------------------


def raises(code: int):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("owner", "name", "code", "words"),
    [
        (cache.tempfile, "mkdtemp", errno.EROFS, "read-only file system"),
        (Artefact, "save", errno.ENOSPC, "no space left"),
        (cache, "_write_manifest", errno.EDQUOT, "quota exceeded"),
        (cache.os, "rename", errno.EACCES, "permission denied"),
    ],
)
def test_a_folder_that_cannot_be_written_costs_one_warning(folder: Path, monkeypatch, owner, name, code, words):
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, raises(code))
        with pytest.warns(CacheWarning, match=f"cannot be written: .*{words}"):
            compile_matmul().portable_artefact
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compile_matmul().portable_artefact.entries
    assert Cache().entries() == []
    assert list(Cache()._paths()) == []


def test_a_file_where_the_folder_should_be(folder: Path):
    folder.write_text("")
    with pytest.warns(CacheWarning, match="cannot be written"):
        assert compile_matmul().portable_artefact.entries
    assert Cache().entries() == []
    assert Cache().clear() == 0


# ---- size ------------------------------------------------------------------------------------------------------------


def test_the_entry_used_longest_ago_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch):
    kept = Cache()
    for number in range(4):
        kept.put(f"key{number}", artefact(10_000))
        os.utime(entry_folder(folder, f"key{number}"), (1000 + number, 1000 + number))
    assert kept.get("key0") is not None  # used now
    assert [entry.path.name for entry in kept.entries()] == ["key1", "key2", "key3", "key0"]
    one = kept.entries()[0].size
    monkeypatch.setenv("EMMY_CACHE_SIZE", str(3 * one + 100))
    kept.put("key4", artefact(10_000))
    assert [entry.path.name for entry in kept.entries()] == ["key3", "key0", "key4"]


def test_what_was_just_written_stays(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EMMY_CACHE_SIZE", "1K")
    kept = Cache()
    for number in range(3):
        kept.put(f"key{number}", artefact(10_000))
        assert [entry.path.name for entry in kept.entries()] == [f"key{number}"]


def test_sizes(monkeypatch: pytest.MonkeyPatch, folder: Path):
    for text, size in (("", 1 << 30), ("1000", 1000), ("2k", 2048), ("3M", 3 << 20), ("4 G", None), ("many", None)):
        monkeypatch.setenv("EMMY_CACHE_SIZE", text)
        if size is not None:
            assert size_limit() == size
        else:
            with pytest.raises(EmmyError, match="a number of bytes, or one with K, M or G"):
                size_limit()
    with pytest.warns(CacheWarning, match="EMMY_CACHE_SIZE"):
        Cache().put("key", artefact())
    assert Cache().get("key") is not None


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]):
    def run(*words: str) -> str:
        assert cli.main(["cache", *words]) == 0
        return capsys.readouterr().out

    assert run("path") == f"{folder}\n"
    assert run("list") == f"0 entries, 0 bytes of 1.0 GiB, in {folder}\n"
    compile_matmul().portable_artefact
    Cache().put("broken", artefact(3000))
    (entry_folder(folder, "broken") / "launch.json").unlink()
    lines = run().splitlines()
    assert len(lines) == 3
    assert any(line.endswith("sm_90a   ptx    mm") for line in lines)
    assert any(line.endswith("KiB  unreadable") for line in lines)
    assert run("clear") == f"removed 2 entries from {folder}\n"
    assert run("list").startswith("0 entries")
