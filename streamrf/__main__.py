"""`python -m streamrf`."""

from streamrf.cli import main

main()
