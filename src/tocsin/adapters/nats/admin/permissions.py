"""Permissions of NATS users, derived from what each part of Tocsin uses (hip-62, NATS Credentials).

Clients use JetStream through subjects too. So a user is allowed only the requests of its part, each narrowed to its
stream, durable or key, and receives replies only under its own prefix.

    stores         the subjects of its messages.
    consumes       MSG.NEXT and INFO of its own durables, and their acknowledgements.
    looks up       direct gets of the streams that it reads.
    follows        consumers without a durable name, in the streams that it follows.

Limits: a server checks the subject of a publish, but not its reply subject. The reply of the server is a message too, and
is stored if a stream captures its subject. So within one account, no rule stops a user who may request anything. Users
outside (`worker`, `public`, `mq-executor`, `api-client`) are therefore in accounts of their own (`server_accounts`), which
import the subjects that they may use. The rules of the other users contain mistakes and stray programs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .... import subjects
from ....domain.events import CronAlert, CronMissed, CronSkipped, CronTriggered, Message
from ....engine.stage import Access
from ....ports import DurableSpec
from ....subjects import ANY, DECISION_STREAMS, INSTALLATION_KEY, LOG_ARCHIVE, REST, SERVER_STREAMS, Bucket, Stream
from ..client.names import PROBE, Names
from ..client.transport import SERVER_REPLIES
from .desired_state import all_streams

API: Final = "$JS.API"


@dataclass(frozen=True, slots=True)
class Permissions:
    """The rules of one user: subjects on the wire, wildcards included. Everything else is refused."""

    inbox_prefix: str
    """The prefix that its clients must use (`nats.inbox_prefix`)."""
    publish: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    responds: bool = False
    """Whether it may reply to requests, on any reply subject."""
    outside: "Outside | None" = None
    """The account outside that it belongs to; None: it belongs to the account with the streams."""

    def as_server_config(self) -> dict[str, object]:
        """Return the `permissions` of a user in nats-server's configuration."""
        publish: dict[str, object] = {"allow": list(self.publish)}
        if self.deny_publish:
            publish["deny"] = list(self.deny_publish)
        rules: dict[str, object] = {
            "publish": publish,
            "subscribe": {"allow": [f"{self.inbox_prefix}.>", *self.subscribe]},
        }
        return {**rules, "allow_responses": True} if self.responds else rules


@dataclass(frozen=True, slots=True)
class Outside:
    """An account that sees only what it imports from the account with the streams."""

    suffix: str
    """The end of its name."""
    requests: tuple[str, ...]
    """Subjects on which its users publish or ask. The server replaces the reply subject."""
    pulls: tuple[str, ...] = ()
    """Subjects of requests with several replies."""
    hears: tuple[str, ...] = ()
    """Subjects whose messages its users receive."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Subjects as its users know them, each with its name in the account with the streams, where they differ."""
    withheld: tuple[tuple[str, str], ...] = ()
    """Subjects that its imports cover and its users may not use, each with the name to which its account maps them."""
    diverted: tuple[tuple[str, str], ...] = ()
    """Subjects of `renamed` that the account with the streams maps to their names when its users publish on them."""

    def exported(self, subject: str) -> str:
        """Return the name of a subject in the account with the streams."""
        return dict(self.renamed).get(subject, subject)


class Granting:
    """Builder of permissions for one installation and its durables."""

    def __init__(
        self,
        names: Names,
        durables: Iterable[DurableSpec],
        opened: Mapping[str, Iterable[str]] | None = None,
        *,
        agents: Iterable[str] = (),
        has_webhooks: bool = False,
        is_screened: bool = False,
    ) -> None:
        """`opened`: the subjects that the settings open for triggers, by the stream of another program.

        `agents`: the names that have accounts. With `has_webhooks`, the event listener reads the queue of requests to webhooks too. With
        `is_screened`, screeners hear the messages of users outside for streams.
        """
        self._names = names
        self._opened = dict(opened or {})
        if has_webhooks:
            self._opened[names.webhook_stream] = (names.webhook(ANY),)
        self._durables = tuple(durables)
        self._agents = tuple(agents)
        self._is_screened = is_screened

    def part(self, name: str, access: Access, durables: Iterable[DurableSpec] = ()) -> Permissions:
        """Return the permissions of a stage, a worker or an operator.

        They follow from its access and its durables. It may read the installation's key, which verifies
        reports. A user that can also report could forge reports on other tasks with it.
        """
        stored = [subject for kind in access.appends for subject in subjects.filters_of(kind)]
        beside = [subject for subject in stored if subjects.stream_of(subject) not in DECISION_STREAMS]
        reads, follows = _beside(access.reads), _beside(access.follows)
        publish = [
            *map(self._names.to_wire, beside),
            *(subject for durable in durables for subject in self._consuming(durable)),
            *(subject for stream in reads for subject in self._reading(stream)),
            *(subject for stream in follows for subject in self._following(stream)),
            *(f"{API}.STREAM.MSG.DELETE.{self._names.stream(stream)}" for stream in access.removes),
            *(subject for bucket in access.looks_up for subject in self._looking_up(bucket)),
            *(subject for bucket, _ in access.writes for subject in self._looking_up(bucket)),
            *(self._names.key(bucket, key) for bucket, key in access.writes),
            *(self._reading_archive() if access.reads_archive or access.keeps_archive else ()),
            *(self._keeping_archive(follows) if access.keeps_archive else ()),
            *(self._announcing() if access.announces else ()),
            *self._awaiting(),
            *self._looking_up(Bucket.TIMEZONES),
            self._key(),
        ]
        if access.keeps_agents:
            publish += self._to_agents(self._names.agent_commands)
        if access.assigns_tasks:
            publish += [*self._to_agents(self._names.agent_tasks), *self._to_agents(self._names.agent_ends)]
            publish += [self._names.roll_call, self._names.fetch_answers(ANY), self._names.fetch_calls]
        if access.screens:
            publish += [*map(self._names.to_wire, subjects.OUTSIDE_SUBJECTS), f"{SERVER_REPLIES}>"]
        if access.alerts:
            publish.append(self._names.alerts(ANY))
        publish += self._on_commits(access, appends=len(beside) < len(stored))
        hearing = [self._names.turns]
        if access.keeps_agents or access.assigns_tasks:
            hearing.append(self._names.hold_list(ANY, ANY))
        if access.assigns_tasks:
            hearing.append(self._names.fetch_requests)
        if access.screens:
            hearing.append(self._names.unscreened(ANY, REST))
        if access.hears_events:
            publish += self._hearing_events()
        denied = {subject for stream in follows for subject in self._of_others(stream)} - set(publish)
        return Permissions(_inbox(name), _sorted(publish), _sorted(denied), tuple(hearing))

    def working(self, name: str, stores: Iterable[type[Message]], *, agent: str = ANY) -> Permissions:
        """Return the permissions of workers, which have an account and use no JetStream.

        They store messages of some types, send hold lists, and hear what stages send to agents. Their agents have the name
        `agent`, and the account imports the subjects of no other name; by default, any name that has no account. What
        stages send to an agent with an account is mapped to a first token of its own, because the imports of the shared
        account cover all other subjects of agents, and bind users without rules and leaf nodes too.
        """
        names = self._names
        stored = [subject for kind in stores for subject in subjects.filters_of(kind)]
        requests = [*map(names.to_wire, stored), names.hold_list(agent, ANY)]
        own = names.agent_commands(agent, ANY), names.agent_tasks(agent, ANY), names.agent_ends(agent, ANY)
        screened = self._screened(name, stored)
        if agent == ANY:
            withheld = tuple(
                (names.hold_list(other, ANY), self._owned(other, names.hold_list(other, ANY))) for other in self._agents
            )
            outside = Outside("WORKERS", _sorted(requests), renamed=screened, withheld=withheld)
        else:
            diverted = tuple((subject, self._owned(agent, subject)) for subject in own)
            suffix = f"WORKERS_{agent.upper().replace('-', '_')}"
            outside = Outside(suffix, _sorted(requests), renamed=(*screened, *diverted), diverted=diverted)
        return _outside(name, replace(outside, hears=(*own, names.roll_call)))

    def _to_agents(self, subject: Callable[[str, str], str]) -> Iterator[str]:
        """Yield the subjects of a message to agents, with its mapped subjects."""
        yield subject(ANY, ANY)
        yield from (self._owned(agent, subject(agent, ANY)) for agent in self._agents)

    def _owned(self, agent: str, subject: str) -> str:
        """Return a subject under a first token of an agent, which no import covers.

        The token has an underscore, so it is the root of no installation.
        """
        return f"{self._names.root}_{agent}{subject.removeprefix(self._names.root)}"

    def _screened(self, name: str, stored: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return the subjects that a user outside stores, each with the subject of its submissions."""
        if not self._is_screened:
            return ()
        return tuple((self._names.to_wire(subject), self._names.unscreened(name, subject)) for subject in stored)

    def provisioning(self, name: str) -> Permissions:
        """Return the permissions for `tocsin init`: streams, buckets and durables, but no facts."""
        main = [self._names.stream(stream) for stream in SERVER_STREAMS]
        streams = all_streams(self._names)
        publish = [
            f"{API}.INFO",
            f"{API}.STREAM.NAMES",
            *(f"{API}.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE", "UPDATE") for stream in streams),
            *(f"{API}.CONSUMER.{verb}.{stream}.*" for verb in ("INFO", "CREATE") for stream in main),
            *(s for bucket in (Bucket.CURSORS, Bucket.INSTALLATION) for s in self._looking_up(bucket)),
            self._names.key(Bucket.INSTALLATION, INSTALLATION_KEY),
        ]
        return Permissions(_inbox(name), _sorted(publish))

    def watching(self, name: str, access: Access) -> Permissions:
        """Return the permissions of an observer: `access`, and the state of streams and durables."""
        rules, main = self.part(name, access), [self._names.stream(stream) for stream in SERVER_STREAMS]
        publish = [
            *rules.publish,
            f"{API}.INFO",
            f"{API}.STREAM.INFO.*",
            *(f"{API}.CONSUMER.{verb}.{stream}" for stream in main for verb in ("LIST", "NAMES")),
            *(f"{API}.CONSUMER.LIST.{stream}" for stream in self._opened),
            *(f"{API}.CONSUMER.INFO.{stream}.*" for stream in main),
            *([self._names.unscreened(ANY, PROBE)] if self._is_screened else ()),
        ]
        return replace(rules, publish=_sorted(publish))

    def receiving(self, permissions: Permissions) -> Permissions:
        """Add the right to store requests to webhooks, if there are any."""
        webhooks = [self._names.webhook(ANY)] if self._names.webhook_stream in self._opened else []
        return replace(permissions, publish=_sorted([*permissions.publish, *webhooks]))

    def fetching(self, permissions: Permissions) -> Permissions:
        """Add the right to fetch tasks for workers over HTTP."""
        names = self._names
        publish = _sorted([*permissions.publish, names.fetch_requests])
        subscribe = (*permissions.subscribe, names.fetch_answers(ANY), names.fetch_calls)
        return replace(permissions, publish=publish, subscribe=subscribe)

    def public(
        self,
        name: str,
        program: str,
        sent: Iterable[str] = (),
        namespaces: Mapping[str, Iterable[str]] | None = None,
    ) -> Permissions:
        """Return the permissions of a program outside that triggers and cancels, and receives public events.

        The server puts the name of the program into the subjects of its requests, and of the answers to them. `sent`: the
        captured subjects on which it may publish. `namespaces`: of the program, each with the jobs whose events it
        receives; None: it may name every job, and receives all events.
        """
        names, answers = self._names, f"{self._names.public_prefix}.answer"
        rests = (REST,) if namespaces is None else tuple(f"{namespace}.{REST}" for namespace in namespaces)
        stored = {
            f"{prefix}.{rest}": f"{subjects.OUTSIDE_INPUTS}{program}.{kind}.{rest}"
            for kind, prefix in (("trigger", names.trigger_prefix), ("cancel", names.cancel_prefix))
            for rest in rests
        }
        screened = dict(self._screened(name, stored.values()))
        requests = {own: screened.get(names.to_wire(of), names.to_wire(of)) for own, of in stored.items()}
        kinds = (CronTriggered, CronSkipped, CronMissed, CronAlert)
        events = (event.split(".")[1] for kind in kinds for event in subjects.filters_of(kind))
        jobs = (REST,) if namespaces is None else tuple(subjects.token(job) for of in namespaces.values() for job in of)
        announced = _sorted(f"{names.public_prefix}.{event}.{job}" for event in events for job in jobs)
        renamed = {**requests, f"{answers}.*.*": f"{answers}.*.{program}.*"}
        suffix = name.upper().replace("-", "_")
        hears = (f"{answers}.*.*", *announced)
        outside = Outside(suffix, _sorted([*requests, *sent]), hears=hears, renamed=tuple(renamed.items()))
        rules = _outside(name, outside)
        return replace(rules, subscribe=(f"{answers}.>", *announced))

    def mq_executor(self, name: str, *, team: str | None = None, teams: Iterable[str] = ()) -> Permissions:
        """Return the permissions of external workers, which know only hip-62's subjects.

        They consume `mq.scheduled.…` and reply on `mq.scheduler.complete.…`. Those of a team, a namespace, have a durable of their
        own and reply for its jobs alone; all others reply for no job of `teams`.
        """
        durable = subjects.JOB_EXECUTORS if team is None else subjects.mq_executors(team)
        pull, *others = self._consuming(DurableSpec(durable, Stream.MQ, ()))
        of = REST if team is None else f"{team}.{REST}"
        answers, cancels = (f"{self._names.mq_prefix}.scheduler.{what}.{of}" for what in ("complete", "cancel"))
        renamed = self._screened(name, (f"mq.scheduler.complete.{of}",))
        foreign = tuple(f"{self._names.mq_prefix}.scheduler.complete.{other}.{REST}" for other in teams)
        outside = Outside(
            "MQ" if team is None else f"MQ_{team.upper().replace('-', '_')}",
            _sorted([*others, answers]),
            (pull,),
            (cancels,),
            renamed,
            withheld=tuple((subject, f"{self._names.root}_withheld.{subject}") for subject in foreign),
        )
        return replace(_outside(name, outside), deny_publish=foreign)

    def api_client(self, name: str, requests: str) -> Permissions:
        """Return the permissions of programs that use the API over NATS."""
        return _outside(name, Outside("API", (requests,)))

    def _consuming(self, durable: DurableSpec) -> Iterator[str]:
        consumer = f"{self._names.stream(durable.stream)}.{durable.name}"
        yield f"{API}.CONSUMER.MSG.NEXT.{consumer}"
        yield f"{API}.CONSUMER.INFO.{consumer}"
        yield f"$JS.ACK.{consumer}.>"

    def _hearing_events(self) -> Iterator[str]:
        for stream in self._opened:
            yield f"{API}.CONSUMER.NAMES.{stream}"
            for verb in ("INFO", "MSG.NEXT", "DELETE"):
                yield f"{API}.CONSUMER.{verb}.{stream}.*"
            yield f"$JS.ACK.{stream}.*.>"
        for stream, opened in self._opened.items():
            for subject in opened:  # the server compares the end of this subject with the filter of the consumer
                yield f"{API}.CONSUMER.CREATE.{stream}.*.{subject}"

    def _reading(self, stream: Stream) -> Iterator[str]:
        name = self._names.stream(stream)
        yield f"{API}.DIRECT.GET.{name}"
        yield f"{API}.DIRECT.GET.{name}.>"
        yield f"{API}.STREAM.MSG.GET.{name}"
        yield f"{API}.STREAM.INFO.{name}"

    def _following(self, stream: Stream) -> Iterator[str]:
        name = self._names.stream(stream)
        yield f"{API}.STREAM.INFO.{name}"
        yield f"{API}.STREAM.MSG.GET.{name}"  # the newest message, which a reader must have received
        for verb in ("CREATE", "MSG.NEXT", "DELETE"):
            yield f"{API}.CONSUMER.{verb}.{name}.*"

    def _on_commits(self, access: Access, *, appends: bool) -> Iterator[str]:
        """Allow every part to read commits, and parts that decide to append."""
        name = self._names.commits_stream
        yield from (f"{API}.STREAM.{verb}.{name}" for verb in ("INFO", "MSG.GET"))
        yield from (f"{API}.CONSUMER.{verb}.{name}.*" for verb in ("CREATE", "MSG.NEXT", "DELETE"))
        yield from self._looking_up(Bucket.SNAPSHOTS)  # where a reader begins
        # What left the stream is in the archive.
        yield f"{API}.DIRECT.GET.{self._names.bucket_stream(Bucket.CURSORS)}.{self._names.key(Bucket.CURSORS, LOG_ARCHIVE)}"
        yield from self._reading_archive()
        if access.keeps_archive:
            yield f"{API}.STREAM.PURGE.{name}"
        if appends:
            yield from (f"{self._names.commits_prefix}.*", self._names.turns)

    def _of_others(self, stream: Stream) -> Iterator[str]:
        # An ephemeral consumer may have any name except those of the durables.
        for durable in self._durables:
            if durable.stream is stream:
                for verb in ("CREATE", "MSG.NEXT", "DELETE"):
                    yield f"{API}.CONSUMER.{verb}.{self._names.stream(stream)}.{durable.name}"

    def _reading_archive(self) -> Iterator[str]:
        name = self._names.archive_stream
        yield f"{API}.STREAM.INFO.{name}"
        yield f"{API}.STREAM.MSG.GET.{name}"
        yield f"{API}.DIRECT.GET.{name}.>"
        yield f"{API}.CONSUMER.CREATE.{name}"
        yield f"{API}.CONSUMER.CREATE.{name}.>"
        yield f"{API}.CONSUMER.DELETE.{name}.*"

    def _keeping_archive(self, streams: Iterable[Stream]) -> Iterator[str]:
        yield f"$O.{self._names.archive_bucket}.>"
        for stream in streams:
            yield f"{API}.CONSUMER.LIST.{self._names.stream(stream)}"
            yield f"{API}.STREAM.PURGE.{self._names.stream(stream)}"

    def _looking_up(self, bucket: Bucket) -> Iterator[str]:
        name = self._names.bucket_stream(bucket)
        yield f"{API}.DIRECT.GET.{name}"
        yield f"{API}.DIRECT.GET.{name}.>"

    def _awaiting(self) -> Iterator[str]:
        """Allow a query whether the first streams of an installation have leaders (`jetstream_wait.await_log`)."""
        for name in (self._names.commits_stream, self._names.bucket_stream(Bucket.INSTALLATION)):
            yield f"{API}.STREAM.INFO.{name}"

    def _announcing(self) -> Iterator[str]:
        log = self._names.stream(Stream.LOG)
        yield from self._names.captured(Stream.LOG)
        yield from (f"{API}.STREAM.{verb}.{log}" for verb in ("INFO", "MSG.GET"))

    def _key(self) -> str:
        bucket = Bucket.INSTALLATION
        return f"{API}.DIRECT.GET.{self._names.bucket_stream(bucket)}.{self._names.key(bucket, INSTALLATION_KEY)}"


def _beside(streams: Iterable[Stream]) -> list[Stream]:
    """Return the streams beside the stream of commits, which every part reads."""
    return [stream for stream in streams if stream not in DECISION_STREAMS]


def _outside(name: str, account: Outside) -> Permissions:
    publish = _sorted([*account.requests, *account.pulls])
    return Permissions(_inbox(name), publish, subscribe=account.hears, outside=account)


def _inbox(name: str) -> str:
    return f"_INBOX_{name}"


def _sorted(some: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(some)))
