"""Configuration files: every mistake has a message, and the documented files are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

import queued.cli.queuectl
import queued.daemon.queued
import smtpd.cli
from pgmta.config.loader import load
from pgmta.config.types import (
    FOLDER,
    HostPort,
    parse_duration,
    parse_host_port,
    parse_server,
    parse_size,
)
from pgmta.errors import ConfigError
from queued.config import QueuedConfig, whole_model
from queued.web.web_config import whole_web_config
from smtpd.config import SmtpdConfig

TESTS = Path(__file__).parents[2]
CASES = sorted((TESTS / "bad_configs").iterdir())
COMMANDS: dict[str, tuple[click.Command, list[str]]] = {
    "smtpd": (smtpd.cli.main, ["check"]),
    "queued": (queued.daemon.queued.main, ["check"]),
    "web": (queued.daemon.queued.main, ["web", "--check"]),
}
MODELS: dict[str, type[BaseModel]] = {
    "smtpd": SmtpdConfig,
    "queued": whole_model(),
    "web": whole_web_config(),
}
SECRET = "topsecret"


def check(command: str, path: Path | str) -> Result:
    main, words = COMMANDS[command]
    return CliRunner().invoke(main, [*words, "-c", str(path)])


def test_a_short_wait_shortens_patience() -> None:
    ingest = SmtpdConfig.model_validate({"ingest": {"wait": "5s"}}).ingest
    assert ingest.patience == ingest.wait == 5.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mistakes_are_told(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case)
    files = {file.name: file for file in case.glob("*.yaml")}
    file = files.get("queued.yaml") or next(iter(files.values()))  # it may name another one
    result = check(file.stem, file.name)
    assert result.stderr == (case / "expected").read_text(encoding="utf-8")
    assert (result.exit_code, result.stdout) == (2, "")
    assert SECRET not in result.stderr
    assert all(line.split(":")[1].strip() in files for line in result.stderr.splitlines())


def test_a_mistake_in_the_variable_has_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queued.yaml"
    path.write_text("{}")
    token = 'is no libpq connection string: invalid percent-encoded token: "…"'
    host = "has a host with an @: an @ in a password is written %40"
    for main, words, password, reason in [
        (queued.daemon.queued.main, ["run"], f"{SECRET}%zz", token),
        (queued.daemon.queued.main, ["run"], f"p@{SECRET}", host),
        (queued.cli.queuectl.main, ["list"], f"{SECRET}%zz", token),
        (queued.cli.queuectl.main, ["doctor", "--no-network"], f"p@{SECRET}", host),
    ]:
        monkeypatch.setenv("PGMTA_DATABASE_URI", f"postgresql://u:{password}@127.0.0.1:1/x")
        done = CliRunner().invoke(main, [*words, "-c", str(path)])
        assert f"PGMTA_DATABASE_URI: {reason}" in done.output
        assert SECRET not in done.output


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in [(tmp_path / "none.yaml", "No such file"), (tmp_path, "is a directory")]:
        result = check("queued", path)
        assert (result.exit_code, reason in result.stderr) == (2, True)


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n", "{}", "\ufeff# BOM\n", "null\n"])
def test_files_without_any_option_are_valid(text: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text, encoding="utf-8")
    for command, model in MODELS.items():
        assert check(command, path).exit_code == 0
        assert load(path, model) == defaults(path, model)


def defaults(path: Path, model: type[BaseModel]) -> BaseModel:
    """The defaults of a file at `path`, whose folder is the beginning of paths."""
    return model.model_validate({}, context={FOLDER: path.parent})


def keys(model: type[BaseModel]) -> dict[str, Any]:
    """The tree of a model's options."""
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
        free = getattr(field.annotation, "__origin__", None) is dict  # the keys are the user's
        below = [c for c in inner if isinstance(c, type) and issubclass(c, BaseModel) and not free]
        # a list that is empty by default shows no entry, and a section that is absent no key
        shown = below and field.default not in ([], None)
        tree[field.alias or name] = keys(below[0]) if shown else None
    return tree


def mentioned(data: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """The same tree of what a file mentions; of a list, its first section."""
    data = data[0] if isinstance(data, list) else data
    return {
        key: mentioned(value, tree[key]) if tree.get(key) else None for key, value in data.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_documented_file_shows_every_option_at_its_default(name: str, tmp_path: Path) -> None:
    text = (TESTS.parent / "etc" / f"{name}.yaml").read_text(encoding="utf-8")
    shipped = TESTS.parent / "etc" / f"{name}.yaml"
    assert load(shipped, MODELS[name]) == defaults(shipped, MODELS[name])
    path = tmp_path / f"{name}.yaml"
    path.write_text(re.sub(r"^( *)#(?=[^\s#])", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    tree = keys(MODELS[name])
    assert mentioned(yaml.safe_load(path.read_text(encoding="utf-8")), tree) == tree
    here = {"environment": {"hostname"}, "processes": True}  # defaults depend on the host
    shown, expected = load(path, MODELS[name]), defaults(path, MODELS[name])
    assert shown.model_dump(exclude=here) == expected.model_dump(exclude=here)  # type: ignore[arg-type]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.text(max_size=8),
    st.sampled_from(["1m", "5MB", "mx", "::1", "10.0.0.0/8", "*.example.org", "off", "0777"]),
)
names = st.sampled_from(
    [*SmtpdConfig.model_fields, *QueuedConfig.model_fields, "database", "uri", "where", "dns",
     "servers", "intervals", "networks", "domains", "address", "port", "hops", "*", "timeouts"]
)  # fmt: skip
structures = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(names, scalars), inner, max_size=4)
    ),
    max_leaves=12,
)
fragments = st.lists(
    st.one_of(
        names,
        st.sampled_from(
            [":", ": ", "\n", "  ", "- ", "[", "]", "{", "}", "&a ", "*a", "!!int ", "!!binary ",
             "!x ", "? ", "| ", "> ", "'", '"', "<<", "~", "=", "0x_", "0b_", "1:2", "2024-99-99",
             "1_0", ".inf", "1e999", "0" * 5000, "9" * 5000, "\t", "\0", "\x85", "%", "---\n"]
        ),
    ),
    max_size=14,
).map("".join)  # fmt: skip


@given(
    st.one_of(
        st.dictionaries(names, structures, max_size=4).map(
            lambda data: yaml.dump(data, allow_unicode=True)
        ),
        structures.map(yaml.safe_dump),
        fragments,
    )
)
@example("a: &x [*x]")
@example("[" * 1200)
@example("delivery: {idle: " + "9" * 400 + "}")
@example("environment: {hostname: 2024-99-99}")
@example("routes: {? {a: 1} : mx}")
@example('"a\\nb\\u2028": 1')
def test_no_file_gets_anything_but_a_config_or_its_mistakes(text: str) -> None:
    for name, model in MODELS.items():
        path = FUZZ / f"{name}.yaml"
        path.write_text(text, encoding="utf-8", newline="")
        problems = [f"{path}: "]
        try:
            load(path, model)
        except ConfigError as error:
            problems = error.problems
        assert problems
        assert all(p.startswith(str(path)) and "\n" not in p for p in problems)


FUZZ = Path()


@pytest.fixture(autouse=True, scope="module")
def _fuzz_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FUZZ
    FUZZ = tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((parse_duration, *pair) for pair in [("500ms", 0.5), ("1m30s", 90), ("1h 30m", 5400)]),
        *((parse_duration, *pair) for pair in [("4h", 14400), ("5d", 432000), (1.5, 1.5), (0, 0)]),
        *((parse_size, *pair) for pair in [("1000", 1000), ("64 kb", 65536), ("2G", 1 << 31)]),
        *(
            (parse_size, *pair)
            for pair in [("64KiB", 65536), ("1.5 MB", 3 << 19), ("1TB", 1 << 40)]
        ),
        (parse_host_port, "mx.example.org", HostPort("mx.example.org", 25)),
        (parse_host_port, "[2001:DB8::1]:2525", HostPort("2001:DB8::1", 2525)),
        (parse_server, "[::1]", HostPort("::1", 53)),
        (parse_server, "127.0.0.1:5353", HostPort("127.0.0.1", 5353)),
    ],
)
def test_values(parse: Any, text: Any, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "1.5", "64 K B", "8bit", "50 megabytes", True, 1.5]
)
def test_no_sizes(text: Any) -> None:
    with pytest.raises(ValueError, match="is no size; write for example 1000, 64KB or 50MB"):
        parse_size(text)


def test_every_command_and_option_has_a_help_text() -> None:
    bare = []

    def walk(command: click.Command, name: str) -> None:
        if not command.help:
            bare.append(name)
        options = [option for option in command.params if isinstance(option, click.Option)]
        bare.extend(f"{name} {option.opts[-1]}" for option in options if not option.help)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for child in command.list_commands(context):
                inner = command.get_command(context, child)
                assert inner
                walk(inner, f"{name} {child}")

    mains = [smtpd.cli.main, queued.daemon.queued.main, queued.cli.queuectl.main]
    for name, command in zip(("smtpd", "queued", "queuectl"), mains, strict=True):
        walk(command, name)
    assert bare == []
