"""Units of systemd and the Compose file: settings, commands and references exist, and services are confined."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.settings import ServerSettings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SETTINGS = {f"LAKESHARE_{name.upper()}" for name in LakeSettings.model_fields | ServerSettings.model_fields}
# Variables of Compose itself and of the images' tags, not of lakeshare.
COMPOSE_ONLY = {"LAKESHARE_VERSION", "LAKESHARE_IMAGES"}
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|_KEY$")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "/lakeshare-" in service["image"]]
CONFINED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}


@cache
def find_program(name: str) -> click.Command:
    """The command line of a program of the environment."""
    if name == "lakeshare":
        from lakeshare_pipelines.cli.main import app

        found = typer.main.get_command(app)
    elif name == "dagster":
        from dagster._cli import create_dagster_cli

        found = create_dagster_cli()
    elif name == "dagster-daemon":
        from dagster._daemon.cli import create_dagster_daemon_cli

        found = create_dagster_daemon_cli()
    elif name == "dagster-webserver":
        from dagster_webserver.cli import dagster_webserver

        found = dagster_webserver
    else:
        raise LookupError(name)
    assert isinstance(found, click.Command)
    return found


def parse_command(words: Sequence[str]) -> None:
    """Parses a command line as its program does, without running it. Raises click.UsageError for a wrong one."""
    workspace = str(DEPLOY / "systemd" / "workspace.yaml")
    arguments = [workspace if word == "/etc/lakeshare/workspace.yaml" else word for word in words[1:]]
    command = find_program(words[0])
    context = command.make_context(words[0], arguments)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


def read_unit(path: Path) -> dict[str, list[str]]:
    """The values of a unit by `Section.Key`; a key may be there several times."""
    values: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            values.setdefault(f"{section}.{key}", []).append(value)
    return values


def list_commands(unit: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """The commands of a unit that are programs of lakeshare's environment."""
    for line in (*unit.get("Service.ExecStartPre", []), *unit["Service.ExecStart"]):
        program, *arguments = shlex.split(line)
        if Path(program).parent == Path("/opt/lakeshare/bin"):
            yield [Path(program).name, *arguments]


def read_environment(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(text))


def test_a_wrong_command_line_is_found() -> None:
    parse_command(["lakeshare", "share", "add", "sales", "lake.orders"])
    for line in (
        "lakeshare serv",
        "lakeshare serve --prt 1",
        "dagster-daemon run --workspce x",
        "dagster api grp",
    ):
        with pytest.raises(click.UsageError):
            parse_command(shlex.split(line))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_exists_with_settings_that_exist_and_is_confined(path: Path) -> None:
    unit = read_unit(path)
    commands = list(list_commands(unit))
    assert len(commands) == (2 if path.stem == "lakeshare-dagster-daemon" else 1)
    for words in commands:
        parse_command(words)
    [text] = unit["Service.Environment"]
    environment = read_environment(text)
    assert {name for name in environment if name.startswith("LAKESHARE_")} <= SETTINGS
    # All folders that are written are those that systemd makes for the unit.
    made = [f"/var/lib/{name}" for name in unit["Service.StateDirectory"][0].split()]
    made += [f"/var/cache/{name}" for name in unit.get("Service.CacheDirectory", [])]
    assert {value for value in environment.values() if value.startswith("/")} <= set(made)
    assert {key: unit[f"Service.{key}"] for key in CONFINED} == {
        key: [value] for key, value in CONFINED.items()
    }
    assert unit["Service.User"] == ["lakeshare"]
    assert (unit["Service.Restart"], unit["Install.WantedBy"]) == (["on-failure"], ["multi-user.target"])
    wanted = {
        name for key in ("After", "Wants") for name in unit[f"Unit.{key}"][0].split() if "lakeshare" in name
    }
    assert wanted <= {other.name for other in UNITS}


def test_files_beside_the_units_name_settings_that_exist_and_hold_no_secret() -> None:
    assert [path.stem for path in UNITS] == [
        "lakeshare-dagster-daemon",
        "lakeshare-dagster-webserver",
        "lakeshare-metrics",
        "lakeshare-server",
    ]
    lines = re.findall(r"^#?(\w+)=(.*)$", (DEPLOY / "systemd" / "lakeshare.env").read_text(), re.MULTILINE)
    assert lines
    assert {name for name, _ in lines} <= SETTINGS
    [location] = yaml.safe_load((DEPLOY / "systemd" / "workspace.yaml").read_text())["load_from"]
    assert location["python_module"]["module_name"] == "lakeshare_pipelines.definitions"
    assert re.findall(
        r"^u (\w+) ", (DEPLOY / "systemd" / "lakeshare.sysusers").read_text(), re.MULTILINE
    ) == ["lakeshare"]


def list_environment(service: Mapping[str, Any]) -> dict[str, str]:
    return dict(service.get("environment") or {})


@pytest.mark.parametrize("name", SERVICES)
def test_a_compose_service_refers_to_what_exists(name: str) -> None:
    service = SERVICES[name]
    environment = list_environment(service)
    assert {key for key in environment if key.startswith("LAKESHARE_")} <= SETTINGS
    for other, wait in service.get("depends_on", {}).items():
        if wait["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert (wait["condition"], SERVICES[other]["restart"]) == ("service_completed_successfully", "no")
    for volume in service.get("volumes", []):
        source = volume.rsplit(":", 2 if volume.endswith(":ro") else 1)[0]
        assert source in COMPOSE["volumes"] or source.startswith("${CONTRACTS:?")
    assert {entry["source"] for entry in service.get("configs", [])} <= set(COMPOSE["configs"])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert name == "setup" or {"test", "interval", "timeout"} <= set(service["healthcheck"])
    image, _, tag = (
        service["image"].rpartition(":${") if "${" in service["image"] else service["image"].rpartition(":")
    )
    assert image
    assert tag not in ("", "latest")


@pytest.mark.parametrize("name", OURS)
def test_our_services_are_confined_and_run_commands_that_exist(name: str) -> None:
    service = SERVICES[name]
    assert (service["user"], service["cap_drop"]) == ("10001:10001", ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "state:/var/lib/lakeshare" in service["volumes"]
    if name != "setup":
        parse_command([*service["entrypoint"], *service["command"]])
        kind, *words = service["healthcheck"]["test"]
        assert kind == "CMD"
        if words[0] == "python3":
            compile(words[2], "healthcheck", "exec")
        else:
            parse_command(words)
    assert service.get("read_only", False) is (name == "server")


def test_the_setup_of_compose_runs_commands_that_exist() -> None:
    script = COMPOSE["configs"]["setup"]["content"].replace("$$", "$")
    [code] = re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", script, re.MULTILINE | re.DOTALL)
    compile(code, "setup", "exec")
    commands = re.findall(r"^(?:lakeshare|dagster) .*$", script, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["lakeshare", "dagster"]
    for line in commands:
        parse_command(shlex.split(line))
    assert (DEPLOY / COMPOSE["configs"]["dagster"]["file"]).is_file()
    for name in ("workspace", "dagster", "setup"):
        assert any(entry["source"] == name for each in SERVICES.values() for entry in each.get("configs", []))


def test_secrets_of_compose_have_no_default_and_stand_in_the_example() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    example = (DEPLOY / "compose.env.example").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    optional = set(re.findall(r"\$\{(\w+):-", text))
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", text)) == required | optional
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == required
    assert set(re.findall(r"^#(\w+)=", example, re.MULTILINE)) == optional
    for service in SERVICES.values():
        for name, value in list_environment(service).items():
            assert not SECRET.search(name) or re.fullmatch(r"\$\{\w+:\?.*\}", value), name
    identities = re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1", COMPOSE["configs"]["identities"]["content"])
    [identity] = json.loads(identities)["identities"]
    assert identity["credentials"] == [{"accessKey": "S3_ACCESS_KEY", "secretKey": "S3_SECRET_KEY"}]
    assert set(re.findall(r"LAKESHARE_[A-Z0-9_]+", text + example)) <= SETTINGS | COMPOSE_ONLY
