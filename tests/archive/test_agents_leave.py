"""Events of agents leave the stream when their agent is forgotten, and those of names and queues when they are replaced."""

from tests.archive.test_purge_filters import left, purges, selected, stream

MESSAGES = stream(
    "agent.mail-1.0198.registered",  # 1: this agent lives
    "agent.mail-1.0199.registered",  # 2
    "agent.mail-1.0199.fell-silent",  # 3
    "agent.mail-1.all.switched",  # 4
    "agent.mail-1.0199.forgotten",  # 5
    "agent.mail-1.all.switched",  # 6
    "ledger.j.due",  # 7
    "ledger.j.due",  # 8
    "agent.mail-2.0200.registered",  # 9
    "agent.mail-2.0200.ended",  # 10
    "agent.mail-2.0200.forgotten",  # 11
    "agent.mail-2.0200.registered",  # 12: it was forgotten, and returned
    "agent.mail-2.all.granted",  # 13
    "agent.mail-2.all.granted",  # 14
    "queue.mail.paused",  # 15
    "queue.mail.purged",  # 16
    "queue.mail.resumed",  # 17
    "queue.mail.paused",  # 18
)


def test_forgotten_agents_and_replaced_decisions_are_archived() -> None:
    assert selected(MESSAGES) == {2, 3, 4, 5, 7, 13, 15}


def test_what_is_kept_is_not_purged() -> None:
    archived = selected(MESSAGES)
    remaining = left(MESSAGES, purges(MESSAGES, archived))
    assert {message.sequence for message in remaining} == {1, 6, 8, 9, 10, 11, 12, 14, 16, 17, 18}
