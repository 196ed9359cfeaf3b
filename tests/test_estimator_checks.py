"""scikit-learn's own checks of the estimators, with the few that cannot hold and why."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from streamrf import KernelClassifier, KernelRegressor, RandomFeatures

MACHINES = {"D": 60, "pilot": "none", "threads": 1}
WEIGHTS = "rows of different weights are refused: exact sums count every row once"
EXPECTED = dict.fromkeys(
    (
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
        "check_classifiers_one_label_sample_weights",
    ),
    WEIGHTS,
)


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
