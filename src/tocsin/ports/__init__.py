# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
"""The ports: interfaces of the stages to the outside world.

Every port has one behaviour suite in `tests/conformance/`, run over each of its implementations. The exceptions here
are for broken plumbing; a failed job is an event.
"""

from .channels import *
from .clock import *
from .durables import *
from .errors import *
from .event_log import *
from .history import *
from .projections import *
from .stored_log import *
