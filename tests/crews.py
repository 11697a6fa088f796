"""
Supervisors with workers of the test's own making: small programs that speak the channel's words, and start at once.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

from tests.commands import RunningWorker
from tests.servers import ROOT
from tests.waiting import eventually

PROGRAM = ROOT / "sqlalchemy_brooq/supervisor/__main__.py"

#: Has its constants changed, executes the program as it is.
_CHANGED = """
import runpy, sys
sys.path.append({root!r})
runpy.run_path({program!r}, run_name="changed")["_stay_small"]()
from sqlalchemy_brooq.supervisor import crew, process, surface
{changes}
sys.argv[0] = {program!r}
runpy.run_path({program!r}, run_name="__main__")
"""

#: What every worker begins with. `told` are the lines that the test finds in the file "told".
_WORKER = """
import json, os, select, signal, socket, sys, threading, time

_, wire = os.environ["BROOQ_SUPERVISOR"].split(":")
wire = socket.socket(fileno=int(wire))
lines = wire.makefile("rw")

def told(*words):
    with open("told", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

def say(word, **record):
    lines.write(json.dumps({"say": word, **record}) + "\\n")
    lines.flush()

def settings(listen=None, grace=0.0):
    say("settings", listen=listen, token=None, grace=grace)
    return json.loads(lines.readline())

def ready():
    told("ready", os.getpid())
    say("ready", topics=["t"], slots=1)

def answers(healthy=True):
    for line in lines:
        what = json.loads(line)["what"]
        say("answer", what=what, answer={"healthy": healthy, "slots": 1, "leases": 2} if what == "health" else [])

def works(**given):
    settings(**given)
    ready()
    answers()

told("started", os.getpid())
"""


class RunningCrew(RunningWorker):
    """
    A supervisor of workers that execute *code*.

    Args:
        folder: Where everything happens; the workers find a change of the code.
        code: The workers' program.
        size: How many.
        changes: Statements that change the supervisor's constants.
        within: A command that executes the supervisor's.
        environ: Variables of its environment.
    """

    def __init__(
        self, folder: Path, code: str, size: int = 2, changes: str = "", within: tuple[str, ...] = (), **environ: str
    ) -> None:
        self._folder = folder
        self.change(code)
        (folder / "told").touch()
        orders = {
            "command": [sys.executable, "-I", "worker.py"],
            "processes": size,
            "log": {"level": "INFO", "text": "%(levelname)s %(message)s"},
        }
        program = _CHANGED.format(root=str(ROOT), program=str(PROGRAM), changes=changes)
        super().__init__(
            json.dumps(orders), cwd=folder, command=(*within, sys.executable, "-c", program), stdout=None, **environ
        )

    def change(self, code: str) -> None:
        """
        Let workers that are started from now on execute *code*.
        """
        (self._folder / "worker.py").write_text(_WORKER + textwrap.dedent(code))

    def told(self, word: str) -> list[str]:
        """
        Return what workers told that begins with *word*, without it.
        """
        lines = (self._folder / "told").read_text().splitlines()
        return [line.removeprefix(word).strip() for line in lines if line.split()[0] == word]

    def pids(self, word: str = "ready", number: int = 2) -> list[int]:
        """
        Wait until as many workers have told *word*, and return the pids of all that did.
        """
        eventually(lambda: len(self.told(word)) >= number, message=self.err)
        return [int(pid) for pid in self.told(word)]
