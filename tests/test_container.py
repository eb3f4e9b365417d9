"""Guards that Dockerfile and compose file fit the project. No container is built here.

`pytest -m long tests/test_container.py` runs the build's pip commands in a folder, then the command
of the image, and searches.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from typer.main import get_command

from model_code.project import PROJECT, load_yaml_mapping, plain_yaml
from orchestration import health_check
from orchestration.cli.app import app
from tests.model_code.collection.conftest import make_build

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Commands that need a container: they install packages of Debian, and make a user.
CONTAINER_ONLY = ("apt-get", "useradd")
# Longest start of the service.
START_SECONDS = 120
VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments on one line."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    instructions = []
    for line in joined.splitlines():
        name, _, rest = line.strip().partition(" ")
        if name:
            instructions.append((name, rest.strip()))
    return instructions


def arguments_of(name: str) -> list[str]:
    return [rest for instruction, rest in read_instructions() if instruction == name]


def copied_names() -> list[str]:
    """Return the files and folders that the Dockerfile copies from the clone."""
    names = []
    for rest in arguments_of("COPY"):
        words = rest.split()
        if not words[0].startswith("--from"):
            names.extend(words[:-1])
    return names


@pytest.fixture(scope="module")
def compose() -> dict:
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    return load_yaml_mapping(plain_yaml(), text)


def understand(words: list[str]) -> None:
    """Parse the arguments of `freshet` to their end, without running the command."""
    command = get_command(app).commands[words[0]]
    command.make_context(words[0], list(words[1:]))


def test_every_copied_file_exists():
    names = copied_names()

    assert {"model_code", "orchestration", "assets", "freshet", "pyproject.toml"} <= set(names)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_ignore_file_admits_every_copied_file():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    admitted = [line[1:] for line in lines if line.startswith("!")]

    refused = []
    for name in copied_names():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in admitted):
            refused.append(name)
    assert refused == []


def test_container_does_not_run_as_root():
    users = arguments_of("USER")

    assert users
    assert users[-1] not in ("root", "0")
    assert f"--uid {users[-1]}" in " ".join(arguments_of("RUN"))


def test_entry_point_and_command_exist():
    (program,) = json.loads(arguments_of("ENTRYPOINT")[0])

    assert program in PYPROJECT["scripts"]
    understand(json.loads(arguments_of("CMD")[0]))


@pytest.mark.parametrize("extra", ["full", "gpu"])
def test_installed_extras_exist(extra):
    (command,) = [rest for rest in arguments_of("RUN") if '".[' in rest]
    extras = re.search(r'"\.\[(.+)\]"', command)[1].replace("${EXTRA}", extra).split(",")

    assert set(extras) <= PYPROJECT["optional-dependencies"].keys()


def test_health_check_of_image_asks_a_route():
    (check,) = arguments_of("HEALTHCHECK")
    command = json.loads(check[check.index("[") :])

    require_known_check(command)


def require_known_check(command: list[str]) -> None:
    """Require that a health check runs a module of ours, and asks addresses that exist."""
    from dagster_webserver.webserver import DagsterWebserver

    from orchestration.service.routes import router

    known = {
        8765: {route.path for route in router.routes},
        3000: {"/server_info"} if hasattr(DagsterWebserver, "webserver_info_endpoint") else set(),
        5000: {"/health"},
    }
    assert command[:2] == ["python", "-m"]
    assert find_spec(command[2]) is not None
    for url in command[3:]:
        assert urlsplit(url).path in known[urlsplit(url).port]


def test_compose_commands_are_understood(compose):
    for name in ("search", "pages"):
        understand(compose["services"][name]["command"])


def test_compose_checks_the_health_of_every_service(compose):
    for name, service in compose["services"].items():
        test = service["healthcheck"]["test"]
        assert test[0] == "CMD"
        if name != "database":
            require_known_check(test[1:])


def test_compose_runs_no_service_as_root(compose):
    for service in compose["services"].values():
        is_ours = service["image"] == "freshet-search"
        assert is_ours or service["user"] not in ("root", "0")


def test_compose_reaches_every_database_that_it_creates(compose):
    script = (ROOT / "docker/create_databases.sql").read_text(encoding="utf-8")
    created = set(re.findall(r"CREATE DATABASE (\w+);", script))
    created.add(compose["services"]["database"]["environment"]["POSTGRES_DB"])

    environment = compose["services"]["search"]["environment"]
    used = {address.rpartition("/")[2] for address in environment.values()}

    assert used == created


def test_compose_sets_variables_that_the_code_reads(compose):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "orchestration").rglob("*.py")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "model_code").rglob("*.py")]
    code = "\n".join(texts)

    for name in compose["services"]["search"]["environment"]:
        assert f'"{name}"' in code, f"nothing reads {name}"


def test_compose_mounts_declared_volumes_and_existing_files(compose):
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.removeprefix("${DOCUMENTS:-").split(":")[0]
            is_file_of_clone = source.startswith("./docker")
            if is_file_of_clone:
                assert (ROOT / source).is_file()
            elif not source.startswith("./"):
                assert source in compose["volumes"]


def test_compose_publishes_ports_on_this_machine_only(compose):
    published = []
    for service in compose["services"].values():
        published += service.get("ports", ())

    assert {port.split(":")[0] for port in published} == {"127.0.0.1"}
    assert {port.split(":")[-1] for port in published} == set(arguments_of("EXPOSE")[0].split())


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed; it comes with the extra `test`")

    done = subprocess.run([program, str(ROOT / "Dockerfile")], capture_output=True, text=True)

    assert done.stdout == ""
    assert done.returncode == 0


class TokenHandler(BaseHTTPRequestHandler):
    """Answers 200 to requests with the token, and 401 to others."""

    def do_GET(self):
        has_token = self.headers.get("Authorization") == "Bearer right"
        status = 200 if has_token else 401
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    server = HTTPServer(("127.0.0.1", 0), TokenHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("token", "exit_code"), [("right", 0), ("wrong", 1), (None, 1)])
def test_health_check_sends_the_token(address, token, exit_code, tmp_path, monkeypatch):
    (tmp_path / "params.yaml").touch()
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.setenv(PROJECT, str(tmp_path))
    if token is not None:
        (tmp_path / ".freshet").mkdir()
        (tmp_path / ".freshet/token").write_text(token + "\n")

    assert health_check.main([address]) == exit_code


def test_health_check_fails_for_an_address_without_server(capsys):
    assert health_check.find_problem("http://127.0.0.1:9/health", None).startswith(
        "http://127.0.0.1:9/health: "
    )


def is_reachable(index: str) -> bool:
    try:
        with urlopen(f"{index}/torch/", timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.long
def test_build_steps_install_a_working_command(tmp_path):
    """The pip commands of the Dockerfile, in order, with its folders below `tmp_path`."""
    source = tmp_path / "source"
    for name in copied_names():
        target = source / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    values = dict(rest.split("=", 1) for rest in arguments_of("ARG") if "=" in rest)
    if not is_reachable(values["TORCH_INDEX"]):
        values["TORCH_INDEX"] = "https://pypi.org/simple"
    # The settings of pip count, the clone and its virtual environment do not.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", PROJECT)
    }

    for command in arguments_of("RUN"):
        if any(word in command for word in CONTAINER_ONLY):
            continue
        words = []
        for word in shlex.split(command):
            filled = VARIABLE.sub(lambda match: values[match[1]], word)
            words.append(filled.replace("/opt/freshet", str(tmp_path / "venv")))
        if words[0] == "python":
            words[0] = sys.executable
        subprocess.run(words, cwd=source, env=environment, check=True)

    freshet = tmp_path / "venv/bin/freshet"
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/moss.md").write_text("# Moss\n\nIt grows on stones.")
    for arguments in (["--version"], ["init", "project", "--from", "documents"]):
        subprocess.run([freshet, *arguments], cwd=tmp_path, env=environment, check=True)
    require_service(tmp_path / "venv/bin", environment, tmp_path / "live")


def require_service(programs: Path, environment: dict[str, str], folder: Path) -> None:
    """Run the command of the image and its health check, and search, in a tiny live project.

    Args:
        programs: Folder of `freshet` and `python`.
        environment: Environment variables of the processes.
        folder: Folder of the project, which does not exist yet.
    """
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "params.yaml").write_text("retrievers: {hce: {}}\n")
    (project / "dvc.yaml").touch()
    make_build(folder / "build").open(project)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _, port = free.getsockname()
    command = [programs / "freshet", *json.loads(arguments_of("CMD")[0]), "--port", str(port)]
    check = [programs / "python", "-m", "orchestration.health_check"]
    check.append(f"http://127.0.0.1:{port}/health/live")
    search = [programs / "freshet", "search", "square root of a number", "--json"]

    service = subprocess.Popen(command, cwd=project, env=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(check, cwd=project, env=environment).returncode != 0:
            assert service.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)
        found = subprocess.run(search, cwd=project, env=environment, stdout=subprocess.PIPE)
    finally:
        service.terminate()
        service.wait()

    assert found.returncode == 0
    assert b'"math.sqrt"' in found.stdout


@pytest.mark.full
def test_command_of_image_serves_a_project(tmp_path):
    """The same in this environment, without installing anything."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(PROJECT, None)

    require_service(Path(sys.executable).parent, environment, tmp_path)
