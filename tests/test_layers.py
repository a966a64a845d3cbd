"""What may import what, read off the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STORE = sorted((ROOT / "store").rglob("*.py"))
COMMAND = sorted((ROOT / "recall_cli").rglob("*.py"))

# From the ground up. A module imports from lower rows only, or from its own row
# where that is not in a circle; Python itself would fail on most circles, late.
ROWS = [
    {"errors", "value"},
    {"clock", "text", "canonical", "remote_errors"},
    {"process", "records", "values"},
    {"lease", "checks", "actions", "log", "running", "place", "briefing_text"},
    {"backend", "briefing_parts", "briefing_sections"},
    {"briefing", "audit", "keeper", "verify"},
    {"views", "transfer", "asides"},
    {"writer", "restore", "context"},
    {"beginning"},
    {"acting"},
    {"agent"},
    {"access"},
    {"pruning", "rewinding"},
    {"opening"},
    {"client"},
    {"aio"},
]
# Of the modules of store.shipping the same; they stand above the backend and below the agent.
SHIPPING_ROWS = [
    {"bucket", "locking", "references"},
    {"head", "s3_faults"},
    {"s3", "probe"},
    {"segment", "protocol"},
    {"fetch", "place", "inbox"},
    {"local"},
    {"packing"},
    {"upkeep", "remote_verify"},
    {"looking", "evidence"},
    {"taking"},
    {"shipper"},
    {"worker"},
    {"backend"},
    {"opening", "bringing", "syncing"},
    {"attaching", "detaching", "checking", "repairing"},
]
BACKENDS_USE = {
    "errors", "remote_errors", "value", "clock", "text", "canonical", "process", "records", "lease", "log", "backend",
    "audit", "verify", "asides", "running", "values",
}  # fmt: skip
HEAVY = {
    "typer",
    "rich",
    "pydantic",
    "sqlite_utils",
    "boto3",
    "botocore",
    "h11",
    "mcp",
    "asyncio",
    "logging",
    "subprocess",
    "sqlite3",
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, *, top: bool = False) -> set[str]:
    """The modules that a file imports: anywhere in it, or with ``top`` when it is imported; not for types only."""
    nodes, waiting = [], list(ast.iter_child_nodes(ast.parse(path.read_text(encoding="utf-8"))))
    while waiting:
        node = waiting.pop()
        if _for_types_only(node) or (top and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            continue
        nodes.append(node)
        waiting += ast.iter_child_nodes(node)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module
            found |= {node.module} | {f"{node.module}.{each.name}" for each in node.names}
    return found


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


@pytest.mark.parametrize("path", STORE, ids=name_of)
def test_the_engine_knows_nothing_of_its_front_doors(path: Path) -> None:
    """No module of store imports recall_cli, prints, reads argv, or exits."""
    assert not [each for each in imports(path) if each.split(".")[0] in ("recall_cli", "typer", "rich", "argparse")]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "input", "exit", "quit"), f"{path}:{node.lineno}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
            assert node.attr not in ("argv", "stdout", "stderr", "stdin", "exit"), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", [each for each in STORE if each.parent.name == "store"], ids=name_of)
def test_a_module_of_the_engine_imports_downwards(path: Path) -> None:
    """The order inside store is that of ROWS; only the client knows which backend there is."""
    module = path.stem
    if module == "__init__":
        assert not imports(path) - {"__future__", "__future__.annotations"}
        return
    rows = {name: number for number, row in enumerate(ROWS) for name in row}
    assert module in rows, f"store/{module}.py has no row in tests/test_layers.py"
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] != "store" or len(parts) < 2:
            continue
        if parts[1] == "backends":
            assert module == "opening", f"{module} imports {imported}"
        elif parts[1] == "shipping":
            assert module == "opening", f"{module} imports {imported}: a store without a bucket never loads it"
        else:
            assert rows[parts[1]] <= rows[module], f"{module} imports {imported}, which is above it"


@pytest.mark.parametrize("path", [each for each in STORE if each.parent.name == "shipping"], ids=name_of)
def test_a_module_of_shipping_imports_downwards(path: Path) -> None:
    """The order inside shipping is that of SHIPPING_ROWS; of the rest it uses nothing above an agent's log."""
    rows = {name: number for number, row in enumerate(SHIPPING_ROWS) for name in row}
    if path.stem == "__init__":
        return
    assert path.stem in rows, f"store/shipping/{path.stem}.py has no row in tests/test_layers.py"
    for imported in imports(path):
        parts = imported.split(".")
        if parts[:2] == ["store", "shipping"] and len(parts) > 2:
            assert rows[parts[2]] <= rows[path.stem], f"{path.stem} imports {imported}, which is above it"
        elif parts[0] == "store" and len(parts) > 1:
            assert parts[1] not in ("writer", "beginning", "acting", "agent", "access", "client"), imported


@pytest.mark.parametrize("path", [each for each in STORE if "backends" in each.parts], ids=name_of)
def test_a_backend_uses_the_lower_half_only(path: Path) -> None:
    """A backend knows rules and types, not agents, keepers or briefings."""
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == "store" and len(parts) > 1 and parts[1] != "backends":
            assert parts[1] in BACKENDS_USE, f"{path}: {imported}"


def test_the_engine_has_no_circles() -> None:
    """No two modules of store import each other when they are loaded, over whatever detour."""
    graph = {name_of(path): imports(path, top=True) for path in STORE}
    graph = {  # without its own package, which Python has begun to load before it
        name: {each for each in found if each in graph and not f"{name}.".startswith(f"{each}.")}
        for name, found in graph.items()
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for each in graph[name]:
                visit(each, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


OPENERS = {"open", "copyfile", "copy", "copy2", "read_bytes", "write_bytes", "read_text", "write_text", "sendfile"}
MAY_OPEN = {
    ("store.clock", "open"),  # the boot's id in /proc
    ("store.process", "open"),  # /proc/PID/stat
    ("store.running", "open"),  # an action's lock file
    ("store.shipping.locking", "open"),  # an agent's lock file
    ("store.shipping.opening", "open"),  # a bucket
    ("store.backends.sqlite.health", "open"),  # recall.lock, to see who has it
    ("store.backends.sqlite.lock", "open"),  # recall.lock and the directory
    ("store.backends.sqlite.files", "open"),  # a database that did not exist, a directory, the mounts
    ("store.backends.sqlite.files", "copyfile"),  # in a directory that may not be written, so without locks
    ("store.backends.sqlite.schema", "open"),  # the backup's new file
    ("store.backends.sqlite.schema", "read_text"),  # migrations
}


@pytest.mark.parametrize("path", STORE, ids=name_of)
def test_nothing_opens_the_database_but_sqlite(path: Path) -> None:
    """A plain open and close drops SQLite's locks: the few calls that open files are known, each for its reason."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value == "recall.db":
            assert name_of(path) == "store.backends.sqlite.files", f"{path}:{node.lineno} names the database file"
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in OPENERS:
                assert (name_of(path), called) in MAY_OPEN, f"{path}:{node.lineno} calls {called}"


@pytest.mark.parametrize("path", [*STORE, *COMMAND], ids=name_of)
def test_nothing_heavy_is_imported_before_it_is_needed(path: Path) -> None:
    """Of the modules that cost a start-up, each stands at the top only where its module is nothing without it."""
    allowed = {
        "store.aio": {"asyncio"},
        "store.backends.sqlite": {"sqlite3"},
        "recall_cli.table": {"rich"},
        "store.shipping.s3": {"botocore"},
        "recall_cli.mcp.connection": {"h11"},
        "recall_cli": {"typer", "subprocess"},
    }
    name = name_of(path)
    may = next((found for prefix, found in allowed.items() if name.startswith(prefix)), set())
    found = {each.split(".")[0] for each in imports(path, top=True)} & HEAVY
    assert found <= may, f"{name} imports {found - may}"


@pytest.mark.parametrize(
    ("loaded", "absent"),
    [
        ("import recall_cli", {"store", "sqlite3", "typer", "rich"}),
        ("from recall_cli import Client", {"typer", "rich", "pydantic", "asyncio", "subprocess", "sqlite_utils"}),
        ("import store.client, store.access, recall_cli.exits", {"store.remote_errors", "store.shipping"}),
        ("import store.errors, store.lease, store.records", {"sqlite3", "asyncio", "subprocess", "logging"}),
        ("import store.shipping.bucket, store.shipping.probe", {"botocore", "email", "sqlite3", "urllib3"}),
    ],
)
def test_what_an_import_loads(loaded: str, absent: set[str]) -> None:
    """In a fresh process, what is not needed yet is not in sys.modules."""
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{loaded}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & absent
