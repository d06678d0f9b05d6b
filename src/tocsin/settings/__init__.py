"""Settings of an installation, and the origin of each value (hip-62, Configuration).

A field is read from four sources, and the first source that names it wins: the command line, the environment, the
configuration file, the default. The file is YAML in hip-62's shape; in its strings `${NAME}` stands for an environment
variable and `$${` for a literal `${`. A variable is named `TOCSIN_` and the path to the field, joined by two underscores
(`TOCSIN_LEADER__TTL=3s`); hip-62's own `DATABASE_URL` and `NATS_URL` are read too. `null` clears a setting that may be null,
in a variable (`TOCSIN_SERVER__RATE=null`) and in the file.

`load` reads files and the environment, and `with_options` changes settings that a program made. A plain `Settings(...)` uses its arguments and the defaults only.
"""

from .loader import *
from .model import *
from .otel import *
from .root import *
from .s3 import *
from .triggers import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
