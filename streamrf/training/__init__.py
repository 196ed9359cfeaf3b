"""From a source to a model: recipe, plan, pilot, passes, update and forget."""
