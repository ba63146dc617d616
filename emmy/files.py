"""Writing output files: whole or not at all, so that an existing file survives every error."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from emmy.errors import EmmyError


def write_file(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Replace the file `path` in one step. Raises `EmmyError` if that cannot be done; the old file is then intact."""
    path = Path(path)
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
        raise _refused(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> EmmyError:
    return EmmyError(f"cannot write '{path}': {(error.strerror or str(error)).lower()}")
