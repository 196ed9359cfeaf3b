"""Every solver of the package does what solvers must do."""

from typing import ClassVar

from solvers_conformance import SolverConformance


class TestCholesky(SolverConformance):
    settings: ClassVar = {"solver": "cholesky"}


class TestCrossValidated(SolverConformance):
    settings: ClassVar = {"solver": "cholesky", "cv": 3}


class TestCG(SolverConformance):
    settings: ClassVar = {"solver": "cg"}


class TestNewton(SolverConformance):
    settings: ClassVar = {"solver": "newton", "loss": "logistic"}
    classes = True


class TestSGD(SolverConformance):
    settings: ClassVar = {"solver": "sgd", "loss": "hinge"}
    classes = True
    order_free = False  # each epoch visits the chunks in a random order


class TestBinning(SolverConformance):
    settings: ClassVar = {
        "solver": "cg",
        "map": "binning",
        "grids": 20,
        "bits": "auto",
        "kernel": "auto",
        "length_scale": None,
    }
    larger: ClassVar = {"grids": 1000}


class TestBinNewton(TestBinning):
    settings: ClassVar = {**TestBinning.settings, "solver": "newton", "loss": "logistic"}
    classes = True


class TestBinNewtonOfNumbers(TestBinning):
    settings: ClassVar = {**TestBinning.settings, "solver": "newton", "loss": "huber"}
