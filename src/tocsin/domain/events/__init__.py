# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
"""Every event that Tocsin records, every input, and every public event.

These classes are the only source of the JSON Schemas in `schemas/`.

Events are in the past tense and immutable, and they are a storage format. A released class only gains fields with
defaults; a breaking change is a new class with a new `v`. A body leaves out fields that have their default, so a
released default never changes. Times are aware UTC datetimes, durations are seconds.
"""

from .coordination import *
from .dead_letter import *
from .execution import *
from .inputs import *
from .ledger import *
from .message import *
from .mq import *
from .notifications import *
from .output import *
from .plan import *
from .public import *
from .shards import *
from .steps import *
from .triggers import *
from .uniqueness import *
