"""One page about one model: what it is, how it was chosen, how good it is, what it looks at and what it cost."""

from streamrf.report.build import Report, make_report

__all__ = ["Report", "make_report"]
