"""The settings of an installation, and where each of them came from (hip-62, Configuration).

Four places are asked, the first that names a field wins: an option of the command line, a variable of the environment, the
configuration file, the default. The file is YAML in hip-62's shape; in its strings `${NAME}` stands for a variable of the
environment and `$${` for a literal `${`. A variable is `TOCSIN_` and the path to the field, joined by two underscores
(`TOCSIN_LEADER__TTL=3s`); hip-62's own `DATABASE_URL` and `NATS_URL` are read as well. Where a setting may be null, `null` says so, in a variable
(`TOCSIN_SERVER__RATE=null`) as in the file.

`load` looks at the world. A plain `Settings(...)` does not: it is what its arguments and the defaults say.
"""

from .errors import SettingsError
from .loader import CONFIG_FILE, CONFIG_VARIABLE, load
from .model import (
    DATA_DIR,
    WITHOUT_EFFECT,
    Archive,
    Auth,
    Database,
    Execution,
    FieldPath,
    Leader,
    Metrics,
    Nats,
    Queue,
    Recovery,
    Redis,
    Server,
    Settings,
    Stages,
    Tls,
    Worker,
)
from .view import DEFAULT, MASK, origins, shown, without_password

__all__ = [
    "CONFIG_FILE",
    "CONFIG_VARIABLE",
    "DATA_DIR",
    "DEFAULT",
    "MASK",
    "WITHOUT_EFFECT",
    "Archive",
    "Auth",
    "Database",
    "Execution",
    "FieldPath",
    "Leader",
    "Metrics",
    "Nats",
    "Queue",
    "Recovery",
    "Redis",
    "Server",
    "Settings",
    "SettingsError",
    "Stages",
    "Tls",
    "Worker",
    "load",
    "origins",
    "shown",
    "without_password",
]
