"""The definition of a job, as the ledger stores it.

Every format is read into these classes. A value is valid by construction: names, durations, the schedule, the graph of the steps, and the size
and schema of the input have been checked (ojs-cron §2.2; hip-62, Job Registry and Job Input Sanitization). Durations
are seconds. A stored definition must stay readable when rules get stricter or a time zone disappears. Reading from the
log therefore passes `context=STORED`, which leaves out every check that is about registration.

    errors                     problems, their codes and text
    fields, inputs             checks of single fields and of inputs
    calendars, concurrency     days, limits
    dependencies               dependencies on other jobs
    builtin_work and others    built-in work
    step, model                the definition and its rules
"""

from .calendars import *
from .concurrency import *
from .dependencies import *
from .errors import *
from .fields import *
from .inputs import *
from .model import *
from .notify import *
from .retry_policy import *
from .step import *
from .triggers import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
