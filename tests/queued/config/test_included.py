"""Where configuration files are found, and what they include."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import pgmta.config.config_place
import queued.daemon.queued
import smtpd.cli
from pgmta.config.loader import load, mistakes
from pgmta.errors import ConfigError, StoreUnavailable
from queued.cli.queuectl import main as queuectl
from queued.config import read_config, whole_model
from smtpd.sendmail.settings import read as read_sendmail


def written(folder: Path, **texts: str) -> Path:
    """Write files; return the one that includes the others."""
    for name, text in texts.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / "queued.yaml"


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, whole_model())
    return [text.replace(f"{path.parent}/", "") for text in caught.value.problems]


def test_own_keys_go_before_included_ones(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        queued="include: [site.yaml, host.yaml]\n"
        "delivery:\n  connections: 7\nworkers: [{name: mine}]\n",
        site="environment: {hostname: site.example}\n"
        "delivery: {connections: 3, idle: 9s}\nworkers: [{name: a}, {name: b}]\n",
        host="include: more.yaml\nenvironment: {hostname: host.example}\n",
        more="environment: {hostname: more.example, directory: data}\nshaping: shaping.yaml\n",
        shaping="include: routes.yaml\n",
        routes="routes: [{name: r, domain: a.example, to: mx}]\n",
    )
    config = read_config(path)
    assert (config.delivery.connections, config.delivery.idle) == (7, 9.0)
    assert config.environment.hostname == "host.example"
    assert config.environment.directory == tmp_path / "data"
    assert [worker.name for worker in config.workers] == ["mine"]
    assert [route.name for route in config.routing.routes] == ["r"]


def test_mistakes_name_the_file_of_the_key(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        queued="include: site.yaml\ndelivery:\n  connections: x\n",
        site="\nprocess: {pol: 3s}\nworkers:\n  - {name: a, concurrency: none}\n"
        "log: {level: loud}\nlog: {}\n",
    )
    found = problems(path)
    assert found[0].startswith("queued.yaml:3: delivery.connections: ")
    assert found[1] == "site.yaml:2: process.pol: unknown key; did you mean 'poll'?"
    assert found[2].startswith("site.yaml:4: workers[0].concurrency: ")
    assert found[-1] == "site.yaml:6: log: is written twice, first on line 5"
    later = mistakes(path, [(("process", "poll"), "no"), (("delivery", "idle"), "no")])
    assert [text.rpartition("/")[2] for text in later.problems] == [
        "queued.yaml:2: delivery.idle: no", "site.yaml:2: process.poll: no",
    ]  # fmt: skip


def test_a_list_that_replaces_another_has_its_own_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path, queued="include: site.yaml\nworkers:\n  - {}\n",
        site="workers: [{name: a, where: b}, {nme: c}]\n",
    )  # fmt: skip
    assert len(load(path, whole_model()).workers) == 1
    [text] = mistakes(path, [(("workers", 0, "where"), "no")]).problems
    assert text == f"{path}:3: workers[0].where: no"


def test_mistakes_of_include(tmp_path: Path) -> None:
    path = written(
        tmp_path, queued="\ninclude:\n  - none.yaml\n  - 5\n  - site.yaml\n",
        site="include: queued.yaml\n",
    )  # fmt: skip
    assert problems(path) == [
        "queued.yaml:3: include[0]: none.yaml: No such file or directory",
        "queued.yaml:4: include[1]: expected the path of a file, or a list of paths",
        "site.yaml:1: include: queued.yaml includes itself",
    ]
    written(tmp_path, queued="include: site.yaml\n", site="- no mapping\n")
    assert problems(path) == ["site.yaml:1: expected a mapping of keys at the top"]


def test_included_files_have_bounds(tmp_path: Path) -> None:
    """Neither their number nor their kind stops a start, and each mistake has its place."""
    twice = {f"f{n}": f"include: [f{n + 1}.yaml, f{n + 1}.yaml]\n" for n in range(22)}
    path = written(tmp_path, queued="include: f0.yaml\n", f22="{}", **twice)
    [text] = problems(path)
    assert re.fullmatch(r"f\d+\.yaml:1: include\[\d\]: over 100 files are included", text)
    chain = {f"f{n}": f"include: f{n + 1}.yaml\n" for n in range(300)}
    assert problems(written(tmp_path, **chain)) == [
        "f99.yaml:1: include: over 100 files are included"
    ]
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_text("#" * 1_000_001)
    (tmp_path / "latin").write_bytes(b"# \xe4\n")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="large: has over 1 MB"):
        load(tmp_path / "large", whole_model())
    names = ["fifo", "/dev/zero", "large", '"a\\0b"', '"\\uD800"', "latin", "loop", "."]
    written(tmp_path, queued="include:\n" + "".join(f"- {name}\n" for name in names))
    assert [text.partition("]: ")[2].rpartition(": ")[::2] for text in problems(path)] == [
        ("fifo", "is no regular file"),
        ("/dev/zero", "is no regular file"),
        ("large", "has over 1 MB"),
        ("a\0b", "is no path"),
        ("\ud800", "is no path"),
        ("latin", "is not UTF-8"),
        ("loop", "Too many levels of symbolic links"),
        (str(tmp_path), "Is a directory"),
    ]


@pytest.mark.parametrize("text", ["{}", "0{}", "*{}", "- 0{}\n- !x {}\n", "!y!z {}", "&{0} &{0}"])
def test_an_included_text_that_is_no_mapping_stays_out_of_errors(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, queued="include: site.yaml\n", site=text.replace("{}", "1234567"))
    [reason] = problems(path)
    assert reason.startswith("site.yaml:1: ")
    assert "1234567" not in reason


def unreachable(_: object) -> str:
    raise StoreUnavailable("no server here")


def test_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PGMTA_CONFIG goes before /etc/pgmta, and that before etc; the error names the places."""
    commands = {"queued": queued.daemon.queued.main, "smtpd": smtpd.cli.main}

    def check(name: str) -> Result:
        return CliRunner().invoke(commands[name], ["check"])

    system = tmp_path / "system"
    monkeypatch.setattr(pgmta.config.config_place, "SYSTEM_FOLDER", system)
    monkeypatch.chdir(tmp_path)
    done = check("smtpd")
    expected = f"error: there is neither {system}/smtpd.yaml nor etc/smtpd.yaml: give -c FILE"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, expected)
    with monkeypatch.context() as patch:
        patch.setattr("queued.cli.options.queue_command.existing", unreachable)
        done = CliRunner().invoke(queuectl, ["database", "migrate"])
    assert "etc/queued.yaml does not exist: the defaults hold" in done.stderr
    assert f"PostgreSQL in {tmp_path}/var\n" in done.stderr
    text = "environment: {database: {uri: 'postgresql://postgres@127.0.0.1:1/x'}}\n"
    for folder in (tmp_path / "etc", system, tmp_path / "other"):
        folder.mkdir()
        for name in commands:
            (folder / f"{name}.yaml").write_text(text)
            place = folder / f"{name}.yaml" if folder.name != "etc" else f"etc/{name}.yaml"
            if folder.name == "other":
                monkeypatch.setenv("PGMTA_CONFIG", str(folder))
            assert check(name).stdout == f"{place}: ok\n"
    monkeypatch.setenv("PGMTA_CONFIG", str(system / "queued.yaml"))
    assert check("queued").stdout == f"{system}/queued.yaml: ok\n"
    monkeypatch.setenv("PGMTA_CONFIG", "none")
    for words in (["list"], ["database", "migrate"]):
        done = CliRunner().invoke(queuectl, words)
        assert done.exit_code == 2
        assert "error: there is no none (PGMTA_CONFIG): give -c FILE\n" in done.stderr


def test_errors_have_one_spelling(tmp_path: Path) -> None:
    path = tmp_path / "queued.yaml"
    path.write_text("proces: {}\n")
    for words in (
        ["list", "-c", str(path)],
        ["list", "--limt", "3"],
        ["lst"],
        ["list", "--count", "-c", "x"],
    ):
        done = CliRunner().invoke(queuectl, words)
        assert done.exit_code == 2
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "Error" not in done.stderr


def test_settings_of_sendmail_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sendmail.conf").write_text("timeout = 7\n")
    monkeypatch.delenv("PGMTA_SENDMAIL_CONF", raising=False)
    monkeypatch.setenv("PGMTA_CONFIG", str(tmp_path))
    assert read_sendmail().timeout == "7"
    monkeypatch.chdir(tmp_path)
    for elsewhere in (".", "queued.yaml"):
        monkeypatch.setenv("PGMTA_CONFIG", elsewhere)
        assert read_sendmail().timeout != "7"
