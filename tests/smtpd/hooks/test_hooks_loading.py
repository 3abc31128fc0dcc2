"""Which handlers can be loaded, and the errors for others: file, line, key and reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pgmta.config.loader import load
from pgmta.errors import ConfigError
from smtpd.cli import main
from smtpd.config import SmtpdConfig
from smtpd.hooks.hook_set import HookSet
from tests.support.waiting import PATIENCE, until

SLOW = """
import pathlib
import time

class Slow:
    def __init__(self):
        pathlib.Path({path!r}).touch()
        time.sleep(3600)

    async def handle_DATA(self, server, session, envelope): ...
"""

MODULE = """
class Refuse:
    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):
        return "550 no"

class Named:
    def __init__(self, name, *, upper=False):
        self.name = name
    async def handle_DATA(self, server, session, envelope):
        return "250 OK"

class Old:
    async def handle_EHLO(self, server, session, envelope, hostname):
        await server.push("250-PUSHED")
        return "250 HELP"

class Plain:
    def handle_RCPT(self, server, session, envelope, address, rcpt_options):
        return "550 no"

class Misspelt(Refuse):
    async def handle_RCTP(self, server, session, envelope, address, rcpt_options): ...
    async def handle_data(self, server, session, envelope): ...
    async def handle_message(self, message): ...

class Few:
    async def handle_RCPT(self, server, session, envelope, address): ...

class Nothing:
    def process_message(self, peer, mail_from, rcpt_tos, data): ...

class Unused(Refuse):
    async def handle_PROXY(self, server, session, envelope, proxy_data): ...
    def auth_callback(self, mechanism, login, password): ...

class Users:
    auth_database = "users"
    async def handle_AUTH(self, server, session, envelope, args): ...
    async def auth_PLAIN(self, server, args): ...
    def auth_X__OTHER(self, server, args): ...
    def authenticator(self, server, session, envelope, mechanism, auth_data): ...

class Judge:
    def __init__(self, path): ...
    def __call__(self, server, session, envelope, mechanism, auth_data): ...

def judge(server, session, envelope, mechanism, auth_data): ...

class BadUsers:
    authenticator = 5
    def auth_PLAIN(self, server): ...
    def auth_MECHANISM_WITH_LONG_NAME(self, server, args): ...

class Beside:
    async def handle_CONNECT(self, server, session, envelope): ...
    async def handle_HEADER(self, server, session, envelope, header): ...
    async def handle_DISCONNECT(self, server, session, envelope): ...
    def handle_STARTTLS(self, server, session, envelope): ...

class Fails:
    def __init__(self):
        raise OSError("disk full")

instance = Refuse()
number = 5

def factory(name="x"):
    return Named(name)

async def slow_factory():
    return Named("x")

def nothing():
    return None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "site_hooks.py").write_text(MODULE)
    (tmp_path / "broken_hooks.py").write_text("import there_is_no_such_module\n")
    (tmp_path / "wrong_hooks.py").write_text("x = 1\nx.y\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.endswith("_hooks"):
            del sys.modules[name]


async def loaded(folder: Path, text: str) -> HookSet:
    path = folder / "smtpd.yaml"
    path.write_text(text)
    hooks = await HookSet().load_hooks(load(path, SmtpdConfig), path)
    await hooks.stop(0.0)
    return hooks


PROBLEMS = {
    "site_hook:Refuse": "there is no module 'site_hook'; did you mean 'site_hooks'?",
    "filter:Refuse": "there is no module 'filter', neither installed nor in ",
    "aiosmtpd.handler:Debugging": "there is no module 'aiosmtpd.handler'; "
    "did you mean 'aiosmtpd.handlers'?",
    "broken_hooks:X": "module broken_hooks raised ModuleNotFoundError: No module named "
    "'there_is_no_such_module' (",
    "wrong_hooks:X": "module wrong_hooks raised AttributeError: 'int' object has no ",
    "site_hooks:Refuze": "site_hooks has no 'Refuze'; did you mean 'Refuse'?",
    "site_hooks:zzz": "site_hooks has no 'zzz'; its handlers: Beside, ",
    "site_hooks:number": "site_hooks:number is neither a class, a handler nor a function",
    "site_hooks:Named": "arguments of site_hooks:Named: missing a required argument: 'name'",
    "site_hooks:Fails": "site_hooks:Fails raised OSError: disk full (",
    "site_hooks:nothing": "site_hooks:nothing returned None, not a handler",
    "site_hooks:slow_factory": "site_hooks:slow_factory is `async def`: smtpd calls it without",
    "site_hooks:Plain": "handle_RCPT is not `async def`: smtpd awaits it (sync: thread takes plain "
    "functions)",
    "site_hooks:BadUsers": "authenticator can't be called; auth_MECHANISM_WITH_LONG_NAME: "
    "'MECHANISM_WITH_LONG_NAME' is no name of a mechanism (RFC 4422); "
    "auth_PLAIN does not take 2 arguments; see docs/programs/hooks.md",
    "{authenticator: site_hooks:number}": "site_hooks:number is neither a class nor a function",
    "{authenticator: site_hooks:judge, arguments: [1]}": "site_hooks:judge is an authenticator "
    "already: it takes no arguments",
    "{authenticator: site_hooks:Judge}": "arguments of site_hooks:Judge: missing a required",
    "{authenticator: site_hooks:Refuse}": "site_hooks:Refuse has no method __call__",
    "{handler: site_hooks:Refuse, authenticator: site_hooks:judge}": "expected either handler or "
    "authenticator",
    "{arguments: [1]}": "expected either handler or authenticator",
    "{handler: site_hooks:Refuse, on_failure: ignore}": "should be 'accept', 'defer' or 'reject'",
    "{handler: site_hooks:Refuse, sync: threads}": "should be 'loop' or 'thread'; did you mean",
    "site_hooks:Misspelt": "unknown method handle_RCTP; did you mean 'handle_RCPT'?; "
    "unknown method handle_data; did you mean 'handle_DATA'?",
    "site_hooks:Few": "handle_RCPT does not take 5 arguments; see docs/programs/hooks.md",
    "site_hooks:Nothing": "Nothing has no method handle_…; write handle_DATA for process_message",
    "aiosmtpd.handlers:Sink": "Sink has no method handle_…; known: handle_HELO, ",
    "aiosmtpd.handlers:Message": "arguments of aiosmtpd.handlers:Message: ",
}


@pytest.mark.parametrize("reference", PROBLEMS)
async def test_what_is_wrong_with_a_handler(folder: Path, reference: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await loaded(folder, f"relay: {{}}\nhooks:\n  - site_hooks:Refuse\n  - {reference}\n")
    (problem,) = caught.value.problems
    expected = f"{folder}/smtpd.yaml:4: hooks[1]: {PROBLEMS[reference]}"
    if reference.endswith(":Message"):
        expected = f"{folder}/smtpd.yaml:4: hooks[1]: {reference} raised TypeError: Can't inst"
    key = next((key for key in ("on_failure", "sync") if key in reference), "")
    expected = expected.replace("[1]:", f"[1].{key}:") if key else expected
    assert problem.startswith(expected), problem


async def test_all_mistakes_of_all_listeners_are_told(folder: Path) -> None:
    text = """
hooks: [site_hooks:Refuze]
listen:
  - port: 2600
    hooks:
      - handler: site_hooks:Named
        arguments: [1, 2]
      - {handler: site_hooks:instance, arguments: [1]}
  - port: 2601
"""
    with pytest.raises(ConfigError) as caught:
        await loaded(folder, text)
    assert [problem.rpartition("smtpd.yaml:")[2] for problem in caught.value.problems] == [
        "2: hooks[0]: site_hooks has no 'Refuze'; did you mean 'Refuse'?",
        "6: listen[0].hooks[0]: arguments of site_hooks:Named: too many positional arguments",
        "8: listen[0].hooks[1]: site_hooks:instance is a handler already: it takes no arguments",
    ]


async def test_a_listener_whose_relay_is_the_hooks_needs_handle_rcpt(folder: Path) -> None:
    listener = "listen:\n  - port: 2600\n    relay: hook\n"
    for hooks in ("", "hooks: [site_hooks:factory]\n"):
        with pytest.raises(ConfigError) as caught:
            await loaded(folder, listener + hooks)
        assert caught.value.problems == [
            f"{folder}/smtpd.yaml:3: listen[0].relay: "
            "hook: no hook of this listener has a method handle_RCPT"
        ]
    hooks_of = (await loaded(folder, listener + "hooks: [site_hooks:Refuse]\n")).phases
    assert list(hooks_of[0].commands) == [b"RCPT"]
    assert not hooks_of[0].content


async def test_classes_objects_factories_arguments_and_lists_of_listeners(folder: Path) -> None:
    text = """
hooks:
  - site_hooks:instance
  - {handler: site_hooks:Named, arguments: [inbox]}
  - site_hooks:factory
  - site_hooks:Old
listen:
  - {port: 2600}
  - {port: 2601, hooks: []}
  - {port: 2602, hooks: [site_hooks:Unused]}
  - {port: 2603}
"""
    hooks = await loaded(folder, text)
    instance, named, made, old = hooks.phases[0].hooks
    assert instance.handler is sys.modules["site_hooks"].instance
    assert [getattr(hook.handler, "name", "") for hook in (named, made)] == ["inbox", "x"]
    assert [step.hook for step in hooks.phases[0].content] == [named, made]
    assert [step.hook for step in hooks.phases[0].commands[b"EHLO"]] == [old]
    assert hooks.phases[1].hooks == ()
    assert hooks.warnings == [
        "site_hooks:Unused: smtpd does not use auth_callback (write authenticator), "
        "handle_PROXY (write handle_CONNECT)"
    ]
    assert hooks.phases[3].hooks == hooks.phases[0].hooks
    assert list(hooks.phases[0].commands) == [b"EHLO", b"RCPT"]


async def test_methods_beside_the_commands(folder: Path) -> None:
    text = """
hooks: [site_hooks:Beside, {handler: site_hooks:Plain, sync: thread}]
listen:
  - {port: 2600, hooks: [site_hooks:Users, {authenticator: site_hooks:judge}]}
  - {port: 2601, hooks: [{authenticator: site_hooks:Judge, arguments: [users]}]}
  - {port: 2602}
"""
    hooks = await loaded(folder, text)
    users, judge, beside = hooks.phases
    assert [len(steps) for steps in (beside.connect, beside.header, beside.disconnect)] == [1] * 3
    assert [step.name for step in beside.starttls] == ["handle_STARTTLS"]
    assert list(beside.commands) == [b"RCPT"]
    assert not beside.auth
    assert list(users.auth.mechanisms) == ["PLAIN", "X-OTHER"]
    assert [step.name for step in users.auth.first] == ["handle_AUTH"]
    assert users.auth.authenticator
    assert users.auth.authenticator.hook.name == "site_hooks:Users"  # the first one
    assert judge.auth.authenticator
    assert judge.auth.authenticator.hook.name == "site_hooks:Judge"


async def test_a_hook_that_fails_makes_no_open_relay(folder: Path) -> None:
    text = """
listen:
  - port: 2600
    relay: hook
    hooks: [{handler: site_hooks:Refuse, on_failure: accept}]
"""
    with pytest.raises(ConfigError) as caught:
        await loaded(folder, text)
    assert caught.value.problems == [
        f"{folder}/smtpd.yaml:4: listen[0].relay: hook: "
        "with on_failure: accept a hook that fails would make an open relay"
    ]


def test_check_loads_the_hooks(folder: Path) -> None:
    path = folder / "smtpd.yaml"
    path.write_text("hooks: [site_hooks:Unused]\n")
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert (result.exit_code, result.stdout) == (0, f"{path}: ok\n")
    assert result.stderr.splitlines() == [
        f"warning: {path}: site_hooks:Unused: smtpd does not use auth_callback (write "
        "authenticator), handle_PROXY (write handle_CONNECT)",
        f"warning: {path}: the database was not checked: the embedded PostgreSQL does not run",
    ]
    path.write_text("hooks: [site_hooks:Refuze]")
    for command in (["check"], ["run", "--plan", "1"]):
        result = CliRunner().invoke(main, [*command, "-c", str(path)])
        reason = "hooks[0]: site_hooks has no 'Refuze'; did you mean 'Refuse'?"
        assert (result.exit_code, result.stderr) == (2, f"error: {path}:1: {reason}\n")
    path.write_text("listen: [{relay: hook}]")
    for command in (["check"], ["run", "--plan", "1"]):
        result = CliRunner().invoke(main, [*command, "-c", str(path)])
        reason = "listen[0].relay: hook: no hook of this listener has a method handle_RCPT"
        assert (result.exit_code, result.stderr) == (2, f"error: {path}:1: {reason}\n")


def test_a_signal_ends_the_start_while_a_handler_is_made(folder: Path) -> None:
    made = folder / "made"
    (folder / "slow_hooks.py").write_text(SLOW.format(path=str(made)))
    path = folder / "smtpd.yaml"
    path.write_text("hooks: [slow_hooks:Slow]")
    command = [sys.executable, "-m", "smtpd", "run", "-c", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(made.exists)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")


def test_a_module_that_ends_its_process_is_an_error(folder: Path) -> None:
    path = folder / "smtpd.yaml"
    (folder / "site_ends.py").write_text("import os\nos._exit(3)\n")
    path.write_text("hooks: [site_ends:Handler]")
    result = CliRunner().invoke(main, ["run", "-c", str(path), "--plan", "1"])
    reason = "hooks: a module ends the process that imports it (3)"
    assert (result.exit_code, result.stderr) == (2, f"error: {path}: {reason}\n")


@pytest.mark.parametrize("value", ["handlers", "a.b", "a:b:c", "a b:C", ":C", "a:", "a:1", "1a:C"])
def test_a_reference_is_a_module_and_a_name(folder: Path, value: Any) -> None:
    path = folder / "smtpd.yaml"
    path.write_text(f"hooks:\n  - {{handler: {value!r}}}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, SmtpdConfig)
    assert f"smtpd.yaml:2: hooks[0].handler: expected package.module:Name, not {value!r}" in str(
        caught.value
    )
