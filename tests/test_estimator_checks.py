"""scikit-learn's own checks of the estimators, with the few that cannot hold and why."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from streamrf import KernelClassifier, KernelRegressor, RandomFeatures

MACHINES = {"D": 60, "pilot": "none", "threads": 1}
WEIGHTS = "it sets cv to a list of splits, and `cv` is a number of folds here; test_weights.py checks the same"
FEW = "it trains on 50 rows: 4 of them are held out to calibrate, none of the one class that counts"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
    "check_class_weight_classifiers": FEW,
}


def reasons(estimator):
    return {} if isinstance(estimator, RandomFeatures) else EXPECTED


@parametrize_with_checks(
    [
        KernelRegressor(**MACHINES),
        KernelClassifier(**MACHINES),
        RandomFeatures(threads=1, random_state=0),
    ],
    expected_failed_checks=reasons,
)
@pytest.mark.filterwarnings("ignore")
def test_check(estimator, check):
    check(estimator)
