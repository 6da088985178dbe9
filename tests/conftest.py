"""What every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: hypothesis times single examples, pytest-timeout whole tests.
settings.register_profile("frenzy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("frenzy")
