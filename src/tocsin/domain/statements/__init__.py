"""SQL: the statements of ScratchBird's scheduler about jobs.

text ──grammar──▶ tree ──reader──▶ statements ──definitions──▶ definition of a job ──writer──▶ text
"""

from .definitions import *
from .model import *
from .reader import *
from .writer import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
