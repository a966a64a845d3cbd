"""The examples, undisturbed and under SIGKILL at random points: the outcome is the same."""

from __future__ import annotations

import configparser
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.engine import ROOT
from tests.shell.conftest import Shell, alive, below, until

EXAMPLES = ROOT / "examples"
NOTIFY = """#!/bin/sh
sleep 0.1
echo "$1" >> "$TARGET/notified"
sleep 0.1
"""


def run(shell: Shell, argv: Sequence[str | Path], env: dict[str, str], kills: int, chance: random.Random) -> int:
    """Start it again and again until it ends well, killing it meanwhile; how many starts it took."""
    for starts in range(1, 30):
        process = subprocess.Popen(
            argv, env={**shell.environ, **env}, cwd=shell.here, stdin=subprocess.DEVNULL, start_new_session=True
        )
        shell.started.append(process)
        if kills:
            time.sleep(chance.uniform(0.2, 2.0))
            tree = [process.pid, *below(process.pid)]
            victims = tree if chance.random() < 0.4 else [chance.choice(tree)]
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            kills -= process.poll() is None
        if process.wait(timeout=120) == 0:
            return starts
    raise AssertionError("it never ended well")


def backup(shell: Shell, kills: int, chance: random.Random) -> dict[str, str]:
    """Three nights of examples/backup.sh, of which two are kept, beside what is not its own."""
    source, target = shell.here / "source", shell.here / "target"
    source.mkdir()
    (target / "0-somebody-else's").mkdir(parents=True)
    (source / "data").write_text("precious\n")
    (shell.here / "notify").write_text(NOTIFY)
    (shell.here / "notify").chmod(0o755)
    env = {"NOTIFY": str(shell.here / "notify"), "TARGET": str(target), "KEEP": "2"}
    script = [EXAMPLES / "backup.sh", source, target]
    for night in ("2026-03-01", "2026-03-02", "2026-03-03"):
        run(shell, [COMMAND, "exec", "backup", "--run", night, "--wait", "60s", "--", *script], env, kills, chance)
    told = sorted(line.split(":")[0] for line in (target / "notified").read_text().splitlines())
    return {"kept": " ".join(sorted(each.name for each in target.iterdir())), "told": " ".join(told)}


def letters(shell: Shell, kills: int, chance: random.Random) -> dict[str, str]:
    """examples/posix.sh with six letters."""
    (shell.here / "letters").write_text("".join(f"letter{number}\n" for number in range(6)))
    delivered = shell.here / "delivered"
    run(shell, [EXAMPLES / "posix.sh", shell.here / "letters"], {"DELIVERED": str(delivered)}, kills, chance)
    return {"delivered": delivered.read_text()}


@pytest.mark.parametrize("kills", [0, 3])
def test_backup_three_nights(shell: Shell, kills: int) -> None:
    """Each night is packed, told of once and thrown away in its turn, however often the script is killed."""
    outcome = backup(shell, kills, random.Random(7))
    assert outcome == {
        "kept": "0-somebody-else's 2026-03-02 2026-03-03 notified",
        "told": "2026-03-01 2026-03-02 2026-03-03",
    }


@pytest.mark.parametrize(("kills", "seed"), [(0, 0), (4, 1), (4, 2)])
def test_posix_letters(shell: Shell, kills: int, seed: int) -> None:
    """A POSIX script that holds its own lease delivers each letter once and in order."""
    outcome = letters(shell, kills, random.Random(seed))
    assert outcome == {"delivered": "".join(f"letter{number}\n" for number in range(6))}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="makes a pid namespace")
def test_a_container_is_drained_and_restarted(shell: Shell) -> None:
    """As the first process: SIGTERM lets the agent finish; killed, the next container goes on after the ttl."""
    step = "recall run --class external --step s -- sh -c 'echo x >> effects'"
    agent = f"{step}; echo $$ > pid; until [ -e go ]; do sleep 0.05; done"
    (shell.here / "bin").mkdir()
    (shell.here / "bin" / "recall").write_text(f'#!/bin/sh\nexec {sys.executable} -m recall_cli "$@"\n')
    (shell.here / "bin" / "recall").chmod(0o755)
    env = {"PATH": f"{shell.here}/bin:{shell.environ['PATH']}", "PYTHONPATH": str(ROOT), "TTL": "2s"}
    container: list[str | Path] = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        EXAMPLES / "entrypoint.sh",
        "sh",
        "-c",
    ]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*container, agent], env={**shell.environ, **env}, cwd=shell.here)
        shell.started.append(process)
        shell.wait("pid")
        (shell.here / "pid").unlink()
        return process

    first = start()
    inside = below(first.pid)
    os.kill(inside[0], signal.SIGKILL)
    first.wait(timeout=30)
    until(lambda: not any(alive(pid) for pid in inside))
    second = start()
    os.kill(below(second.pid)[0], signal.SIGTERM)
    time.sleep(0.3)
    assert second.poll() is None
    (shell.here / "go").touch()
    assert second.wait(timeout=30) == 0
    assert shell.count() == 1


def test_the_systemd_unit_is_sound(shell: Shell) -> None:
    """Its command line is one that recall takes, a drain has time, and systemd itself accepts the file."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / "recall-agent.service")
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[:2] == ["/usr/bin/env", "recall"]
    assert shell.recall(*words[2 : words.index("--")], "--", "true").code == 0
    grace = int(words[words.index("--grace") + 1].removesuffix("s"))
    assert grace < int(service["TimeoutStopSec"].removesuffix("s"))
    assert service["KillMode"] == "mixed"
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", EXAMPLES / "recall-agent.service"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.sh")), ids=lambda path: path.name)
def test_each_script_parses_and_may_be_run(script: Path) -> None:
    """It is executable, and the shell of its first line has nothing against it."""
    assert os.access(script, os.X_OK)
    shell = "bash" if "bash" in script.read_text().splitlines()[0] else "sh"
    assert subprocess.run([shell, "-n", script], check=False).returncode == 0
