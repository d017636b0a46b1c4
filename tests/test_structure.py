"""The structure that the documents promise: who writes which table, who imports whom, how long things are."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.db.models import Model

import django_workpool

pytestmark = [pytest.mark.once, pytest.mark.anywhere]

PACKAGE = Path(django_workpool.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)

INSERT, CHANGE, DELETE = "Inserted by", "Changed by", "Deleted by"
METHODS = {
    "create": INSERT,
    "bulk_create": INSERT,
    "get_or_create": INSERT,
    "update_or_create": INSERT,
    "acreate": INSERT,
    "abulk_create": INSERT,
    "update": CHANGE,
    "bulk_update": CHANGE,
    "aupdate": CHANGE,
    "delete": DELETE,
    "adelete": DELETE,
    "_raw_delete": DELETE,
}
STATEMENTS = {r"INSERT INTO \{+(\w+)\}": INSERT, r"UPDATE \{+(\w+)\}": CHANGE, r"DELETE FROM \{+(\w+)\}": DELETE}
#: Methods of the database's interface, and what they do to tables for whoever calls them.
BULK = {
    "insert_work": (("Work", INSERT), ("PendingStart", INSERT)),
    "complete_successes": (("Work", DELETE), ("Archive", INSERT), ("PendingCompletion", INSERT)),
    "begin_runs": (("PendingStart", DELETE), ("RunningWork", INSERT)),
}

MODELS: dict[str, type[Model]] = {model.__name__: model for model in apps.get_app_config("workpool").get_models()}


def module_name(path: Path) -> str:
    """Return a file's module, relative to the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "django_workpool"


def contract(model: type[Model]) -> dict[str, set[str]]:
    """Return who may do what with a table's rows, as its docstring says."""
    found = {}
    for act in (INSERT, CHANGE, DELETE):
        line = re.search(rf"^\s*{act}: (.*)$", model.__doc__ or "", re.MULTILINE)
        assert line, f"{model.__name__} does not say '{act}:'"
        named = re.sub(r"\([^)]*\)", "", line[1])
        found[act] = {part.strip() for part in named.split(",")} - {"-"}
    return found


def root_model(node: ast.expr, variables: dict[str, str]) -> str | None:
    """Return the model on whose manager a chain of calls begins."""
    while True:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "lock_rows" and isinstance(node.args[0], ast.Name):
                return node.args[0].id
            node = node.func
        elif isinstance(node, ast.Attribute):
            if node.attr in ("objects", "_default_manager", "_base_manager") and isinstance(node.value, ast.Name):
                return node.value.id
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Name):
            return variables.get(node.id)
        else:
            return None


def writes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (model, act) for all that a module writes: through managers, instances, statements and the bulk interface."""
    variables = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            model = root_model(node.value, {})
            if model:
                variables[node.targets[0].id] = model
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from statements(node.value)
        elif isinstance(node, ast.JoinedStr):
            found = list(statements("".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)))
            yield from found
            if any(isinstance(inner, ast.Attribute) and inner.attr == "upsert" for inner in ast.walk(node)):
                yield from ((model, CHANGE) for model, act in found if act == INSERT)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            model = root_model(node.func.value, variables)
            if name in METHODS and model in MODELS:
                yield str(model), METHODS[name]
            elif name in BULK:
                yield from BULK[name]
            elif name in ("save", "asave", "save_base"):
                pytest.fail("no model instance is saved in the package: every change names its columns")


def statements(text: str) -> Iterator[tuple[str, str]]:
    for pattern, act in STATEMENTS.items():
        for name in re.findall(pattern, text):
            if name in MODELS:
                yield name, act


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_room_writes_only_the_tables_whose_contract_names_it(path: Path) -> None:
    module = module_name(path)
    if module.startswith("database"):
        return  # The vendors' statements run for the room that calls them, where BULK counts them.
    allowed = {name: contract(model) for name, model in MODELS.items()}
    for model, act in writes(ast.parse(path.read_text())):
        assert module in allowed[model][act], f"{module} does what {model}'s docstring does not name it for: {act!r}"


def test_each_writer_that_a_contract_names_does_write() -> None:
    done = defaultdict(set)
    for path in FILES:
        for model, act in writes(ast.parse(path.read_text())):
            done[model, act].add(module_name(path))
    for name, model in MODELS.items():
        for act, modules in contract(model).items():
            assert modules <= done[name, act], f"{name}: {act} {modules - done[name, act]}, but they do not"


def test_no_table_has_a_foreign_key_that_the_database_holds() -> None:
    for model in MODELS.values():
        assert not [field.name for field in model._meta.get_fields() if field.is_relation], model.__name__


#: Rooms from the ground up: each imports only rooms of lower floors, or its own.
FLOORS = [
    {
        "exceptions",
        "progress_values",
        "types",
        "segments",
        "ids",
        "events",
        "plain",
        "serialization",
        "failures",
        "retry_texts",
        "database_errors",
        "current_work",
        "ticks",
        "signals",
        "batch_values",
        "adapters",
        "tracing",
    },
    {"conf", "models", "masks", "allowed", "functions", "permissions", "callbacks"},
    {"database", "eventlog", "options"},
    {"archive", "kick", "stats", "keys", "tallies"},
    {"settle", "configuration"},
    {"client", "complete", "batches", "loop", "requeue"},
    {"operating"},
    {"pools", "execution", "health", "periodic"},
    {"runner", "backend"},
    {"testing"},
    {
        "apps",
        "checks",
        "admin",
        "management",
        "periodic_checks",
        "site",
        "templatetags",
        "pytest_plugin",
        "routers",
        "otel",
        "prometheus",
        "django_workpool",
    },
]
#: Imports inside functions that would go up, and why there is no way round.
LAZY = {("conf", "models"): "the alias needs the models, which cannot be imported before the apps are loaded"}


def floor_of(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms of the package that a file imports while it is loaded."""
    package = ["django_workpool", *path.relative_to(PACKAGE).parts[:-1]]
    rooms = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    lazy = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in typing_only or id(node) in lazy:
            continue
        if node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
        else:
            base = (node.module or "").split(".")
        if base[0] != "django_workpool":
            continue
        rooms |= {base[1]} if len(base) > 1 else {alias.name for alias in node.names}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    module = module_name(path)
    room = module.split(".")[0]
    for other in imported_rooms(path) - {room}:
        assert floor_of(other) <= floor_of(room), f"{module} imports {other}, which is above it"


def test_rooms_of_one_floor_do_not_import_each_other_in_circles() -> None:
    graph = defaultdict(set)
    for path in FILES:
        room = module_name(path).split(".")[0]
        graph[room] |= {other for other in imported_rooms(path) if other != room and floor_of(other) == floor_of(room)}

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        return any(one == goal or (one not in seen and reaches(one, goal, seen | {one})) for one in graph[start])

    assert [room for room in list(graph) if reaches(room, room, set())] == []


def test_only_the_database_package_knows_the_vendor() -> None:
    for path in FILES:
        module = module_name(path)
        if module.startswith("database") or module == "checks":
            continue
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not names & {"vendor", "features", "select_for_update"}, module


#: Longer files, and why.
LONG = {"models": "all tables with their contracts, to be read as one page"}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300 or module_name(path) in LONG, f"{path.name} has grown past 300 lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}: {node.name} is longer than 60 lines"
