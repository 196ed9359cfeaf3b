"""Runs that are stopped where a test wants them to be: reporters that press Ctrl-C, and commands that wait or die.

As a program (``python -m tests.interruptions``), a command of streamrf in a process of its own:

- ``held FOLDER ARGS``: after its first save it makes FOLDER/held and waits for FOLDER/go;
- ``killed PLACE COUNT ARGS``: it dies, as by kill -9, when it touches a file below PLACE for the COUNT-th time;
- ``killed-in-pilot`` and ``stopped-in-pilot COUNT ARGS``: it dies, or gets Ctrl-C, after the COUNT-th step of a pilot
  that saves every step.
"""

import os
import signal
import sys
import time
from pathlib import Path

from streamrf.support.progress import Reporter
from streamrf.support.storage.checkpoint import Checkpoint


class Stops(Reporter):
    """Asks the run to stop after so many blocks of all passes together."""

    def __init__(self, after):
        self.after = after

    def advanced(self, done, checkpoint_age):
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGINT)


class Kills(Stops):
    """Ends the process at once, as kill -9 or a power cut would."""

    def advanced(self, done, checkpoint_age):
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Impatient(Reporter):
    """Asks the run to stop once so many rows of a pass are done."""

    def __init__(self, rows):
        self.rows = rows

    def advanced(self, done, checkpoint_age):
        if done == self.rows:
            os.kill(os.getpid(), signal.SIGINT)


def hold_after_a_save(folder):
    save = Checkpoint.save

    def save_and_wait(*args):
        save(*args)
        Checkpoint.save = save
        (folder / "held").touch()
        while not (folder / "go").exists():
            time.sleep(0.005)

    Checkpoint.save = save_and_wait


def die_at(place, count):
    left = count

    def audit(event, args):
        nonlocal left
        if event in ("open", "os.rename", "os.remove", "os.listdir") and any(place in str(arg) for arg in args[:2]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def end_in_the_pilot(number, count):
    """A signal to this process once so many steps of searches are kept."""
    from streamrf.training.pilot import log

    log.SAVE_EVERY = 0.0
    step, left = log.TrialLog._step, count

    def counted(*args):
        nonlocal left
        made = step(*args)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return made

    log.TrialLog._step = counted


def main():
    from streamrf.cli import main as command

    kind, where, *args = sys.argv[1:]
    if kind == "held":
        hold_after_a_save(Path(where))
    elif kind in ("killed-in-pilot", "stopped-in-pilot"):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs of a shell ignore
        end_in_the_pilot(signal.SIGKILL if kind == "killed-in-pilot" else signal.SIGINT, int(where))
    else:
        die_at(where, int(args.pop(0)))
    sys.argv = ["streamrf", *args]
    command()


if __name__ == "__main__":
    main()
