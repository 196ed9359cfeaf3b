"""From a source to a model: plan, prepare, pilot, run; and update, forget and merge afterwards."""
