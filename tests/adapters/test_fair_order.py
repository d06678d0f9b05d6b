"""Messages that were read ahead: publishers and jobs take turns."""

from typing import cast

from nats.aio.client import Client
from nats.aio.msg import Msg

from tocsin.adapters.nats.consumers.fair_order import READ_AHEAD_BYTES, FairOrder
from tocsin.subjects import turn_of


def messages(subject: str, number: int, size: int = 1) -> list[Msg]:
    return [Msg(cast("Client", None), subject, f"{subject} {n}", b"x" * size) for n in range(number)]


def replies(taken: list[Msg]) -> list[str]:
    return [message.reply for message in taken]


def test_jobs_take_turns_and_keep_their_order() -> None:
    order = FairOrder(turn_of)
    order.add([*messages("trigger.a", 3), *messages("trigger.b", 2)])
    assert replies(order.take(2)) == ["trigger.a 0", "trigger.b 0"]
    order.add(messages("trigger.c", 1))
    assert replies(order.take(9)) == ["trigger.a 1", "trigger.b 1", "trigger.c 0", "trigger.a 2"]
    assert (len(order), order.messages) == (0, [])


def test_publisher_with_many_jobs_has_one_turn() -> None:
    order = FairOrder(turn_of)
    order.add([message for job in "abc" for message in messages(f"outside.shop.trigger.{job}", 2)])
    order.add(messages("outside.bank.trigger.a", 2))
    assert [message.subject.split(".")[1] for message in order.take(4)] == ["shop", "bank"] * 2
    assert [message.subject[-1] for message in order.take(9)] == ["c", "a", "b", "c"]


def test_waiting_bodies_are_counted() -> None:
    order = FairOrder(turn_of)
    order.add(messages("enqueue.mail.0198", 2, size=1_000))
    order.take(1)
    assert order.free_bytes == READ_AHEAD_BYTES - 1_000


def test_any_subject_has_a_turn() -> None:
    assert turn_of("trigger.a") == ("", "a.")
    assert turn_of("outside.shop.trigger.a.b") == ("shop", "a.b.")
    assert turn_of("outside.*.trigger.>") == ("", ">.")
    assert turn_of("enqueue.mail.send.0198") == ("", "mail")
    assert turn_of("execution.nightly.0198.planned") == ("", "nightly")
    assert turn_of("x") == ("", "")
