"""What an operator does to executions, for the command line and the HTTP API alike: one module for each group of verbs.

cancellation.py   ends executions before their time
dead_letters.py   shows, replays and resolves what failed for good
backfill.py       runs a job for instants of the past
finding.py        from what somebody types to the execution that is meant

Each change is a fact that the domain decides on and the log's guard accepts; `by` and `reason` are recorded with it
(hip-62, Audit Trail). What cannot be done raises a `Refusal`, whose text is the whole explanation.
"""
