"""Operations on executions, for the command line and the HTTP API.

The modules: `lookup` finds an execution by its id or its first characters. `cancellation` and `dead_letters` hold
what their names say, `dead_letter_lookup` finds a dead letter. `backfill` and `enqueue` start executions.
`task_claims`, `task_leases` and `worker_answers` serve workers over HTTP. `event_waiter` waits for the result of an
input. `audit_trail` lists the requests of users.

A change is a fact that the domain decides on and the log's guard accepts; `by` and `reason` are recorded with it (hip-62,
Audit Trail). An operation that is not possible raises `OperationError`.
"""
