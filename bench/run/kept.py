"""The record of a run, which is kept beside its result: *the folder and the context of a run → a
folder named `history`*. A second conversion judges this folder: *a folder named `history` → the
judged record*.

Rules
- Every file of the record is copied. A manifest holds the length and the CRC-32 of each file, so
  every flipped bit is noticed. The judge does not read a file that has changed. If any file has
  changed, the figures of the run are not valid. In this case, safety is VIOLATED if the unchanged
  files show a violation, and UNKNOWN if they show no violation.
- `context.json` holds further facts for the judge. The facts are the scenario without secrets, the
  measured window, the workers that ended early, the faults, and the number of commands that the
  servers counted. A kept record can be judged without its result, because the judge reads only the
  files of the record.
- docs/record.md describes the form of the files.
"""

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.errors import UsageError, writing
from bench.measure.record import RECORD_BYTES
from bench.measure.section import Section, builtins_of, decoded
from bench.run.conclude import Context, JudgedRecord, judge_record

FOLDER = "history"
CONTEXT = "context.json"
MANIFEST = "manifest.json"
PIECES = ("*-*-*.bin", "fold-*-*.json", "worker-*-*.json", "led.json")
CURE = "free disk space, name another --out, or leave out --keep-history"


class Manifest(Section, frozen=True, kw_only=True):
    """The list of the kept files. `files`: the size in bytes and the CRC-32 of each file, by its
    name."""

    form: int = 1
    record_bytes: int = RECORD_BYTES
    files: dict[str, tuple[int, int]]


def keep(workdir: Path, folder: Path, context: Context) -> Path:
    """Copy the record of a run that has ended into `folder`/history.

    Raises EnvironmentNotReadyError.
    """
    place = folder / FOLDER
    files = {}
    with writing(place, CURE):
        place.mkdir(parents=True)
        for path in sorted(path for piece in PIECES for path in workdir.glob(piece)):
            shutil.copyfile(path, place / path.name)
            files[path.name] = place.joinpath(path.name).stat().st_size, checksum(place / path.name)
        shown = msgspec.structs.replace(context, scenario=context.scenario.shown())
        place.joinpath(CONTEXT).write_bytes(msgspec.json.encode(builtins_of(shown)))
        files[CONTEXT] = place.joinpath(CONTEXT).stat().st_size, checksum(place / CONTEXT)
        place.joinpath(MANIFEST).write_bytes(msgspec.json.encode(Manifest(files=files)))
    return place


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    total = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total = zlib.crc32(piece, total)
    return total


def judge_kept(result: Path) -> JudgedRecord:
    """Judge the kept record of a result again. `result`: the folder of the result, or the path of
    its result.json.

    Raises UsageError if no record was kept, or if the manifest or context is damaged.
    """
    folder = (result.parent if result.is_file() else result) / FOLDER
    if not (folder / MANIFEST).is_file():
        if several := sorted(
            place.parent.parent for place in result.glob(f"*/{FOLDER}/{MANIFEST}")
        ):
            raise UsageError(
                f"{result} contains {len(several)} runs; name one of them, such as {several[0]}"
            )
        raise UsageError(
            f"{result} has no kept record; make the run again with lockbench run --keep-history"
        )
    try:
        manifest = decoded((folder / MANIFEST).read_bytes(), Manifest)
        context = decoded((folder / CONTEXT).read_bytes(), Context)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise UsageError(
            f"the kept record in {folder} is damaged ({error}); make the run again"
        ) from None
    torn = torn_files(folder, manifest.files)
    if not torn:
        return judge_record(folder, context)
    with TemporaryDirectory(prefix="lockbench-judge-") as place:
        for name in manifest.files.keys() - torn.keys():
            Path(place, name).symlink_to((folder / name).absolute())
        missing = tuple(f"{name} of the kept record {why}" for name, why in sorted(torn.items()))
        # An incomplete record cannot provide the figures of the whole run.
        breaks = (*context.breaks, *missing)
        return judge_record(
            Path(place), msgspec.structs.replace(context, torn=missing, breaks=breaks)
        )


def torn_files(folder: Path, files: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Return a mapping from file names to texts.

    The mapping has each file that has changed since the record was kept, and the text describes the
    change.
    """
    torn = {}
    for name, (size, total) in files.items():
        path = folder / name
        if not path.is_file():
            torn[name] = "is missing"
        elif path.stat().st_size != size or checksum(path) != total:
            torn[name] = "is damaged, because its checksum differs"
    for path in folder.iterdir():
        if path.name not in files and path.name != MANIFEST:
            torn[path.name] = "was not kept with it"
    return torn
