"""Answers to the question what other definitions or other workers would change."""

from .past import *
from .service import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
