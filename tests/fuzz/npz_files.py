"""Archives of numpy arrays: damaged bytes, and headers that lie. The second opinion is zipfile's
and numpy's, with no eye on the checksums."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fuzz.damage import LIES, NASTY, damaged
from fuzz.models import Format, judge
from fuzz.trees import Values


def case(random: Generator, folder: Path) -> None:
    """Merge sound archives with damaged ones."""
    judge(random, folder, FORMAT)


def _write(random: Generator, path: Path, values: Values) -> None:
    np.savez(path, **{name: array for (name,), array in values.items()})


def _damage(random: Generator, path: Path, sound: bytes, other: bytes) -> None:
    if random.random() < 0.5:
        path.write_bytes(damaged(random, sound, other))
        return
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = [(one, archive.read(one)) for one in archive.namelist()]
    at = int(random.integers(len(members)))
    name, data = members[at]
    way = int(random.integers(7))
    packed = zipfile.ZIP_STORED
    if way == 0:
        packed = zipfile.ZIP_DEFLATED
    elif way == 1:
        members.append((str(random.choice(NASTY)).replace("\ud800", "?") + ".npy", data))
    elif way == 2:
        members[at] = (name, _pickled())
    elif way == 3:
        members[at] = (name, damaged(random, data, members[0][1]))
    elif way == 4:
        members[at] = (name, _headed(random, data))
    elif way == 5:
        members.pop(at)
    else:
        members[at] = (name, data + bytes(8))
    with zipfile.ZipFile(path, "w", packed) as archive:
        for one, content in members:
            archive.writestr(one, content)
    if random.random() < 0.3:
        path.write_bytes(damaged(random, path.read_bytes(), other))


def _pickled() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}, print], object), allow_pickle=True)
    return buffer.getvalue()


def _headed(random: Generator, data: bytes) -> bytes:
    """Return an array with another header."""
    count = LIES[int(random.integers(len(LIES)))]
    shapes = [f"({count},)", "(-1,)", "(1.5,)", f"({count}, {count})", "('a',)", "()", "(" * 90]
    shape = shapes[int(random.integers(len(shapes)))]
    dtypes = ["'<f4'", "'>f8'", "'|O'", "'<f2'", "'<M8[s]'", "[('x','<f4')]", "'<f3'", "1", "'<c8'"]
    dtype = dtypes[int(random.integers(len(dtypes)))]
    text = f"{{'descr': {dtype}, 'fortran_order': {random.random() < 0.3}, 'shape': {shape}, }}\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data[128:]


def _read(path: Path) -> dict[str, Any] | None:
    found = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len({member.filename for member in members}) < len(members):
            return None
        for member in members:
            honest = member.compress_size == member.file_size and not member.flag_bits & 1
            if member.compress_type != zipfile.ZIP_STORED or not honest:
                return None
            with archive.open(member) as file:
                file._expected_crc = None  # type: ignore[attr-defined]
                array = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1) or (array.ndim > 1 and np.isfortran(array)):
                    return None
            found[member.filename.removesuffix(".npy")] = array
    return found


FORMAT = Format(".npz", ("float16", "float32", "float64"), _write, _damage, _read)
