"""How far the data of runs are prepared.

Revision 0004. On the way back, a run whose data are being prepared is as before: its workers prepare them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "frenzy_preparation",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["frenzy_run.run_key"], name="fk_frenzy_preparation_run_key"),
        sa.PrimaryKeyConstraint("run_key", name="pk_frenzy_preparation"),
    )


def downgrade() -> None:
    run = sa.table("frenzy_run", sa.column("state", sa.String), sa.column("document", sa.Text))
    document = sa.func.replace(run.c.document, '"state": "PREPARING"', '"state": "PLANNED"')
    op.execute(run.update().where(run.c.state == "PREPARING").values(state="PLANNED", document=document))
    op.drop_table("frenzy_preparation")
