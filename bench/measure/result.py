"""The result of a command as one JSON document. This module writes result.json and reads it.

Writing is atomic (temporary file, fsync, rename) and never replaces an existing result. A written
result contains no secrets, because `masked_command` masks the command line. When lockbench reads a
result, it masks secrets again, because another program may have written the file.
`bench.report.answer` converts the result to its type. If the verdict word contradicts the sections,
`bench.report.answer` refuses the result.
"""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

from bench.errors import UNPAIRED, EnvironmentNotReadyError, UsageError, secrets, writing
from bench.measure.environment import Environment
from bench.measure.section import Amount, Section, builtins_of, says
from bench.measure.verdict import Verdict

SCHEMA_VERSION: Final = 1
RESULT_NAME = "result.json"
# lockbench refuses a result that is larger than this. For comparison, a one-hour run with pictures
# has a result of a few MiB.
MOST_BYTES = 256 << 20


class Document(Section, frozen=True, kw_only=True):
    """The fields that begin the result of every command. A field is null if its value is unknown or
    does not apply."""

    schema_version: Annotated[
        Literal[1], says("version of this document's format; programs refuse other versions")
    ] = 1
    kind: Annotated[str, says("the lockbench command that made this document")]
    id: Annotated[
        str, says("id of the run; the names of the run's keys on the servers contain this id")
    ]
    command: Annotated[tuple[str, ...], says("the command line as typed, without secrets")]
    started_at: Annotated[str, says("start of the command, in UTC and ISO 8601")]
    duration_s: Annotated[Amount, says("seconds from the beginning to the end of the command")]
    environment: Annotated[
        Environment, says("machine and software of the process that led the run")
    ]
    verdict: Annotated[Verdict, says("verdict of the command, with its reasons")]
    interrupted: Annotated[bool, says("true if the user stopped the command early")] = False
    seed: Annotated[int | None, says("seed of all random choices")] = None
    warnings: Annotated[tuple[str, ...], says("warnings about the figures of this document")] = ()


def write_result(result: Document, folder: Path) -> Path:
    """Write `folder`/result.json and return its path. Create the folder if necessary.

    Raises EnvironmentNotReadyError if the file already exists or cannot be written.
    """
    path = folder / RESULT_NAME
    if path.exists():
        raise EnvironmentNotReadyError(f"{path} exists and is not replaced; choose another --out")
    cure = "free disk space, or choose another --out"
    with writing(path, cure):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(builtins_of(result), indent=1, ensure_ascii=False) + "\n", cure)
    return path


def write_whole(path: Path, text: str, cure: str) -> None:
    """Write `text` into the file `path`. If the write fails, the file stays as it was. If `path` is
    a device or a pipe, the function writes into it and does not replace it.

    Raises EnvironmentNotReadyError if the file cannot be written. The error message ends with the
    text `cure`, which tells the user what to do.
    """
    whole = path.is_file() or not path.exists()
    partial = path.with_name(f".{path.name}.{os.getpid()}") if whole else path
    try:
        with writing(path, cure), partial.open("w", encoding="utf-8", errors=UNPAIRED) as file:
            file.write(text)
            if whole:
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
    finally:
        # Remove the temporary file, even after an interrupt.
        if whole:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def read_result(place: Path) -> dict[str, object]:
    """Return the JSON value of the result in a folder or file. This function does not check whether
    the value fits its type.

    Raises UsageError if the file is not a result, has another schema version, or holds NaN or an
    infinite number.
    """
    path = place / RESULT_NAME if place.is_dir() else place
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"the file is larger than {MOST_BYTES >> 20} MiB")
        result = json.loads(
            data.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_finite
        )
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; name a result folder of lockbench"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a result: {error}; name a result folder of lockbench"
        ) from error
    version = result.get("schema_version") if isinstance(result, dict) else None
    if version is None:
        raise UsageError(
            f"{path} is not a result, because it has no schema_version; name a result folder of "
            "lockbench"
        )
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema_version {version!r}, but this lockbench reads {SCHEMA_VERSION}; "
            "read it with the lockbench that wrote it"
        )
    return {key: _masked(value) for key, value in result.items()}


def _no_number(text: str) -> NoReturn:
    """Refuse NaN and Infinity. JSON does not allow these values, but Python's JSON reader accepts
    them."""
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    """Return the number in `text`. Raises ValueError if the number is too large for a float, such
    as 1e999."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _masked(value: object) -> object:
    """Return a copy of `value` in which every secret is masked. The file may contain secrets,
    because another program may have written the file."""
    if isinstance(value, dict):
        return {key: _masked(one) for key, one in value.items()}
    if isinstance(value, list):
        return [*map(_masked, value)]
    return secrets().sentence(value) if isinstance(value, str) else value
