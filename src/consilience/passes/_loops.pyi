from collections.abc import Sequence

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.passes.plain import How

def gram(
    rows: Sequence[Array | None], codes: bytes, about: int, total: Matrix, wide: bool, /
) -> None: ...
def combine(
    rows: Sequence[Array],
    codes: bytes,
    weights: Vector,
    out: Array,
    code: bytes,
    squares: Vector | None,
    wide: bool,
    /,
) -> bool: ...
def trim(
    rows: Sequence[Array],
    codes: bytes,
    cut: int,
    out: Array,
    code: bytes,
    every: int,
    shares: Vector,
    squares: Vector,
    wide: bool,
    /,
) -> int: ...
def corroborate(
    rows: Sequence[Array],
    codes: bytes,
    weights: Vector,
    witnesses: bytes,
    headroom: float,
    out: Array,
    code: bytes,
    squares: Vector | None,
    alone: Vector,
    wide: bool,
    /,
) -> bool: ...
def look(
    rows: Sequence[Array], codes: bytes, places: Positions, out: Array, at: int, wide: bool, /
) -> None: ...
def descend(
    pairs: tuple[Matrix, Matrix], start: Vector, ends: Matrix, levels: Vector, how: How, /
) -> tuple[int, float]: ...
def use(name: str, /) -> None: ...
def in_use() -> str: ...
def available() -> list[str]: ...
