"""Settings that all tests share. Helper modules beside the tests (tables, commands, ...) are imported by their name."""

import os

from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong: no deadlines.
settings.register_profile("streamrf", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamrf")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side; our own threads are asked for by name
