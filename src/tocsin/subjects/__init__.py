# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
"""Every name on the wire: streams, subjects, scopes, durables and buckets.

No other package spells such a name. Subjects here are relative: the NATS adapter adds the installation's root token and
the job's partition (`tocsin.0`) and removes them again, and it maps the public prefixes (`cron.trigger`, `cron.cancel`,
`mq`) onto `public.trigger`, `public.cancel` and `mq`. The subjects of `outside` have no partition.

    ledger.<job>.<event>                                          a job: its definitions and its instants
    execution.<job>.<id>.<event>[.<step>[.<attempt>[.<...>]]]     an execution
    execution.<job>.<id>.admitted.<step>.<attempt>[.<queue>]      an admission that is also the first task
    execution.<job>.<id>.completed[.locked]                       the completion; `locked` if it held its job's lock
    lock.<job>[.<shard>].<event>                                  a lock
    cron.triggered.<job>, cron.skipped.<job>, cron.missed.<job>   public events, republished unchanged
    agent.<name>.<id>.<event>                                     an agent; `all` in place of the id: its name
    queue.<name>.<event>                                          a queue: what operators decided about it
    shards.map.shards-defined                                     the shard map
    policy.scheduler.policy-defined                               the scheduler policy
    namespaces.map.namespaces-defined                             the namespaces
    silences.notifications.silences-defined                       the silences of notifications
    ownership.<resource>.<event>                                  a resource: which agent owns it
    dead-letter.<job>.<id>.<event>[.<number>]                     a dead letter
    unique.<job>.<key>.taken                                      a unique key of an unregistered job
    notification.<job>.<id>.<event>[.<attempt>]                   a notification; `outcome` in place of the id: its job
    trigger.<job>, cancel.<job>.<id>                              inputs: requests of the API and of operators
    public.trigger.<job>, public.cancel.<job>.<id>                inputs: requests of programs without an account of their own
    outside.<program>.trigger.<job>, ….cancel.<job>.<id>          inputs: requests of programs in accounts of their own
    report.<job>.<id>.<outcome>.<step>.<attempt>.<seal>.<claim>  inputs: reports
    enqueue.<job>.<id>                                            inputs: unregistered jobs
    output.<job>.<id>.<step>.<attempt>.<seal>                     output: lines of handlers
    progress.<job>.<id>.<step>.<attempt>.<seal>                   output: progress of attempts
    heartbeat.<job>.<id>.<step>.<attempt>.<seal>                  output: details for the next attempt
    event.<job>.<trigger>                                         output: events that started nothing
    mq.scheduled.<job>, mq.scheduler.complete.<job>.<id>          tasks and answers of MQ executors (hip-62)
    mq.team.<job>                                                 tasks of a namespace with executors of its own
    mq.scheduler.cancel.<job>.<id>                                notices for MQ executors: the work is not needed

`agent.<name>.<id>.hold` and `task.<name>.<id>` are no stored subjects: on them agents send their hold lists and hear
commands. They have no partition (`ports.channels`). Nor are subjects that begin with `fetch`, on which workers over HTTP get tasks
(`ports.channels`).

The stream of the log republishes under `cron.`, and a stream may not republish into subjects that it captures itself. So
`public.trigger.>` and `public.cancel.>` (`cron.trigger.>`, `cron.cancel.>`) are in another stream.

    names       streams, partitions, tokens, durables, buckets
    paths       subjects of messages and of scopes
    codec       from a subject and a body to a message
    filters     filters over many subjects
    stored      stored messages, and inputs that are copies
"""

from .codec import *
from .filters import *
from .names import *
from .paths import *
from .stored import *
