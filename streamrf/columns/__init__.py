"""How the columns of a raw table become numbers: learned once, kept in the model, applied to every shard."""

from streamrf.columns.document import Column, Columns
from streamrf.columns.handling import Handling

__all__ = ["Column", "Columns", "Handling"]
