"""Whose the stored jobs are.

Revision 0003. Jobs that are there already belong to nobody: administrators manage them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "frenzy_job",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_frenzy_job"),
    )


def downgrade() -> None:
    op.drop_table("frenzy_job")
