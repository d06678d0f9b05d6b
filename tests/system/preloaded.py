"""Everything that `tocsin run`, `serve` and `worker` import, for processes forked from one that has imported it.

The program imports most of it at its first use, so it is named here module by module. Its objects are exempt from garbage
collection: a process would otherwise copy the memory of each at its first collection.
"""

import gc
from importlib import import_module
from typing import Final

MODULES: Final = (
    "alembic.autogenerate.compare",
    "rich.traceback",
    "sqlalchemy.ext.compiler",
    "structlog",
    "tocsin.adapters.sql",
    "tocsin.app.application",
    "tocsin.bootstrap.api_server",
    "tocsin.bootstrap.provision",
    "tocsin.bootstrap.stage_runner",
    "tocsin.bootstrap.workers",
    "tocsin.cli.app",
    "tocsin.cli.input.values",
    "tocsin.cli.jobs.apply",
    "tocsin.cli.processes.builtin_worker",
    "tocsin.cli.processes.commands",
    "tocsin.telemetry.trace_ids",
    "uvloop",
)

for name in MODULES:
    import_module(name)
gc.collect()
gc.freeze()
