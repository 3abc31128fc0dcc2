"""The command `queuectl explain --reply`: what a reply means, and which rule says so."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_json, print_line
from pgmta.config.types import hint
from pgmta.errors import ConfigError, Stage
from queued.answers.answer_rules import AnswerRules
from queued.cli.options.queue_command import command
from queued.config import read_config
from queued.config.answer_text import parse_reply

_STEPS = {stage.value.lower(): stage for stage in Stage if stage}


def _step(_: click.Context, __: click.Parameter, value: str) -> Stage:
    found = _STEPS.get(value.lower())
    if found is None:
        names = [stage.value for stage in Stage if stage]
        raise click.BadParameter(f"no step {value!r}; {hint(value, names)}")
    return found


@command(name="explain --reply", json=True)
@click.option("--host", default="", help="Next hop that said it, for the rules of its provider.")
@click.option(
    "--command",
    "step",
    default=Stage.RCPT.value,
    show_default=True,
    callback=_step,
    metavar="STEP",
    help="Step in which it came: connect, greeting, EHLO, STARTTLS, AUTH, MAIL, RCPT, DATA, "
    '"end of data" and so on.',
)
@click.argument("reply")
def classify(config: Path, host: str, step: Stage, as_json: bool, reply: str) -> None:
    """Show the answer class of REPLY, and the rule that decided.

    REPLY is a reply as logs and bounces have it, on one line or several. Without a code it is the
    reason of an error without a reply.
    """
    parsed = parse_reply(reply)
    if 0 < parsed.code < 400:
        raise ConfigError([f"{parsed.code} is the code of a success, which has no class"])
    rules = AnswerRules(read_config(config, passwords=False).answering)
    answer = rules.read_reply(parsed, host, step)
    if as_json:
        print_json({
            "class": answer.answer_class, "lasting": answer.lasting or None, "rule": answer.rule,
            "code": parsed.code or None, "enhanced": parsed.enhanced or None, "text": parsed.text,
        })  # fmt: skip
        return
    print_line(f"class    {answer.answer_class}")
    if answer.lasting:
        print_line(f"lasting  {answer.lasting}, whatever the code says")
    print_line(f"rule     {answer.rule}")
