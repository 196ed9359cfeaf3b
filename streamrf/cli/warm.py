"""`streamrf warm`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say


@click.command("warm")
@shared.json_option
@shared.quiet_option
def warm_command(**options: Any) -> None:
    """Compile the kernels now, so that no run waits for it: for images and workers.

    A default run then starts as fast the first time as later. The kernels are in numba's cache: beside the installed
    package, or in the folder that NUMBA_CACHE_DIR names, which runs must then see too. They are compiled for the CPU
    of this machine, and compiled again on another kind.

    \b
    Examples:
      streamrf warm
      NUMBA_CACHE_DIR=/opt/kernels streamrf warm
    """
    from streamrf.training.warm import compile_all

    start = time.monotonic()
    for what in compile_all():
        if not (options["quiet"] or options["as_json"]):
            say(f"compiling what models of {what} need", err=True)
    seconds = time.monotonic() - start
    if options["as_json"]:
        shared.print_json({"seconds": seconds})
    else:
        say(f"kernels are compiled, {seconds:.1f} s")
