"""What migrations do on MariaDB and MySQL alone: exact comparison of texts, and indexes in the place of conditional ones."""

from typing import Any

from . import mysql_sessions

#: Conditional indexes: neither server has them, and Django makes them without their condition. Where the column that is asked for is
#: that of the condition, such an index finds nothing: these columns do.
INDEXES = {
    ("Work", "workpool_work_held"): ("held_since",),
    ("Work", "workpool_work_canceled"): ("canceled",),
    ("Batch", "workpool_batch_open"): ("ended", "pool"),
}


def fit(apps: Any, schema_editor: Any) -> None:
    """Compare texts exactly in all tables of the package, and index what conditional indexes are for."""
    if schema_editor.connection.vendor != "mysql":
        return
    models = list(apps.get_app_config("workpool").get_models())
    compare_exactly(schema_editor, models)
    _index(apps, schema_editor, dict(INDEXES))


def fit_operating(apps: Any, schema_editor: Any) -> None:
    """Compare texts exactly in the tables that the fourth migration adds."""
    if schema_editor.connection.vendor == "mysql":
        compare_exactly(schema_editor, [apps.get_model("workpool", name) for name in ("Tally", "Progress")])


def unfit(apps: Any, schema_editor: Any) -> None:
    """Give back the indexes that Django's operations know; the texts stay exact."""
    if schema_editor.connection.vendor == "mysql":
        _index(apps, schema_editor, {(model, name): None for model, name in INDEXES})


def compare_exactly(schema_editor: Any, models: list[Any]) -> None:
    """Let tables compare texts byte by byte, and hold all of Unicode: usual collations take Email and email for the same pool."""
    collation = mysql_sessions.collation(schema_editor.connection)
    for model in models:
        table = schema_editor.quote_name(model._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}")


def _index(apps: Any, schema_editor: Any, wanted: dict[tuple[str, str], Any]) -> None:
    for (model_name, name), columns in wanted.items():
        model = apps.get_model("workpool", model_name)
        if columns is None:
            columns = next([field for field, _ in index.fields_orders] for index in model._meta.indexes if index.name == name)
        table, names = schema_editor.quote_name(model._meta.db_table), ", ".join(map(schema_editor.quote_name, columns))
        schema_editor.execute(
            f"ALTER TABLE {table} DROP INDEX {schema_editor.quote_name(name)}, ADD INDEX {schema_editor.quote_name(name)} ({names})"
        )
