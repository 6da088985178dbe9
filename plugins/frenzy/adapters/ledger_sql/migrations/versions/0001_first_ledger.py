"""The first ledger.

Revision 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = (
    "frenzy_queue_entry",
    "frenzy_held_slot",
    "frenzy_run",
    "frenzy_lease",
    "frenzy_attempt",
    "frenzy_gpu_type",
    "frenzy_node",
    "frenzy_event",
    "frenzy_calibration_sample",
    "frenzy_lock",
)


def upgrade() -> None:
    _create_lock()
    _create_runs_and_queue()
    _create_leases()
    _create_attempts()
    _create_cluster()
    _create_history()


def downgrade() -> None:
    for name in _TABLES:
        op.drop_table(name)


def _create_lock() -> None:
    op.create_table(
        "frenzy_lock",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_frenzy_lock"),
    )


def _create_runs_and_queue() -> None:
    op.create_table(
        "frenzy_run",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("task_group", sa.String(250), nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_key", name="pk_frenzy_run"),
    )
    op.create_index("ix_frenzy_run_created_s", "frenzy_run", ["created_s"])
    op.create_index("ix_frenzy_run_dag_id_run_id", "frenzy_run", ["dag_id", "run_id"])
    op.create_index("ix_frenzy_run_state", "frenzy_run", ["state"])
    op.create_table(
        "frenzy_queue_entry",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("submitted_s", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_key", name="pk_frenzy_queue_entry"),
        sa.ForeignKeyConstraint(["run_key"], ["frenzy_run.run_key"], name="fk_frenzy_queue_entry_run_key"),
    )


def _create_leases() -> None:
    op.create_table(
        "frenzy_lease",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("gpu_type", sa.String(250), nullable=False),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.Column("granted_s", sa.Double, nullable=False),
        sa.Column("heartbeat_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.Column("ended_s", sa.Double, nullable=True),
        sa.Column("end_reason", sa.String(64), nullable=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.CheckConstraint(
            "state <> 'ended' OR end_reason IS NOT NULL", name=op.f("ck_frenzy_lease_ended_with_reason")
        ),
        sa.CheckConstraint("state IN ('live', 'suspect', 'ended')", name=op.f("ck_frenzy_lease_known_state")),
        sa.PrimaryKeyConstraint("run_key", "attempt", name="pk_frenzy_lease"),
    )
    held = sa.text("state <> 'ended'")
    op.create_index(
        "uq_frenzy_lease_held_run_key",
        "frenzy_lease",
        ["run_key"],
        unique=True,
        sqlite_where=held,
        postgresql_where=held,
    )
    op.create_table(
        "frenzy_held_slot",
        sa.Column("node", sa.String(250), nullable=False),
        sa.Column("slot", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("num_slots_of_node", sa.Integer, nullable=False),
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.CheckConstraint("slot >= 0 AND slot < num_slots_of_node", name=op.f("ck_frenzy_held_slot_slot_exists")),
        sa.PrimaryKeyConstraint("node", "slot", name="pk_frenzy_held_slot"),
        sa.ForeignKeyConstraint(
            ["run_key", "attempt"],
            ["frenzy_lease.run_key", "frenzy_lease.attempt"],
            name="fk_frenzy_held_slot_run_key_attempt",
        ),
    )
    op.create_index("ix_frenzy_held_slot_run_key_attempt", "frenzy_held_slot", ["run_key", "attempt"])


def _create_attempts() -> None:
    op.create_table(
        "frenzy_attempt",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("ended_s", sa.Double, nullable=True),
        sa.Column("outcome", sa.String(64), nullable=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_key", "attempt", name="pk_frenzy_attempt"),
    )


def _create_cluster() -> None:
    op.create_table(
        "frenzy_gpu_type",
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("pool", sa.String(256), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_frenzy_gpu_type"),
    )
    op.create_table(
        "frenzy_node",
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("gpu_type", sa.String(250), nullable=False),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_frenzy_node"),
    )


def _create_history() -> None:
    op.create_table(
        "frenzy_event",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=True),
        sa.Column("time_s", sa.Double, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_frenzy_event"),
    )
    op.create_index("ix_frenzy_event_run_key", "frenzy_event", ["run_key"])
    op.create_table(
        "frenzy_calibration_sample",
        sa.Column("run_key", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("time_s", sa.Double, nullable=False),
        sa.Column("family", sa.String(250), nullable=False),
        sa.Column("gpu_type", sa.String(250), nullable=False),
        sa.Column("censored", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_key", "attempt", name="pk_frenzy_calibration_sample"),
    )
    op.create_index("ix_frenzy_calibration_sample_family", "frenzy_calibration_sample", ["family"])
    op.create_index("ix_frenzy_calibration_sample_time_s", "frenzy_calibration_sample", ["time_s"])
