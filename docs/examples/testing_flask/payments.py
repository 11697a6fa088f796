"""
Stands for the client of a payment service, which takes a key so that no payment is made twice.
"""

from __future__ import annotations


def charge(customer: str, *, key: str) -> None:
    raise NotImplementedError("the real one would send a request")
