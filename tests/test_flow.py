"""Imports follow the flow of the data: no room knows those that build on it."""

import ast
from pathlib import Path

import consilience

ROOT = Path(consilience.__file__).parent

# From the bottom to the top; rooms of one line do not depend on one another's order.
FLOW = [
    {"errors", "text", "arrays", "summary"},
    {"updates"},
    {"evidence"},
    {"passes"},
    {"beliefs"},
    {"estimators"},
    {"trails"},
    {"storage"},
    {"moderation"},
    {"memory"},
    {"consensus", "record", "require"},
    {"deliberation"},
    {"engines"},
    {"crowd", "report"},
    {"integrations"},
    {"lab"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOW) for room in rooms}
# A convenience of the public interface, imported when it is called.
ALLOWED = {("evidence", "passes")}


def imports(path: Path) -> set[str]:
    """Return the rooms that a module imports from, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not _typing_only(node, path):
            names = [node.module]
            if node.module == "consilience":
                names = [f"consilience.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("consilience.")}
    return found & LEVEL.keys()


def _typing_only(node: ast.ImportFrom, path: Path) -> bool:
    lines = path.read_text().splitlines()[: node.lineno]
    return node.col_offset > 0 and "if TYPE_CHECKING:" in lines[-2:-1]


def rooms() -> dict[str, set[str]]:
    """Return, for each room, which ones it imports from."""
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room not in ("__init__", "__main__"):
            found.setdefault(room, set()).update(imports(path) - {room})
    return found


def test_every_room_has_its_place():
    assert set(rooms()) == set(LEVEL)


def test_nobody_imports_against_the_flow():
    against = {
        (room, other)
        for room, others in rooms().items()
        for other in others
        if LEVEL[other] >= LEVEL[room]
    }
    assert against == ALLOWED


def test_contributing_names_every_room():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text()
    for room in LEVEL:
        assert f"`{room}.py`" in text or f"`{room}/`" in text, room


def test_functions_fit_a_screen():
    """Forty lines at most, without the docstring and the signature."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                if body:
                    length = node.end_lineno - body[0].lineno + 1
                    assert length <= 40, f"{path.name}: {node.name} has {length} lines"


def test_what_is_called_slow_is_there():
    tests = Path(__file__).parent
    for line in (tests / "slow.txt").read_text().split():
        file, name = line.split("::")
        assert f"def {name}(" in (tests / file).read_text(encoding="utf-8"), line
