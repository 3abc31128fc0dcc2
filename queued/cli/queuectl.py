"""The command `queuectl` of operators: commands of the core, each a file, and of features."""

from __future__ import annotations

import click

from pgmta.features import features, named_paths
from queued.cli.options.lazy_group import LazyCommand, LazyGroup

COMMANDS: dict[str, LazyCommand] = {
    "bounce": LazyCommand(
        "queued.cli.commands.change:bounce",
        "Give rows up: queued sends each sender a DSN.",
    ),
    "cancel": LazyCommand(
        "queued.cli.commands.submission:cancel",
        "Stop mail that is not delivered yet.",
    ),
    "database": LazyCommand(
        "queued.cli.installation.database:database",
        "Bring the schema up to date, change partitions, and run the embedded PostgreSQL.",
    ),
    "delete": LazyCommand(
        "queued.cli.commands.change:delete",
        "Ask queued to delete rows.",
    ),
    "dkim": LazyCommand(
        "queued.cli.commands.dkim:dkim",
        "Make, list and test the keys that sign mail (DKIM).",
    ),
    "doctor": LazyCommand(
        "queued.cli.doctor.doctor:doctor",
        "Check database, queue, files, host and DNS, and print a remedy for each fault.",
    ),
    "explain": LazyCommand(
        "queued.cli.commands.explain:explain",
        "Explain a message: status, worker, what it waits for, every attempt, DSNs.",
    ),
    "explain --reply": LazyCommand(
        "queued.cli.commands.classify:classify",
        "Show the answer class of REPLY, and the rule that decided.",
    ),
    "find": LazyCommand(
        "queued.cli.commands.find:find",
        "Find mail by addresses, domain, Message-ID, client or metadata, also when it has left.",
    ),
    "forget": LazyCommand(
        "queued.cli.commands.forget:forget",
        "Remove all about the person with ADDRESS: mail that waits, log, transcripts, lists.",
    ),
    "hold": LazyCommand(
        "queued.cli.commands.change:hold",
        "Put rows on hold.",
    ),
    "init": LazyCommand(
        "queued.cli.installation.init:init",
        "Write smtpd.yaml, queued.yaml and shaping.yaml into FOLDER (/etc/pgmta).",
    ),
    "token": LazyCommand(
        "queued.cli.commands.token:token",
        "Make keys of signed tokens, and verify tokens without a database.",
    ),
    "list": LazyCommand(
        "queued.cli.commands.list:list_rows",
        "List rows of the queue, oldest first.",
    ),
    "list --count": LazyCommand(
        "queued.cli.commands.count:count",
        "Count rows by a column; with --since attempts, also those of mail that left.",
    ),
    "logs": LazyCommand(
        "queued.cli.commands.follow_log:logs",
        "Follow the log: each attempt as it ends, until Ctrl-C.",
    ),
    "release": LazyCommand(
        "queued.cli.commands.change:release",
        "Give held rows back to the queue, due now, or at the time of scheduled mail.",
    ),
    "retry": LazyCommand(
        "queued.cli.commands.change:retry",
        "Make waiting rows due now.",
    ),
    "route": LazyCommand(
        "queued.cli.commands.route:route",
        "Show where the mail for an address goes: route, hosts, TLS policy.",
    ),
    "rule": LazyCommand(
        "queued.cli.commands.rules:rule",
        "Hold mail by standing rules, also mail that comes later.",
    ),
    "send": LazyCommand(
        "queued.cli.commands.send:send",
        "Compose mail from parts or a template, put it into the queue, and print its id.",
    ),
    "send --raw": LazyCommand(
        "queued.cli.commands.submission:submit",
        "Put the message in FILE into the queue, and print its id.",
    ),
    "set": LazyCommand(
        "queued.cli.commands.change:set_values",
        "Set priority or metadata of rows.",
    ),
    "show": LazyCommand(
        "queued.cli.commands.show:show",
        "Show a message: headers, recipients, next attempt, every attempt so far, and DSNs.",
    ),
    "status": LazyCommand(
        "queued.cli.commands.submission:status",
        "Show the state of each recipient of messages, also of those that have left the queue.",
    ),
    "template": LazyCommand(
        "queued.cli.commands.template:template",
        "Store, show and try templates of composed mail.",
    ),
    "trace": LazyCommand(
        "queued.cli.commands.trace:trace",
        "Keep the transcript of every attempt that matches, and print it as it comes.",
    ),
    "up": LazyCommand(
        "queued.cli.commands.up:up",
        "Run the database, smtpd, one queued and a development sink until Ctrl-C.",
    ),
    "user": LazyCommand(
        "queued.cli.commands.user:user",
        "Add, change and list the users who may log in to smtpd.",
    ),
    "workers": LazyCommand(
        "queued.cli.commands.workers:workers",
        "Show workers, what each matches and its lag, and rows that no worker matches.",
    ),
}
"""The commands of the core, and further forms of them. A test compares each line with the help."""


TASKS: dict[str, tuple[str, ...]] = {
    "Mail": (
        "send", "status", "cancel", "list", "find", "show", "explain", "logs", "trace",
        "hold", "release", "retry", "bounce", "delete", "set", "rule",
    ),
    "Next hops": ("workers", "route"),
    "Programs and people": ("template", "token", "forget"),
    "Installation": ("init", "database", "user", "dkim", "doctor", "up"),
}  # fmt: skip
"""The headings of the help. Under each, commands of features follow these of the core."""


def all_commands() -> dict[str, LazyCommand]:
    """Return the commands of the core and of the features.

    Raises FeatureError if two of them have one name.
    """
    added = {name: each for feature in features().values()
             for name, each in feature.commands.items()}  # fmt: skip
    return COMMANDS | {
        name: LazyCommand(path, added[name].line, added[name].also)
        for name, path in named_paths("commands", COMMANDS, "command").items()
    }


def all_tasks() -> dict[str, tuple[str, ...]]:
    """Return the headings of the help, each with its commands."""
    found = dict(TASKS)
    for feature in features().values():
        for name, each in feature.commands.items():
            found[each.task] = (*found.get(each.task, ()), name)
    return found


@click.group(cls=LazyGroup, lazy=all_commands, tasks=all_tasks)
@click.version_option(  # not version_option(), because its module imports psycopg
    package_name="pgmta", prog_name="queuectl", message="%(prog)s (pgmta) %(version)s"
)
def main() -> None:
    """Show and change the queue."""
    # here, because --help needs no logs, whose import takes 0.2 s
    from pgmta.logs import keep_off_stdout

    keep_off_stdout()
