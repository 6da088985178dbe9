"""The ledger's tables: one document for each value, and columns for what is looked up.

Invariants that SQL can keep are constraints: a slot of a node belongs to one lease, slot numbers
stay below the node's GPUs, a run has one lease that has not ended, an ended lease has a reason.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

VERSION_TABLE: Final = "frenzy_alembic_version"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_KEY: Final = 64
_NAME: Final = 250

# One row that every writer locks first.
lock = Table("frenzy_lock", metadata, Column("id", Integer, primary_key=True, autoincrement=False))

run = Table(
    "frenzy_run",
    metadata,
    Column("run_key", String(_KEY), primary_key=True),
    Column("dag_id", String(_NAME), nullable=False),
    Column("run_id", String(_NAME), nullable=False),
    Column("task_group", String(_NAME), nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("state", String(32), nullable=False, index=True),
    Column("created_s", Double, nullable=False, index=True),
    Column("document", Text, nullable=False),
    Index("ix_frenzy_run_dag_id_run_id", "dag_id", "run_id"),
)

# Plans of runs, and those that runs in the queue want, by a digest of the document: they are long, and the same for
# runs of one job on one cluster.
plan_table = Table(
    "frenzy_plan_table",
    metadata,
    Column("name", String(_KEY), primary_key=True),
    Column("document", Text, nullable=False),
)

# How far the data of a run are prepared: told every few seconds, hence no part of the run's own document.
preparation = Table(
    "frenzy_preparation",
    metadata,
    Column("run_key", String(_KEY), ForeignKey("frenzy_run.run_key"), primary_key=True),
    Column("document", Text, nullable=False),
)

# Whose the stored jobs are; their texts are files.
job = Table(
    "frenzy_job",
    metadata,
    Column("name", String(_KEY), primary_key=True),
    Column("document", Text, nullable=False),
)

queue_entry = Table(
    "frenzy_queue_entry",
    metadata,
    Column("run_key", String(_KEY), ForeignKey("frenzy_run.run_key"), primary_key=True),
    Column("submitted_s", Double, nullable=False),
    Column("document", Text, nullable=False),
    Column("plan_table", String(_KEY), nullable=True),
    # What each pass says anew.
    Column("hold", Text, nullable=True),
    Column("position", Integer, nullable=True),
    Column("expected_start_s", Double, nullable=True),
)

lease = Table(
    "frenzy_lease",
    metadata,
    Column("run_key", String(_KEY), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("gpu_type", String(_NAME), nullable=False),
    Column("num_gpus", Integer, nullable=False),
    Column("granted_s", Double, nullable=False),
    Column("heartbeat_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("end_reason", String(_KEY), nullable=True),
    Column("document", Text, nullable=False),
    CheckConstraint("state <> 'ended' OR end_reason IS NOT NULL", name="ended_with_reason"),
    CheckConstraint("state IN ('live', 'suspect', 'ended')", name="known_state"),
)
ONE_HELD_LEASE: Final = "uq_frenzy_lease_held_run_key"
Index(
    ONE_HELD_LEASE,
    lease.c.run_key,
    unique=True,
    sqlite_where=text("state <> 'ended'"),
    postgresql_where=text("state <> 'ended'"),
)

# A row exists while the slot is held.
held_slot = Table(
    "frenzy_held_slot",
    metadata,
    Column("node", String(_NAME), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("num_slots_of_node", Integer, nullable=False),
    Column("run_key", String(_KEY), nullable=False),
    Column("attempt", Integer, nullable=False),
    CheckConstraint("slot >= 0 AND slot < num_slots_of_node", name="slot_exists"),
    ForeignKeyConstraint(["run_key", "attempt"], ["frenzy_lease.run_key", "frenzy_lease.attempt"]),
    Index("ix_frenzy_held_slot_run_key_attempt", "run_key", "attempt"),
)

attempt = Table(
    "frenzy_attempt",
    metadata,
    Column("run_key", String(_KEY), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("created_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("outcome", String(_KEY), nullable=True),
    Column("document", Text, nullable=False),
)

gpu_type = Table(
    "frenzy_gpu_type",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("pool", String(256), nullable=False),
    Column("document", Text, nullable=False),
)

node = Table(
    "frenzy_node",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("gpu_type", String(_NAME), nullable=False),
    Column("num_gpus", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("document", Text, nullable=False),
)

event = Table(
    "frenzy_event",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_key", String(_KEY), nullable=False, index=True),
    Column("attempt", Integer, nullable=True),
    Column("time_s", Double, nullable=False),
    Column("kind", String(_KEY), nullable=False),
    Column("text", Text, nullable=False),
)

residual = Table(
    "frenzy_residual",
    metadata,
    Column("run_key", String(_KEY), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("time_s", Double, nullable=False),
    Column("versions", String(_KEY), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("family", String(_NAME), nullable=False),
    Column("gpu_type", String(_NAME), nullable=False),
    Column("zero_stage", Integer, nullable=False),
    Column("checkpointing", Boolean, nullable=False),
    Column("offload", Boolean, nullable=False),
    Column("predicted_bytes", BigInteger, nullable=False),
    Column("measured_bytes", BigInteger, nullable=False),
    Column("censored", Boolean, nullable=False),
    Column("step_ratio", Double, nullable=True),
    Index("ix_frenzy_residual_versions_time_s", "versions", "time_s"),
)

calibration_sample = Table(
    "frenzy_calibration_sample",
    metadata,
    Column("run_key", String(_KEY), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("time_s", Double, nullable=False, index=True),
    Column("family", String(_NAME), nullable=False, index=True),
    Column("gpu_type", String(_NAME), nullable=False),
    Column("censored", Boolean, nullable=False),
    Column("document", Text, nullable=False),
)
