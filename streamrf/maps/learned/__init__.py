"""Frequencies, weights and metrics that are learned from a sample of rows, then fixed for the pass over all of them."""

from streamrf.maps.frequencies.base import apply_factor
from streamrf.maps.learned.ekal import Learned, Pairs, learn_ekal
from streamrf.maps.learned.fresh import learn_fresh
from streamrf.maps.learned.landmarks import Clusters, sample_landmarks
from streamrf.maps.learned.metric import Judged, Metric, gradient_outer_product, learn_metric
from streamrf.maps.learned.supervised import SupervisedFeatures, learn_supervised
from streamrf.maps.learned.unsupervised import KernelFeatures, learn_kernel_features

__all__ = [
    "Clusters",
    "Judged",
    "KernelFeatures",
    "Learned",
    "Metric",
    "Pairs",
    "SupervisedFeatures",
    "apply_factor",
    "gradient_outer_product",
    "learn_ekal",
    "learn_fresh",
    "learn_kernel_features",
    "learn_metric",
    "learn_supervised",
    "sample_landmarks",
]
