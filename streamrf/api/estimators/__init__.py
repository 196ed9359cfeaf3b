"""scikit-learn's face of streamrf: estimators that are thin over training, models and maps."""
