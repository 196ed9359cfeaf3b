"""Reporters that press Ctrl-C, so that a run is stopped where a test wants it to be."""

import os
import signal

from streamrf.support.progress import Reporter


class Stops(Reporter):
    """Asks the run to stop after so many blocks of all passes together."""

    def __init__(self, after):
        self.after = after

    def advanced(self, done, checkpoint_age):
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGINT)


class Impatient(Reporter):
    """Asks the run to stop once so many rows of a pass are done."""

    def __init__(self, rows):
        self.rows = rows

    def advanced(self, done, checkpoint_age):
        if done == self.rows:
            os.kill(os.getpid(), signal.SIGINT)
