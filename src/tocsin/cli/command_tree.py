"""The commands of the program and the functions that run them."""

from typing import Final

from .runtime.lazy_commands import CommandGroup, Tree

_JOBS: Final[Tree] = {
    "list": "jobs.commands:list_jobs",
    "show": "jobs.commands:show",
    "trigger": "jobs.commands:trigger",
    "pause": "jobs.commands:pause",
    "resume": "jobs.commands:resume",
    "delete": "jobs.commands:delete",
    "apply": "jobs.apply:apply",
    "diff": "jobs.apply:diff",
    "export": "jobs.commands:export",
    "backfill": "jobs.backfill:backfill",
}
_EXECUTIONS: Final[Tree] = {
    "list": "executions.commands:list_executions",
    "show": "executions.commands:show",
    "logs": "executions.commands:logs",
    "cancel": "executions.commands:cancel",
}
_DEAD_LETTERS: Final[Tree] = {
    "list": "executions.commands:list_dead_letters",
    "show": "dead_letters.commands:show",
    "replay": "dead_letters.commands:replay",
    "resolve": "dead_letters.commands:resolve",
    "replay-all": "dead_letters.commands:replay_all",
}
_EVENTS: Final[Tree] = {
    "tail": "events.commands:tail",
    "export": "events.export:export",
    "replay": "events.replay:replay",
    "audit-trail": "events.commands:audit_trail",
}
_AGENTS: Final[Tree] = {
    "list": "agents.commands:list_agents",
    "show": "agents.commands:show",
    "drain": "agents.commands:drain",
    "disable": "agents.commands:disable",
    "enable": "agents.commands:enable",
}
_TOKENS: Final[Tree] = {
    "create": "installation.tokens:create",
    "list": "installation.tokens:list_tokens",
    "revoke": "installation.tokens:revoke",
}

COMMANDS: Final[Tree] = {
    "dev": "dev.command:dev",
    "init": "installation.commands:init",
    "run": "processes.commands:run",
    "serve": "processes.commands:serve",
    "worker": "processes.commands:worker",
    "jobs": CommandGroup("Named jobs and their schedules.", _JOBS),
    "backfill": "jobs.backfill:backfill",
    "schedule": "jobs.schedule:schedule",
    "executions": CommandGroup("Executions of jobs.", _EXECUTIONS),
    "dead-letters": CommandGroup("Executions and messages that failed for good.", _DEAD_LETTERS),
    "agents": CommandGroup("Registered worker processes.", _AGENTS),
    "history": CommandGroup(
        "The read model of executions, which lists are read from.", {"rebuild": "installation.commands:rebuild_history"}
    ),
    "events": CommandGroup("The events of the log.", _EVENTS),
    "tokens": CommandGroup("Tokens for the HTTP API.", _TOKENS),
    "tz": CommandGroup("The time-zone data.", {"refresh": "installation.timezones:refresh"}),
    "why": "jobs.why:why",
    "audit": "events.audit:audit",
    "explain": "jobs.schedule:explain",
    "config": CommandGroup("The settings.", {"show": "installation.commands:show_config"}),
    "status": "installation.status:status",
    "stats": "installation.stats:stats",
    "doctor": "installation.doctor:doctor",
    "permissions": "installation.commands:permissions",
    "version": "installation.commands:version",
}
"""By name, in the order of the help: a group, or `module:function` with a module path below `tocsin.cli`."""
