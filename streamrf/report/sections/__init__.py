"""The sections of a report, each from what evidence there is; one that has nothing to show comes out empty."""

from streamrf.report.sections.about import cost, provenance, settings
from streamrf.report.sections.errors import errors
from streamrf.report.sections.features import kernel, spectrum
from streamrf.report.sections.inputs import inputs
from streamrf.report.sections.learned import learned
from streamrf.report.sections.learning import learning
from streamrf.report.sections.search import search

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
