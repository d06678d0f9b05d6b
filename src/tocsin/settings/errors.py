"""What is wrong with settings."""

from ..domain.definition import DefinitionProblem
from ..domain.errors import TocsinError


class SettingsError(TocsinError, ValueError):
    """The settings cannot be used; `problems` holds everything that is wrong with them."""

    code = "invalid-settings"

    def __init__(self, *problems: DefinitionProblem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
