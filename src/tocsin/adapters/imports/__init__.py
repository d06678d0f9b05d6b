"""Job files from the schedules of other programs.

    sources                    reading of files, with limits
    findings                   what has no equivalent, each kind with a stable code
    drafts, job_file           the jobs that were found, and the file with comments
    cron_dialects, schedules   schedules of other programs in Tocsin's words

A source is data: nothing in it is executed. What has no equivalent is a comment at its job and a finding of the report.
"""

from .findings import FINDING_CODES, LOSSES, Finding
from .job_file import JobFile
from .sources import Kind, import_files

__all__ = ["FINDING_CODES", "LOSSES", "Finding", "JobFile", "Kind", "import_files"]
