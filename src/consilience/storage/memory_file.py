"""A memory's file: one .npz of plain arrays and a JSON header, no pickle.

The arrays are stored uncompressed, so reading takes no more memory than the file's size, and the
archive has a checksum for each. All contents are checked: a file may be damaged or forged.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from consilience.arrays import Array
from consilience.beliefs import Known, Latent, Past
from consilience.errors import MemoryFileError
from consilience.evidence import Block, Evidence
from consilience.storage.npy import parsed
from consilience.storage.whole import whole
from consilience.text import shown
from consilience.trails import LONGEST, PLACES, Relay, Trails, kept

_FORMAT = "consilience-memory"
_VERSION = 4  # trails up to 3 are in the units of the updates; 2 has no past, and wider trails
_OLDEST = 2
_FARTHEST = 5 * LONGEST**2  # squared: two opposite errors, and rounding
MOST_PARTIES = 10**9
_MOST_ROUNDS = 10**9
_MOST_COORDINATES = 2.0**48  # in one round: a petabyte
_LARGEST = 1e60  # no number that valid updates lead to is larger, or smaller than one over it


@dataclass(frozen=True, eq=False)
class Contents:
    """What the file of a memory holds."""

    decay: float
    rounds: int
    evidence: Evidence | None = None
    known: Known | None = None
    relay: Relay | None = None
    past: Past | None = None
    max_parties: int | None = None


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write a file, whole or not at all."""
    header, arrays = _packed(contents)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with whole(path) as file:
        np.savez(file, **arrays)


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a file; raise MemoryFileError for one that is not a memory."""
    try:
        with open(path, "rb") as file:
            arrays = _arrays(file)
        header = json.loads(arrays.pop("header").tobytes())
        if header["format"] != _FORMAT:
            raise MemoryFileError(f"{path}: not a memory but '{shown(header['format'])}'")
        if header["version"] not in range(_OLDEST, _VERSION + 1):
            found = shown(header["version"])
            raise MemoryFileError(
                f"{path}: memory version {found}, this release reads {_OLDEST} to {_VERSION}"
            )
        return _unpacked(header, arrays)
    except FileNotFoundError:
        raise MemoryFileError(
            f"{path}: no such file; start with Memory() and save it first"
        ) from None
    except MemoryFileError:
        raise
    except Exception as error:  # damage shows in too many ways to list
        raise MemoryFileError(
            f"{path}: not a readable memory ({shown(error, 200)}); it was left as it is. "
            "Move it away, or start a new Memory()"
        ) from error


def _packed(contents: Contents) -> tuple[dict[str, Any], dict[str, Any]]:
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "decay": contents.decay,
        "rounds": contents.rounds,
        "blocks": [],
        "known": None,
        "trails": [],
        "lasted": 0.0 if contents.relay is None else contents.relay.lasted,
        "past": None,
        "max_parties": contents.max_parties,
    }
    arrays: dict[str, Any] = {}
    known, relay = contents.known, contents.relay
    header["blocks"] = _blocks("distances", contents.evidence, arrays)
    if known is not None:
        header["known"] = {"parties": known.parties, "latent": None}
        arrays["noise"] = known.noise
        if known.latent is not None:
            header["known"]["latent"] = {"shared": known.latent.shared}
            arrays["factors"], arrays["own"] = known.latent.factors, known.latent.own
            arrays["prior"] = np.array(known.latent.prior_variance)
    for t, trails in enumerate(() if relay is None else (relay.used, relay.young)):
        if trails is not None:
            apart = _blocks(f"apart{t}of", trails.apart, arrays)
            about = {"size": trails.size, "parties": trails.parties, "age": trails.age}
            header["trails"].append({**about, "apart": apart})
            arrays[f"places{t}"] = trails.places.astype(np.int64)
            arrays[f"rounds{t}"] = trails.rounds
            means = np.empty((len(trails.means), len(trails.places)), np.float32)
            arrays[f"means{t}"] = np.stack(trails.means, out=means) if trails.means else means
            arrays[f"squares{t}"], arrays[f"effective{t}"] = trails.squares, trails.effective
    if contents.past is not None:
        header["past"] = {"parties": contents.past.parties}
        arrays["levels"], arrays["worth"] = contents.past.levels, contents.past.worth
    return header, arrays


def _blocks(name: str, evidence: Evidence | None, arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the distances of evidence among the arrays; return what the header says of them."""
    blocks = evidence.blocks if evidence else ()
    arrays.update((f"{name}{b}", block.distances) for b, block in enumerate(blocks))
    return [{"parties": block.parties, "count": block.count} for block in blocks]


def _arrays(file: IO[bytes]) -> dict[str, Array]:
    """Return the arrays of a file; none is read before the sizes of all are known."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed, which no memory is")
        if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
            raise ValueError("its arrays are larger than the file")
        found = {
            member.filename.removesuffix(".npy"): parsed(archive.read(member)).copy()
            for member in members
        }
    if len(found) < len(members):
        raise ValueError("an array occurs twice")
    return found


def _unpacked(header: dict[str, Any], arrays: dict[str, Array]) -> Contents:
    decay = _number(header["decay"], "decay", 0, 1)
    rounds = int(_number(header["rounds"], "rounds", 0, _MOST_ROUNDS, int))
    evidence = _evidence("distances", header["blocks"], arrays, rounds * _MOST_COORDINATES)
    known = None if header["known"] is None else _known(header["known"], arrays)
    common = decay, rounds, evidence, known
    if header["version"] == 2:
        relay = _relay(header["trails"], arrays, rounds, np.float64)
        found = Contents(*common, relay and relay.in_units())
    else:
        relay = _relay(header["trails"], arrays, rounds, np.float32)
        if relay is not None and header["version"] < _VERSION:
            relay = relay.in_units()
        if relay is not None:  # a file of an earlier release does not tell
            relay = relay.judged(_number(header.get("lasted", 0.0), "lasted", 0, 1))
        past = None if header["past"] is None else _past(header["past"], arrays, rounds)
        parties = int(_number(header["max_parties"], "max_parties", 1, MOST_PARTIES, int))
        found = Contents(*common, relay, past, parties)
    if arrays:
        raise ValueError(f"its header does not speak of {', '.join(sorted(arrays)[:3])}")
    return found


def _evidence(
    name: str, blocks: list[dict[str, Any]], arrays: dict[str, Array], most: float
) -> Evidence | None:
    found = []
    for b, block in enumerate(blocks):
        parties = _parties(block["parties"])
        distances = _taken(arrays, f"{name}{b}", (len(parties) + 1,) * 2)
        if not _plausible(distances, 2) or np.diag(distances).any() or (distances < 0).any():
            raise ValueError("a squared distance is not a number from zero on, or no sensible one")
        if not np.allclose(distances, distances.T, rtol=1e-9, atol=0):
            raise ValueError("a distance differs from the same one the other way")
        count = _number(block["count"], "count", np.nextafter(0, 1), most)
        found.append(Block(parties, distances, count))
    if len({frozenset(block.parties) for block in found}) < len(found):
        raise ValueError("evidence of the same parties occurs twice")
    return Evidence(tuple(found)) if found else None


def _known(header: dict[str, Any], arrays: dict[str, Array]) -> Known:
    parties = _parties(header["parties"])
    noise = _taken(arrays, "noise", (len(parties),))
    latent = None
    if header["latent"] is not None:
        rank = arrays["factors"].shape[-1]
        factors = _taken(arrays, "factors", (len(parties), rank))
        own, prior = _taken(arrays, "own", (len(parties),)), _taken(arrays, "prior", ())
        told = np.isfinite(own)  # nothing is known about the others
        if not (
            _plausible(factors[told])
            and np.isnan(factors[~told]).all()
            and _plausible(own[told], 2)
            and np.isnan(own[~told]).all()
            and (own[told] >= 0).all()
            and prior >= 0
        ):
            raise ValueError("a hidden direction or its noise is no sensible number, or below zero")
        latent = Latent(factors, own, bool(header["latent"]["shared"]), float(prior))
    if not _plausible(noise) or (noise < 0).any():
        raise ValueError("a noise level is not a number from zero on, or no sensible one")
    return Known(parties, noise, latent)


def _past(header: dict[str, Any], arrays: dict[str, Array], rounds: int) -> Past:
    parties = _parties(header["parties"])
    levels, worth = (_taken(arrays, name, (len(parties),)) for name in ("levels", "worth"))
    if not (_plausible(levels, 3) and (levels > 0).all()):
        raise ValueError("a level is not a positive number, or no sensible one")
    if not _within(worth, np.nextafter(0, 1), rounds * _MOST_COORDINATES):
        raise ValueError("a level is of coordinates that no rounds can have had")
    return Past(parties, levels, worth)


def _relay(headers: Any, arrays: dict[str, Array], rounds: int, dtype: Any) -> Relay | None:
    if not isinstance(headers, list) or len(headers) > 2:
        raise ValueError("expected at most two sets of trails")
    found = [_trails(t, header, arrays, rounds, dtype) for t, header in enumerate(headers)]
    if len({trails.size for trails in found}) > 1:
        raise ValueError("its trails are of different models")
    if len(found) == 1 and found[0].size > PLACES:
        raise ValueError("its trails have no others to take over from them")
    return Relay(found[0], found[1] if len(found) > 1 else None) if found else None


def _trails(
    t: int, header: dict[str, Any], arrays: dict[str, Array], most: int, dtype: Any
) -> Trails:
    size = int(_number(header["size"], "size", 1, _MOST_COORDINATES, int))
    age = int(_number(header["age"], "age", 0, most, int))
    parties = () if header["parties"] == [] else _parties(header["parties"])
    places = _taken(arrays, f"places{t}", (arrays[f"places{t}"].size,), np.int64).astype(np.intp)
    rounds = _taken(arrays, f"rounds{t}", (len(parties),))
    means = _taken(arrays, f"means{t}", (len(parties), len(places)), dtype)
    if not places.size or (np.diff(places, prepend=-1, append=size) <= 0).any():
        raise ValueError(f"the places of the trails do not ascend from 0 to {size}")
    if not (np.isfinite(means).all() and _within(rounds, np.nextafter(0, 1), most)):
        raise ValueError(f"a trail is not of numbers, or not of 1 to {most} rounds")
    if f"squares{t}" not in arrays:  # a file of an earlier release
        return Trails(size, places, parties, rounds, kept(means), age)
    squares = _taken(arrays, f"squares{t}", (len(parties),))
    effective = _taken(arrays, f"effective{t}", (len(parties),))
    if not (_within(squares, 0, _LARGEST**2) and _within(effective, 1, most + 1)):
        raise ValueError("a trail's errors are no sensible squares, or of no sensible rounds")
    known = rounds, kept(means), age, squares, effective
    apart = _evidence(f"apart{t}of", header.get("apart", []), arrays, most)
    if apart is None:  # no round yet, or a file of an earlier release
        return Trails(size, places, parties, *known)
    if max(block.distances.max() for block in apart.blocks) > _FARTHEST:
        raise ValueError(f"parties of a trail are further than {_FARTHEST:g} apart in a round")
    return Trails(size, places, parties, *known, apart)


def _taken(
    arrays: dict[str, Array], name: str, shape: tuple[int, ...], dtype: Any = np.float64
) -> Array:
    array = arrays.pop(name)
    if array.dtype != dtype or array.shape != shape:
        expected = f"{np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"{name}: expected {expected}, found {array.dtype} {array.shape}")
    return array


def _plausible(array: Array, power: int = 1) -> bool:
    """Tell whether all numbers are zero or of a size that valid updates can lead to."""
    sizes = np.abs(array[array != 0])
    return _within(sizes, _LARGEST**-power, _LARGEST**power)


def _within(array: Array, low: float, high: float) -> bool:
    return bool((np.isfinite(array) & (array >= low) & (array <= high)).all())


def _number(value: Any, name: str, low: float, high: float, *kinds: type) -> float:
    if type(value) not in (kinds or (int, float)) or not low <= value <= high:
        raise ValueError(f"{name} is {shown(value)}, expected a number from {low:g} to {high:g}")
    number: float = value
    return number


def _parties(value: Any) -> tuple[str, ...]:
    texts = isinstance(value, list) and all(isinstance(party, str) for party in value)
    if not texts or not 0 < len(value) == len(set(value)):
        raise ValueError("parties are not a list of ids, all text and each once")
    return tuple(value)
