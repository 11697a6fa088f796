import os, signal, time, threading, subprocess
import pytest
from sqlalchemy import create_engine, text
import sqlalchemy_brooq as brooq
from tests.test_failover import *
from tests.test_failover import Working, pair, engine, ask

def procs(server):
    pid = server.pid
    kids = [int(x) for x in subprocess.run(["ps","-o","pid=","--ppid",str(pid)],capture_output=True,text=True).stdout.split()]
    return [pid]+kids

@pytest.mark.parametrize("kind", ["plain", "async"])
def test_frozen(pair, engine, kind, caplog):
    import logging
    caplog.set_level(logging.INFO)
    side = Working(kind, engine, pair.url)
    side.queue.reconfigure(lease="6s", poll_interval="20s")
    with side:
        t0=time.monotonic()
        def note(*a): print(f"{time.monotonic()-t0:.2f}", *a)
        (a,) = side.add(brooq.Job("inside"))
        eventually(lambda: row(engine, a)["state"]=="done")
        pair.catch_up()
        frozen = procs(pair.primary)
        for p in frozen: os.kill(p, signal.SIGSTOP)
        note("frozen", len(frozen))
        pair.promote()
        note("promoted")
        e2 = create_engine(pair.standby.url())
        def add(topic="inside"):
            from sqlalchemy.orm import Session
            with Session(e2, expire_on_commit=False) as s, s.begin():
                j = brooq.Job(topic); s.add(j)
            return j.id
        b = add()
        note("added")
        try:
            eventually(lambda: not side.is_healthy, 20); note("unhealthy", side.queue.health())
        except BaseException as x: note("never unhealthy", side.queue.health())
        try:
            eventually(lambda: row(e2, b)["state"]=="done", 60); note("b done")
        except BaseException as x: note("b NOT done", row(e2,b))
        note(side.queue.health())
        c = add()
        try:
            eventually(lambda: row(e2, c)["state"]=="done", 25); note("c done (by wakeup?)")
        except BaseException as x: note("c NOT done", row(e2,c))
        note(side.queue.health())
        for p in frozen: os.kill(p, signal.SIGCONT)
        note("thawed")
        e2.dispose()
    note("closed")
    print(caplog.text[-6000:])
    assert 0
