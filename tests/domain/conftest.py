"""Load what the domain imports at its first use, so that no first example of a property exceeds its deadline."""

from datetime import UTC, datetime

from tocsin.domain.definition import JobDefinition
from tocsin.domain.schedule import parse, warnings_at

JobDefinition(name="warm-up", function="f", input_schema={"type": "object"})
warnings_at(parse("every day at 9am"), datetime(2026, 1, 1, tzinfo=UTC))
