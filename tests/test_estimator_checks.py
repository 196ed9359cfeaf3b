"""scikit-learn's own checks of the estimators, with the few that cannot hold and why."""

import pytest
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from streamrf import KernelClassifier, KernelRegressor, RandomFeatures

MACHINES = {"D": 60, "pilot": "none", "threads": 1}
WEIGHTS = "it sets cv to a list of splits, and `cv` is a number of folds here: see the same checks without cv below"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
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


def without_cv(kind):
    """The estimator as it is with the default of ``cv``, which scikit-learn's checks of weights cannot set then."""

    class WithoutCv(kind):
        @classmethod
        def _get_param_names(cls):
            return [name for name in super()._get_param_names() if name != "cv"]

    return WithoutCv


@pytest.mark.parametrize("how", [{}, {"D": 60}, {"D": 60, "pilot": "none"}])
@pytest.mark.parametrize("kind", [KernelRegressor, KernelClassifier])
@pytest.mark.parametrize(
    "check", [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data]
)
@pytest.mark.filterwarnings("ignore")
def test_rows_of_weight_two_are_rows_twice(check, kind, how):
    check(kind.__name__, without_cv(kind)(threads=1, **how))
