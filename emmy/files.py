"""Reading text files, and writing output files: whole or not at all, so that an existing file survives every error."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from emmy.errors import EmmyError


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file. Raises `EmmyError`, one sentence, if there is none: no file, a folder, binary data."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except OSError as error:
        raise EmmyError(f"cannot read '{name}': {(error.strerror or str(error)).lower()}") from None
    return decode(data, name)


def decode(data: bytes, name: str) -> str:
    """UTF-8 text; `EmmyError` that names the file and the first bad byte if it is none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EmmyError(f"'{name}' is not a text file: byte {error.start} is not UTF-8") from None
    if "\0" in text:
        raise EmmyError(f"'{name}' is not a text file: byte {data.index(0)} is zero")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def write_file(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Replace the file `path` in one step. Raises `EmmyError` if that cannot be done; the old file is then intact."""
    name = path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    if path.is_dir():
        raise EmmyError(f"cannot write '{path}': it is a directory")
    if path.exists() and not path.is_file():  # a device or a pipe, such as /dev/stdout, cannot be replaced
        try:
            path.write_bytes(content)
        except OSError as error:
            raise _refused(path, error) from None
        return
    try:
        path = path.resolve()  # a link stays a link
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise _refused(name, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _refused(name, error) from None


def _refused(path: Path, error: OSError) -> EmmyError:
    return EmmyError(f"cannot write '{path}': {(error.strerror or str(error)).lower()}")
