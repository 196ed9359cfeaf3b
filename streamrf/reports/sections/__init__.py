"""The sections of a report, each from what evidence there is; one that has nothing to show comes out empty."""

from streamrf.reports.sections.about import cost, provenance, settings
from streamrf.reports.sections.errors import errors
from streamrf.reports.sections.features import kernel, spectrum
from streamrf.reports.sections.inputs import inputs
from streamrf.reports.sections.learned import learned
from streamrf.reports.sections.learning import learning
from streamrf.reports.sections.search import search

ALL = (
    errors,
    learning,
    inputs,
    search,
    learned,
    spectrum,
    kernel,
    cost,
    settings,
    provenance,
)  # in the order of the page

__all__ = ["ALL"]
