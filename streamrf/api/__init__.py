"""The Python interface: functions and scikit-learn estimators."""
