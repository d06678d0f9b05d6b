"""Settings of an installation, and the origin of each value (hip-62, Configuration).

A field is read from four sources, and the first source that names it wins: the command line, the environment, the
configuration file, the default. The file is YAML in hip-62's shape; in its strings `${NAME}` stands for an environment
variable and `$${` for a literal `${`. A variable is named `TOCSIN_` and the path to the field, joined by two underscores
(`TOCSIN_LEADER__TTL=3s`); hip-62's own `DATABASE_URL` and `NATS_URL` are read too. `null` clears a setting that may be null,
in a variable (`TOCSIN_SERVER__RATE=null`) and in the file.

`load` reads files and the environment, and `with_options` changes settings that a program made. A plain `Settings(...)` uses its arguments and the defaults only.
"""

from .loader import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    DEFAULT,
    MASK,
    SettingsError,
    described,
    load,
    origins,
    shown,
    with_options,
    without_password,
)
from .model import (
    Auth,
    Grpc,
    GrpcTls,
    Leader,
    Metrics,
    Nats,
    Notary,
    Queue,
    QueueRate,
    Recovery,
    Server,
    Stages,
    Worker,
)
from .otel import sampling_of
from .root import DATA_DIR, WITHOUT_EFFECT, FieldPath, Settings
from .s3 import Archive
from .triggers import Triggers

__all__ = [
    "CONFIG_FILE",
    "CONFIG_VARIABLE",
    "DATA_DIR",
    "DEFAULT",
    "MASK",
    "WITHOUT_EFFECT",
    "Archive",
    "Auth",
    "FieldPath",
    "Grpc",
    "GrpcTls",
    "Leader",
    "Metrics",
    "Nats",
    "Notary",
    "Queue",
    "QueueRate",
    "Recovery",
    "Server",
    "Settings",
    "SettingsError",
    "Stages",
    "Triggers",
    "Worker",
    "described",
    "load",
    "origins",
    "sampling_of",
    "shown",
    "with_options",
    "without_password",
]
