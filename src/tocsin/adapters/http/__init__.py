"""The HTTP API (hip-62, API Endpoints; ojs-cron §8). Stateless: any number of copies serve one installation.

Every change is a fact that `registry.Registry` and the operations append; every answer about one job or one execution is
folded from the log at that moment, so that a read after a write sees it whichever copy is asked. Lists of executions and
dead letters come from the history, a moment behind.

    request → headers, limits → who (security) → idempotency → handler → facts, or a read
                                                      └ what goes wrong → problems (RFC 9457, or the OJS error shape)
"""
