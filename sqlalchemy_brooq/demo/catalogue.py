"""
What the shop sells, who buys there, and the order forms that they send.

The forms come from a seeded generator, so that a run repeats. Knows nothing of the database or of jobs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Final, NamedTuple

FIRST_ORDER: Final = 1001
ON_THE_SHELF: Final = 500
"""Pieces of each product when the shop opens."""


class Article(NamedTuple):
    """
    One product and its price.
    """

    name: str
    price: Decimal


class Customer(NamedTuple):
    """
    Who orders, and where the mail goes.
    """

    name: str
    email: str


ARTICLES: Final = tuple(
    Article(name, Decimal(price))
    for name, price in (
        ("Assam breakfast tea, 250 g", "9.80"),
        ("Earl Grey, 100 g", "6.40"),
        ("Sencha, first harvest, 100 g", "14.90"),
        ("Rooibos with orange, 200 g", "7.20"),
        ("Peppermint, loose, 80 g", "4.60"),
        ("Teapot, cast iron, 0.8 l", "48.00"),
        ("Teapot, glass, 1.2 l", "32.50"),
        ("Cup with saucer, white", "11.00"),
        ("Measuring spoon, brass", "5.90"),
        ("Tea towel, linen", "12.80"),
        ("Rock sugar, brown, 500 g", "4.20"),
        ("Gift box, empty", "3.50"),
    )
)
CUSTOMERS: Final = tuple(
    Customer(name, f"{name.lower().replace(' ', '.')}@{host}")
    for name, host in (
        ("Ada Brandt", "post.example"),
        ("Bela Nagy", "mail.example"),
        ("Carmen Ruiz", "correo.example"),
        ("Dmitri Orlov", "mail.example"),
        ("Edith Larsen", "post.example"),
        ("Farid Haddad", "mail.example"),
        ("Greta Lindqvist", "brev.example"),
        ("Hiro Tanaka", "mail.example"),
        ("Ines Moreau", "courrier.example"),
        ("Jonas Weber", "post.example"),
        ("Kofi Mensah", "mail.example"),
        ("Lucia Conti", "posta.example"),
        ("Mary Fielding", "post.example"),
        ("Nadia Petrova", "mail.example"),
        ("Owen Hughes", "post.example"),
    )
)
UNREACHABLE: Final = Customer("Vera Falk", "vera.falk@closed.example")
"""Her mailbox doesn't exist any more: whatever is sent there comes back."""


@dataclass(frozen=True, slots=True)
class Form:
    """
    An order form that a customer sends.
    """

    number: int
    """The order's number, printed on the form."""
    customer: Customer
    lines: tuple[tuple[int, int], ...]
    """Pairs of a product's id and a quantity, in the order of the ids."""
    is_refused: bool = False
    """Whether the customer's bank will refuse the payment."""
    is_sent_twice: bool = False
    """Whether the customer is impatient and sends it twice at once."""
    pause: float = 0.0
    """Seconds that the jobs of this order take longer than others."""

    @property
    def key(self) -> str:
        """
        What two copies of this form have in common: the idempotency key of their jobs.
        """
        return f"form-{self.number}"


class Forms:
    """
    The forms of one day, numbered in the order in which they come in.

    Args:
        seed: The same seed is the same day.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - to repeat it is the point
        self._numbers = count(FIRST_ORDER)

    def take(
        self,
        total: int,
        *,
        refused: int = 0,
        sent_twice: int = 0,
        customers: Sequence[Customer] = CUSTOMERS,
        pause: float = 0.0,
    ) -> list[Form]:
        """
        Return the next *total* forms, of which so many are refused, and so many others sent twice.
        """
        special = self._random.sample(range(total), refused + sent_twice)
        return [
            Form(
                number=next(self._numbers),
                customer=self._random.choice(customers),
                lines=self._basket(),
                is_refused=place in special[:refused],
                is_sent_twice=place in special[refused:],
                pause=pause,
            )
            for place in range(total)
        ]

    def _basket(self) -> tuple[tuple[int, int], ...]:
        chosen = self._random.sample(range(len(ARTICLES)), self._random.randint(1, 4))
        return tuple((place + 1, self._random.randint(1, 3)) for place in sorted(chosen))
