"""What remains of a run: the model, predictions, uncertainty, export."""
