"""aggregate_files(): the same as `aggregate`, for models and adapters in files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from consilience.consensus import Consensus
from consilience.engines.adapters import Adapters
from consilience.engines.files.adapters import METADATA, FolderOfFactors, IntoBase
from consilience.engines.files.configuration import Copied, copied
from consilience.engines.files.engine import Files, Meter, Progress, deliberate_readable
from consilience.engines.files.model import StoredModel, open_model
from consilience.engines.files.output import Output
from consilience.engines.files.peft import TENSORS, StoredAdapter, is_adapter, open_adapter
from consilience.engines.files.safetensors import Metadata
from consilience.engines.in_process import InProcess
from consilience.errors import ConsilienceError, UpdateError
from consilience.estimators.catalogue import DEFAULT, Method, resolve
from consilience.memory import Memory
from consilience.require import Require
from consilience.text import shown
from consilience.updates.adapters import check_whole
from consilience.updates.names import Patterns

AnyPath = str | os.PathLike[str]
# Bytes, shared equally by the parties. Models that fit are read once, and so cannot change between
# the evidence and the sum.
_KEPT = 1 << 24


def aggregate_files(
    parties: Mapping[str, AnyPath] | Sequence[AnyPath],
    out: AnyPath | None,
    method: str | Method = DEFAULT,
    memory: Memory | None = None,
    center: AnyPath | None = None,
    *,
    exact: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
    require: Require | None = None,
    tensors: Patterns | None = None,
    evidence: Patterns | None = None,
    rank: int | str | None = None,
    into: AnyPath | None = None,
    with_config: AnyPath | None = None,
) -> Consensus:
    """Combine models in files into one, trusting each party as far as it deserves.

    The consensus's ``value`` is the path of the output. A party whose file cannot be used is
    rejected with a reason, and the round goes on.

    Args:
        parties: ``{party id: path}``, or paths: a party's id is then the shortest end of its path
            that no other path has. A path is a .safetensors file, an uncompressed .npz file, a
            folder of .safetensors shards with an index, or a PEFT folder: a LoRA adapter.
        out: where the consensus goes: a .safetensors or .npz file, or a folder. It is replaced as a
            whole at the end, or left alone. None writes nothing, and only judges the parties.
        method, memory, exact, seed, require, evidence: as in `aggregate`.
        tensors: as in `aggregate`. Those that are not aggregated are the centre's, and missing
            where there is none.
        center: the path of the previous global model or adapter, for methods with a prior.
        progress: called now and then with the step, the bytes done and the bytes to do.
        rank: of the adapter that comes of adapters, as of `LoRA`.
        into: the path of the model that adapters are for. Their consensus is added to it, and
            goes to ``out`` as a model.
        with_config: a folder whose configuration and tokenizer are copied into ``out``.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import consilience as cs
    >>> folder = Path(tempfile.mkdtemp())
    >>> for k, party in enumerate(["ann", "bob", "eve"]):
    ...     np.savez(folder / f"{party}.npz", weight=np.full(9, 1.0 + 50 * (k == 2)))
    >>> consensus = cs.aggregate_files(sorted(folder.glob("*.npz")), folder / "merged.npz")
    >>> consensus.value.name, list(consensus.parties)
    ('merged.npz', ['ann.npz', 'bob.npz', 'eve.npz'])
    """
    chosen = resolve(method)
    asked = _Asked(_named(parties), out, center, into, rank, with_config, tensors, evidence)
    with ExitStack() as files:
        engine, models = asked.engine(files, Meter(progress), exact=exact)
        if asked.output is not None:
            files.callback(asked.output.end)
            asked.output.begin()
        consensus = deliberate_readable(
            engine, models, chosen, memory, exact=exact, seed=seed, require=require
        )
    consensus.diagnostics["method"] = method if isinstance(method, str) else repr(method)
    consensus.diagnostics.update(asked.told(engine))
    return consensus


class _Asked:
    """What is asked for: from whom, of what kind, and where it goes."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        out: AnyPath | None,
        center: AnyPath | None,
        into: AnyPath | None,
        rank: int | str | None,
        with_config: AnyPath | None,
        tensors: Patterns | None,
        evidence: Patterns | None,
    ) -> None:
        self.paths, self.rank, self.patterns = paths, rank, (tensors, evidence)
        self.output: Output | None = None
        self.target = None if out is None else Path(out)
        self.center = None if center is None else Path(center)
        self.into = None if into is None else Path(into)
        # Adapters or models: the majority decides, by what lies in the folders.
        self.adapters = 2 * sum(map(is_adapter, paths.values())) > len(paths)
        if not self.adapters and not (rank is None and into is None):
            raise ConsilienceError("a rank, and a model to add to, are for adapters: found models")
        self.folder = self.target is not None and not _is_file(self.target)
        if self.adapters and self.into is None and self.target and not self.folder:
            raise ConsilienceError(
                f"{shown(self.target)}: adapters become a folder that PEFT loads: name a "
                "folder, or a model to add them to"
            )
        if with_config is not None and self.target is not None and not self.folder:
            raise ConsilienceError(
                f"{shown(self.target)}: a configuration lies in a folder: name one"
            )
        if self.target is not None:
            inputs = [*paths.values(), *(p for p in (self.center, self.into) if p is not None)]
            _check_target(self.target, inputs, new=with_config is not None)
        whole = not self.adapters or self.into is not None
        self.beside = Copied({}, ()) if with_config is None else copied(Path(with_config), whole)

    def engine(
        self, files: ExitStack, meter: Meter, *, exact: bool
    ) -> tuple[InProcess, Mapping[str, StoredModel]]:
        """Return the engine over the parties' files, and their models."""
        kept = _KEPT // max(1, len(self.paths))
        if self.adapters:
            check_whole(*self.patterns)
            return self._of_adapters(files, meter, kept)
        found = {p: _model(path, files, kept) for p, path in self.paths.items()}
        base = None if self.center is None else open_model(self.center, files)
        sound = {p: m for p, m in found.items() if isinstance(m, StoredModel)}
        shards = _shards([base] if base and base.shards else list(sound.values()))
        output = self._output(shards, [model.metadata for model in sound.values()])
        return Files(found, base, output, meter, *self.patterns, exact=exact), sound

    def _of_adapters(
        self, files: ExitStack, meter: Meter, kept: int
    ) -> tuple[InProcess, Mapping[str, StoredModel]]:
        found = {p: _adapter(path, files, kept) for p, path in self.paths.items()}
        sound = {p: a.model for p, a in found.items() if isinstance(a, StoredAdapter)}
        center = None if self.center is None else open_adapter(self.center, files)
        if self.into is None:
            names = (name for model in sound.values() for name in model.tensors)
            output = self._output(dict.fromkeys(names, TENSORS), [METADATA])
            return FolderOfFactors(found, center, output, meter, self.rank), sound
        base = open_model(self.into, files)
        output = self._output(base.shards or {}, [METADATA | base.metadata])
        return IntoBase(found, center, base, output, meter, self.rank), sound

    def _output(self, shards: Mapping[str, str], metadata: Iterable[Metadata]) -> Output | None:
        """Return where the value goes, and the metadata it may get."""
        if self.target is not None:
            self.output = Output(self.target, shards, metadata, self.beside.files)
        return self.output

    def told(self, engine: InProcess) -> dict[str, object]:
        """Return what else there is to say about the value."""
        found: dict[str, object] = {}
        if isinstance(engine, Adapters):
            found |= {"cut": engine.cut, "rank": engine.rank}
        if self.beside.files:
            found |= {"copied": sorted(self.beside.files), "notes": list(self.beside.notes)}
        return found


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path: the shortest end of it that is unique."""
    parts = [tuple(map(_text, Path(os.path.abspath(path)).parts)) for path in paths]
    names = []
    for mine in parts:
        others = [theirs for theirs in parts if theirs is not mine]
        if mine in others:
            raise ConsilienceError(f"{shown(os.path.join(*mine))}: given twice")
        count = next(n for n in range(1, len(mine) + 1) if all(t[-n:] != mine[-n:] for t in others))
        names.append("/".join(mine[-count:]))
    return names


def _text(name: str) -> str:
    """Return a file's name as text that can be printed and stored; different names stay different.
    Python represents bytes that are not UTF-8 as lone surrogates."""
    return name.replace("\\", "\\\\").encode(errors="backslashreplace").decode()


def _model(path: Path, files: ExitStack, kept: int) -> StoredModel | UpdateError:
    if is_adapter(path):
        return UpdateError(f"{shown(path)}: a PEFT adapter, where most are models")
    try:
        return open_model(path, files, kept)
    except UpdateError as error:
        return error


def _adapter(path: Path, files: ExitStack, kept: int) -> StoredAdapter | UpdateError:
    try:
        return open_adapter(path, files, kept)
    except UpdateError as error:
        return error


def _named(parties: Mapping[str, AnyPath] | Sequence[AnyPath]) -> dict[str, Path]:
    if isinstance(parties, Mapping):
        return {str(party): Path(path) for party, path in parties.items()}
    if isinstance(parties, str | os.PathLike):
        raise ConsilienceError(f"expected paths, one for each party, found one: {parties}")
    paths = [Path(path) for path in parties]
    return dict(zip(names_of(paths), paths, strict=True))


def _is_file(target: Path) -> bool:
    return target.suffix.lower() in {".safetensors", ".npz"}


def _check_target(target: Path, inputs: Sequence[Path], *, new: bool) -> None:
    """Refuse an output that would replace an input or a folder with something in it. If no input is
    a folder, refuse a folder as output, unless it is to be a ``new`` one."""
    there = [os.stat(target)] if os.path.exists(target) else []
    for path in inputs if there else ():
        if any(os.path.samestat(part, there[0]) for part in _parts(path)):
            raise ConsilienceError(
                f"{shown(target)}: is one of the inputs, of {shown(path)}; choose another output"
            )
    if _is_file(target):
        if target.is_dir():
            raise ConsilienceError(f"{target}: is a folder, expected a file's name")
    elif target.is_dir():
        if any(target.iterdir()):
            raise ConsilienceError(f"{target}: is a folder with something in it; remove it first")
    elif target.exists() or not (new or any(map(os.path.isdir, inputs))):
        raise ConsilienceError(f"{target}: expected the name of a .safetensors or .npz file")


def _parts(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a path, and of what is in it if it is a folder. Links within are not
    followed: one to the output need not stop a merge, as replacing the output does not harm it."""
    with suppress(OSError, ValueError):
        yield os.stat(path)
        if os.path.isdir(path):
            for name in os.listdir(path):
                yield os.lstat(path / name)


def _shards(models: Sequence[StoredModel]) -> dict[str, str]:
    """Return the commonest way in which these models are split into files."""
    ways = Counter(frozenset(m.shards.items()) for m in models if m.shards)
    return dict(ways.most_common(1)[0][0]) if ways else {}
