"""The calendar: the instants that a schedule names (`ojs-cron` 3 to 5, `hip-62`).

    text ──parser──▶ expression | phrase | @every | at ──▶ pattern (wall time) ──instants──▶ UTC

Calendars, blackouts and moved days are put around a parsed schedule: `OpenRule` leaves closed time out, and `moved_pattern` adds
the times that move to business days. A `Pattern` knows only wall-clock time. A `Zone` knows only the offset between wall-clock time and UTC. `instants` combines both
and applies the rules for clock changes. Nothing here reads a clock: every moment is an argument.
"""

from .bounds import *
from .clock_changes import *
from .day_rules import *
from .errors import *
from .explain import *
from .instants import *
from .moved_instants import *
from .parser import *
from .rules import *
from .schedule import *
from .timezones import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
