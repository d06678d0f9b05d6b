from tocsin.domain.definition import JobDefinition
from tocsin.services.definition_settings import unknown_channels


def test_unknown_channels_are_named_with_the_nearest() -> None:
    notify = {"channels": ["ops", "pagr", "zzz"], "on_failure": True}
    jobs = [
        JobDefinition.model_validate({"name": "report", "function": "f", "notify": notify}),
        JobDefinition.model_validate({"name": "load", "function": "f"}),
    ]
    assert [*unknown_channels(jobs, {"ops": 1, "pager": 2})] == [
        "the settings have no channel `pagr` (job report); did you mean `pager`?",
        "the settings have no channel `zzz` (job report); add it, or no notification is delivered",
    ]
