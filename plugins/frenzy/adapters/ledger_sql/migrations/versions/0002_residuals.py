"""What planning reads of the calibration samples, in columns: no document is decoded for it.

Revision 0002. Samples that are there already carry no kind of device and teach nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "frenzy_residual",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("time_s", sa.Double, nullable=False),
        sa.Column("versions", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("family", sa.String(250), nullable=False),
        sa.Column("gpu_type", sa.String(250), nullable=False),
        sa.Column("zero_stage", sa.Integer, nullable=False),
        sa.Column("checkpointing", sa.Boolean, nullable=False),
        sa.Column("offload", sa.Boolean, nullable=False),
        sa.Column("predicted_bytes", sa.BigInteger, nullable=False),
        sa.Column("measured_bytes", sa.BigInteger, nullable=False),
        sa.Column("censored", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("run_key", "attempt", name="pk_frenzy_residual"),
    )
    op.create_index("ix_frenzy_residual_versions_time_s", "frenzy_residual", ["versions", "time_s"])


def downgrade() -> None:
    op.drop_table("frenzy_residual")
