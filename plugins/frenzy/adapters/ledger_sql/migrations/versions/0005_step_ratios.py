"""What a step took against its prediction, beside what memory did.

Revision 0005. Of attempts that ended before it, it is not known.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("frenzy_residual", sa.Column("step_ratio", sa.Double, nullable=True))


def downgrade() -> None:
    op.drop_column("frenzy_residual", "step_ratio")
