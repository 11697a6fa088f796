"""
Hosts on one machine: Linux network namespaces at one bridge, each with a cable that can be pulled out.

Needs root, iproute2, and a kernel that lets us. Everything has a name of its own, and is gone afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import SystemRandom
from secrets import token_hex

import pytest


@dataclass(frozen=True)
class Host:
    """
    A network namespace.
    """

    namespace: str
    cable: str
    """The bridge's end of what connects it."""

    @property
    def within(self) -> tuple[str, ...]:
        """
        What goes before a command to run it on this host; its process id is the command's.
        """
        return "ip", "netns", "exec", self.namespace

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """
        Let nothing through to it or from it; nobody is told.
        """
        _ip("link", "set", self.cable, "down")
        try:
            yield
        finally:
            _ip("link", "set", self.cable, "up")


@dataclass(frozen=True)
class Network:
    """
    Two hosts, and the address at which both reach this machine.
    """

    address: str
    subnet: str
    hosts: tuple[Host, Host]


@pytest.fixture
def network() -> Iterator[Network]:
    """
    Two hosts that reach this machine, and that can be cut off.
    """
    if shutil.which("ip") is None:
        pytest.skip("hosts are network namespaces, and need ip from iproute2")
    if os.geteuid() != 0:
        pytest.skip("hosts are network namespaces, and only root can make them")
    with ExitStack() as stack:
        try:
            made = _made(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"hosts are network namespaces, and can't be made here: {error.stderr.strip()}")
        yield made


def _made(stack: ExitStack) -> Network:
    name = f"bq{token_hex(4)}"
    # Of the addresses that are set apart for tests of networks.
    prefix = f"198.{SystemRandom().choice((18, 19))}.{SystemRandom().randrange(256)}"
    _ip("link", "add", name, "type", "bridge")
    stack.callback(_ip, "link", "del", name)
    _ip("address", "add", f"{prefix}.1/24", "dev", name)
    _ip("link", "set", name, "up")
    first, second = (_host(stack, name, letter, f"{prefix}.{number}/24") for number, letter in enumerate("ab", 2))
    return Network(f"{prefix}.1", f"{prefix}.0/24", (first, second))


def _host(stack: ExitStack, bridge: str, letter: str, address: str) -> Host:
    host = Host(f"{bridge}{letter}", f"{bridge}{letter}")
    _ip("netns", "add", host.namespace)
    stack.callback(_ip, "netns", "del", host.namespace)
    _ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    # The other end is gone only when the kernel has cleared away the namespace, some time later.
    stack.callback(_ip, "link", "del", host.cable)
    _ip("link", "set", host.cable, "master", bridge, "up")
    for words in (
        ["address", "add", address, "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        ["link", "set", "lo", "up"],
    ):
        _ip("-n", host.namespace, *words)
    return host


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
