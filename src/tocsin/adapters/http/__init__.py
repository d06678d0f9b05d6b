"""The HTTP API (hip-62, API Endpoints; ojs-cron §8).

It is stateless: any number of copies serve an installation.

`services.jobs.Registry` and the operations append every change to the log as an event. An answer about a single job or
execution is folded from the log at that moment, so a read after a write sees the write on every copy. Lists of executions
and dead letters come from the history, which follows the log with a short delay. Handlers and their helpers raise `Problem`, or an
error of a service, and one place answers it.

    request → headers, limits → caller (auth) → idempotency → handler → events, or a read
                                                      └ exceptions → problems (RFC 9457, or the OJS error shape)
"""
