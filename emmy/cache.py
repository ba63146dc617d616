"""The artefact cache on disk: what was compiled once is not compiled again, in this process or another.

A key is a hash of everything that can change the result: the module's text, the options, the target, the compiler's own
source files, xDSL's version, and which ptxas assembles. An entry is a folder, `v1/KEY`, with the files of an artefact and
`manifest.json`, which holds the size and the hash of each; nothing is ever pickled.

* A writer fills a folder of its own beside the entries and renames it into place; of two, the second finds the place taken
  and discards its own. A process killed on the way leaves a folder that nobody reads, which is removed an hour later.
* A reader takes an entry only if every file has the hash that the manifest says; a broken entry is removed and built anew.
* Entries are removed, those that were used longest ago first, when all of them are larger than the limit; never the one
  that was just written.
* A folder that cannot be written costs one warning, and nothing else.

Environment: `EMMY_CACHE=0` disables it; `EMMY_CACHE_DIR` is the folder (else `$XDG_CACHE_HOME/emmy`, else
`~/.cache/emmy`); `EMMY_CACHE_SIZE` is the limit: bytes, or a number with K, M or G (default 1G).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from emmy import __version__
from emmy.artefact import Artefact
from emmy.assemble import find_tool
from emmy.errors import EmmyError
from emmy.options import Options

LAYOUT = "v1"
"""The folder below the cache's root that entries of this layout stand in."""

MANIFEST = "manifest.json"
STAGING = ".staging-"
"""How the name of a folder that is being written, or thrown away, begins."""

STAGING_SECONDS = 3600
"""Age at which such a folder belongs to nobody any more."""

DEFAULT_LIMIT = 1 << 30
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

NOT_THE_COMPILER = frozenset({"bench", "emulator", "interpreters", "tools", "views", "__pycache__"})
"""Folders of the package that cannot change what is compiled."""


class CacheWarning(UserWarning):
    """The cache cannot be used as it should; compiled code is right all the same."""


# ---- keys ------------------------------------------------------------------------------------------------------------


@functools.cache
def compiler_identity() -> str:
    """A hash of the package's version and of its own source files, and of which xDSL it would import."""
    digest = hashlib.sha256(__version__.encode())
    root = Path(__file__).parent
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in NOT_THE_COMPILER)
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                digest.update(os.path.relpath(path, root).encode() + b"\0")
                with open(path, "rb") as file:
                    digest.update(hashlib.sha256(file.read()).digest())
    digest.update(_xdsl_identity().encode())
    return digest.hexdigest()


def _xdsl_identity() -> str:
    """xDSL's version from the name of its metadata folder: asking xDSL, or `importlib.metadata`, would import a lot."""
    spec = importlib.util.find_spec("xdsl")
    if spec is None or spec.origin is None:
        return "none"
    package = Path(spec.origin).parent
    versions = sorted(path.name for path in package.parent.glob("xdsl-*.dist-info"))
    return ",".join(versions) or str(package.stat().st_mtime_ns)


def assembler_identity() -> str:
    """Which ptxas would assemble: its path, size and date; `none` without one."""
    ptxas = find_tool("ptxas")
    if ptxas is None:
        return "none"
    status = os.stat(ptxas)
    return f"{os.path.realpath(ptxas)} {status.st_size} {status.st_mtime_ns}"


def key_of(text: str, options: Options, assembled: bool) -> str:
    """The key of a compilation. `assembled`: with cubins, so that the assembler matters."""
    parts = {
        "compiler": compiler_identity(),
        "assembler": assembler_identity() if assembled else None,
        "text": text,
        "target": options.target,
        "accumulate": options.accumulate,
        "schedule": options.schedule,
        "opt_level": options.opt_level,
        "entry": options.entry,
        "variants": options.variants,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:40]


# ---- the folder ------------------------------------------------------------------------------------------------------


def is_enabled() -> bool:
    """Whether compilations look into the cache: not if that is switched off, or there is no place for one."""
    return os.environ.get("EMMY_CACHE", "1") != "0" and _chosen_folder() is not None


def cache_folder() -> Path:
    """The cache's root folder. `EmmyError` for a user without a home, as containers have them, who named none."""
    folder = _chosen_folder()
    if folder is None:
        raise EmmyError("there is no home directory to keep a cache in; set EMMY_CACHE_DIR")
    return folder


def _chosen_folder() -> Path | None:
    chosen = os.environ.get("EMMY_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return None if base.startswith("~") else Path(base, "emmy")


def size_limit() -> int:
    """Bytes that the cache may take. `EmmyError` if `EMMY_CACHE_SIZE` is no size."""
    text = os.environ.get("EMMY_CACHE_SIZE", "").strip()
    if not text:
        return DEFAULT_LIMIT
    number, unit = (text[:-1], UNITS[text[-1].upper()]) if text[-1].upper() in UNITS else (text, 1)
    if not number.isdecimal():
        raise EmmyError(f"EMMY_CACHE_SIZE is a number of bytes, or one with K, M or G; got '{text}'")
    return int(number) * unit


@dataclass(frozen=True)
class Entry:
    """One entry: where it is, its bytes, and when it was last used (seconds since the epoch)."""

    path: Path
    size: int
    used: float

    def describe(self) -> str:
        """`sm_90a mm 2 kernels`, or `unreadable`."""
        try:
            data: Any = json.loads((self.path / "launch.json").read_text())
            names = ", ".join(data["entries"]) or ", ".join(data["kernels"])
            form = "cubin" if any("cubin" in files for files in data["images"].values()) else "ptx"
            return f"{data['target']:8} {form:6} {names}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "unreadable"


class Cache:
    """The cache in one folder. No method raises for what is wrong with the folder."""

    def __init__(self, root: Path | None = None):
        self.root = cache_folder() if root is None else root
        self.folder = self.root / LAYOUT

    def get(self, key: str) -> Artefact | None:
        """The artefact kept under a key, marked as just used; None if there is none, or none that is whole."""
        path = self.folder / key
        try:
            if not _is_whole(path):
                self._discard(path)
                return None
            artefact = Artefact.load(path)
        except FileNotFoundError:  # the usual miss; or another process has just evicted it
            return None
        except (OSError, EmmyError, KeyError, TypeError, AttributeError):
            self._discard(path)
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a folder that cannot be written has no order of use
        return artefact

    def put(self, key: str, artefact: Artefact) -> bool:
        """Keep an artefact; whether it is kept now, by this process or by another that was first."""
        path = self.folder / key
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=self.folder))
            try:
                artefact.save(staging / "entry")
                _write_manifest(staging / "entry")
                os.rename(staging / "entry", path)
            except OSError:
                if not path.is_dir():
                    raise
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            self._evict(path)
        except OSError as error:
            _warn_once(f"the artefact cache '{self.root}' cannot be written: {(error.strerror or str(error)).lower()}")
            return False
        except EmmyError as error:
            _warn_once(error.message)
        return True

    def entries(self) -> list[Entry]:
        """All entries, the one used longest ago first."""
        found: list[Entry] = []
        for path in self._paths():
            try:
                if not path.name.startswith(STAGING):
                    size = sum(file.stat().st_size for file in os.scandir(path))
                    found.append(Entry(path, size, path.stat().st_mtime))
            except OSError:
                continue  # another process has just removed it
        return sorted(found, key=lambda entry: entry.used)

    def clear(self) -> int:
        """Remove every entry; how many there were."""
        entries = self.entries()
        for entry in entries:
            self._discard(entry.path)
        for path in self._paths():
            shutil.rmtree(path, ignore_errors=True)
        return len(entries)

    def _paths(self) -> Iterator[Path]:
        try:
            yield from list(self.folder.iterdir())
        except OSError:
            return

    def _evict(self, keep: Path) -> None:
        """Remove what is too much, and what killed writers left."""
        entries = self.entries()
        excess = sum(entry.size for entry in entries) - size_limit()
        for entry in entries:
            if excess <= 0:
                break
            if entry.path != keep:
                self._discard(entry.path)
                excess -= entry.size
        for path in self._paths():
            if path.name.startswith(STAGING) and _age(path) > STAGING_SECONDS:
                shutil.rmtree(path, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        """Remove an entry: in one step for its readers, who see all of it or nothing."""
        try:
            grave = Path(tempfile.mkdtemp(prefix=STAGING, dir=self.folder))
        except OSError:
            return
        try:
            os.rename(path, grave / path.name)
        except OSError:
            pass  # it is gone already
        shutil.rmtree(grave, ignore_errors=True)


def _write_manifest(folder: Path) -> None:
    files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds exactly what its manifest says. `FileNotFoundError` if there is no such folder."""
    names = {entry.name for entry in os.scandir(folder)}
    try:
        data: Any = json.loads((folder / MANIFEST).read_text())
        files = cast("dict[str, Any]", data["files"])
        return names == {*files, MANIFEST} and all(_fingerprint(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fingerprint(path: Path) -> list[Any]:
    data = path.read_bytes()
    return [len(data), hashlib.sha256(data).hexdigest()]


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(f"{message}; set EMMY_CACHE_DIR, or EMMY_CACHE=0", CacheWarning, stacklevel=2)
