"""What every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: hypothesis times single examples, pytest-timeout whole tests.
# The same examples every time, so that a change is judged by the change; --hypothesis-profile=explore draws new ones.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", patient)
settings.register_profile("frenzy", patient, derandomize=True)
settings.load_profile("frenzy")
