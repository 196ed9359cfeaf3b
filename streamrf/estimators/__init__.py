"""scikit-learn's face of streamrf: estimators that are thin over training, models and maps."""

from streamrf.estimators.classifier import KernelClassifier
from streamrf.estimators.features import RandomFeatures
from streamrf.estimators.regressor import KernelRegressor

__all__ = ["KernelClassifier", "KernelRegressor", "RandomFeatures"]
