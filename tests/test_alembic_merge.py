from __future__ import annotations
import time
import pytest
from tests.projects import *


@pytest.mark.parametrize("template", ["generic", "pyproject_async"])
def test_proto(make_project, template):
    p = make_project()

    def a(*args, **k):
        t = time.time()
        r = p.alembic(*args, **k)
        print("$", *args, "->", round(time.time() - t, 2))
        print(r.out, r.err)
        return r

    p.init(template)
    p.locate(THEIRS)
    print(open(p.folder / "alembic/env.py").read()[:900])
    p.target("Base.metadata")
    print(p.revise("customers").read_text())
    a("upgrade", "head")
    p.locate(THEIRS, OURS)
    p.target(BOTH)
    a("heads")
    a("merge", "-m", "adopt", "heads")
    a("upgrade", "head")
    a("check")
    a("current")
    a("history")
    a("downgrade", "base")
    a("upgrade", "head")
    p.append(
        "models.py",
        """

class Order(Base):
    __tablename__ = "order_"
    id: Mapped[int] = mapped_column(primary_key=True)
""",
    )
    print(p.revise("orders").read_text())
    a("upgrade", "head")
    a("check")
    p.target("Base.metadata")
    a("check")
    p.brooq_worker("migrate")
