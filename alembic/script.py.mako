"""
${message}.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """
    Say what changes, and change the table's comment to the new version mark.
    """
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """
    Take all of it back, the version mark included.
    """
    ${downgrades if downgrades else "pass"}
