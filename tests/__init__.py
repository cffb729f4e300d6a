"""Tests of gyrator. Importing gyrator registers its backend also where the package is not installed."""

import gyrator as gyrator
