"""Generated agent conversations, in the shape of OpenAI chat requests.

A ferry line's booking desk with tools: long system prompts, sequential or parallel tool
calls, call ids that come back later in the same conversation (never while open), argument
text that is not always compact JSON, JSON results, about 600 bytes a message. The same seed
gives the same bytes on every Python. `read_recorded` reads real conversations of this shape.
"""

import gzip
import itertools
import json
import random
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

ChatMessage = dict[str, object]

REPEATED_CALL_IDS = 0.07
SPOKEN_CALLS = 0.08

_PORTS = ("Skerry", "Tarn Quay", "Ostvik", "Marrow Head", "Sandøy", "Llanwern", "Port Ilse", "Kōhama")
_FIRST_NAMES = ("Åsa", "Bela", "Chidi", "Dunja", "Emre", "Fiadh", "Goro", "Hana", "Ines", "Jakub")
_LAST_NAMES = ("Lindqvist", "Marsh", "Okafor", "Perić", "Quill", "Rasmussen", "Sato", "Tveit")
_CABINS = ("deck", "lounge", "inside cabin", "window cabin", "suite")
_STATES = ("confirmed", "held", "changed", "cancelled")
_EXTRAS = ("bicycle", "small car", "long van", "dog", "wheelchair space", "late supper")

_ROUTE_RULES = (
    "Between {a} and {b} there are {n} sailings a day from April to September and {m} in the rest of"
    " the year. Boarding closes {n}0 minutes before departure, {m}5 for vehicles. A traveller who"
    " misses it may take the next sailing of the same day for a charge of {n}{m} crowns if there is"
    " room, and loses the fare otherwise. Dogs travel on the {a} side deck only. A {cabin} must be"
    " booked {n} hours ahead; a held one is released after {m} hours without payment.",
    "The crossing from {a} to {b} depends on the tide. When it is called off, say so first, then"
    " offer in this order: the next sailing, a way round through another port, the fare back. The"
    " voucher for a cancelled crossing is {n}{m} crowns for each traveller and needs no approval;"
    " anything above that is for a person to decide. Never promise that a sailing will leave on"
    " time. A {cabin} that was paid for and not given is refunded in full within {m} days.",
    "Fares from {a} to {b} are fixed when the booking is confirmed. A change of date costs {n}5"
    " crowns until {m} days before departure and the difference in fare after that; a change of name"
    " is free once. Children under {m} pay half, those under {n} nothing, and each needs a place on"
    " the list all the same. Ask for the {cabin} by its name, not by its number.",
)
_DESK_RULES = (
    "You answer for a ferry line's booking desk. The current time is {day} 15:0{n}, local time of"
    " the port of departure. You can look up travellers, bookings and sailings, quote fares, hold"
    " places, and change or cancel bookings.",
    "Before any action that changes a booking, list what will change and what it costs, and go on"
    " only when the traveller has said yes. One change at a time. If a tool reports an error, say"
    " what failed; do not invent a result.",
    "Give no advice on customs, medicine or law. Do not compare with other lines. If a request"
    " cannot be met with the tools you have, hand over to a person and say that you are doing so.",
)
_OPENINGS = (
    "Hello, I would like to move my crossing from {a} to {b} to {day}, if that is possible.",
    "Hi! My booking {booking} says {a} to {b} but I need to bring a {extra} as well.",
    "Can you cancel {booking}? Two of us cannot travel on {day} after all.",
    "I need two places from {a} to {b} on {day}, the cheapest {cabin} you have.",
    "What happened to my reservation? The page shows {booking} as held since {day}.",
)
_REPLIES = (
    "Yes, please go ahead.",
    "My traveller id is {traveller}.",
    "I do not have the booking number with me, but it was for {day}, from {a}.",
    "No, the {cabin} is too expensive. Is there anything later, or by way of {b}?",
    "Then please add a {extra} to it, and tell me what I will pay in all.",
    "Fine. Is it the same ship, and may I stay in the {cabin} until we land?",
    "That is not what the letter said: it speaks of {n}{m} crowns and of {day}.",
)
_ANSWERS = (
    "I can help with that. May I have your traveller id or the booking number, please? If you have"
    " neither, the port and the day of departure and the name on the booking will do.",
    "Here is what I found:\n\n1. **{a} – {b}**, {day}, {cabin}, {n}{m} crowns each\n2. **{b} – {a}**,"
    " the evening sailing of the same day, {m}{n} crowns each\n\nWhich of them would you like? I"
    " hold neither until you say so.",
    "The change to {day} costs {n}5 crowns. Booking {booking} would then be: {a} to {b}, {cabin}, one"
    " {extra}. The charge goes to the card you paid with. Shall I go ahead (yes or no)?",
    "Done. {booking} is changed, and a new confirmation is on its way to you. Boarding closes {n}0"
    " minutes before departure, and {m}5 if you bring a {extra}. Please have the names as they are on"
    " your papers, one line for each traveller. Is there anything else that I can do for you today?",
    "I am sorry, but the rules of this crossing do not allow a refund that late. I can offer a"
    " voucher of {n}{m} crowns or a place on {day}, from {b}. The voucher is good for a year, on"
    " every crossing, and can be given to somebody else. Which of the two would you prefer?",
)
_THOUGHTS = ("Let me look that up.", "One moment, I will check both bookings.", "Checking the fare.")


def conversations(seed: int, count: int, parallel: bool = False) -> Iterator[list[ChatMessage]]:
    """Yield `count` complete conversations, each made when asked for.

    With `parallel`, assistants ask for up to four calls in one message and the results come
    back in any order. Every call of a yielded conversation is answered in it.
    """
    rng = random.Random(seed)
    prompt = _system_prompt(rng)
    for _ in range(count):
        yield _Conversation(rng, widest_call=4 if parallel else 1).messages(prompt)


def endless(seed: int) -> Iterator[ChatMessage]:
    """Yield one user's messages for ever: conversations with single and parallel calls by turns."""
    for number in itertools.count():
        yield from itertools.chain.from_iterable(conversations(seed * 1_000_003 + number, 8, parallel=number % 2 == 1))


def read_recorded(path: Path) -> Iterator[list[ChatMessage]]:
    """Yield the `messages` of each line of a gzipped JSON Lines file, in file order.

    Raises FileNotFoundError when there is no such file: recorded conversations are an
    addition, so look before asking for them.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield cast("list[ChatMessage]", json.loads(line)["messages"])


def compact_json(message: Mapping[str, object]) -> bytes:
    """Give the message's smallest JSON text in UTF-8, by which sizes are compared."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _system_prompt(rng: random.Random) -> str:
    routes = itertools.permutations(_PORTS, 2)
    parts = [_fill(rng, rule) for rule in _DESK_RULES]
    while sum(map(len, parts)) < 6_000:
        a, b = next(routes)
        body = _fill(rng, rng.choice(_ROUTE_RULES), a=a, b=b)
        parts.append(f"## {a} to {b}\n{body}")
    return "\n\n".join(parts)


def _fill(rng: random.Random, template: str, a: str = "", b: str = "") -> str:
    here, there = rng.sample(_PORTS, 2)
    return template.format(
        a=a or here,
        b=b or there,
        n=rng.randint(2, 6),
        m=rng.randint(2, 9),
        day=_day(rng),
        cabin=rng.choice(_CABINS),
        extra=rng.choice(_EXTRAS),
        booking=_booking_id(rng),
        traveller=_traveller_id(rng),
    )


def _day(rng: random.Random) -> str:
    return f"2031-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _booking_id(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_uppercase + string.digits, k=6))


def _traveller_id(rng: random.Random) -> str:
    return f"{rng.choice(_LAST_NAMES).lower()}_{rng.randint(1000, 9999)}"


class _Conversation:
    """One conversation in the making; its only state is which call ids were used before."""

    def __init__(self, rng: random.Random, widest_call: int) -> None:
        self._rng = rng
        self._widest_call = widest_call
        self._used_ids: list[str] = []

    def messages(self, prompt: str) -> list[ChatMessage]:
        rng = self._rng
        made: list[ChatMessage] = [{"role": "system", "content": prompt}]
        made.append({"role": "user", "content": _fill(rng, rng.choice(_OPENINGS))})
        for _ in range(max(3, min(16, round(rng.gauss(6.6, 3))))):
            for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
                made += self._call_and_results()
            made.append({"content": _fill(rng, rng.choice(_ANSWERS)), "role": "assistant"})
            made.append({"role": "user", "content": _fill(rng, rng.choice(_REPLIES))})
        made.append({"content": _fill(rng, rng.choice(_ANSWERS)), "role": "assistant"})
        return made

    def _call_and_results(self) -> list[ChatMessage]:
        rng = self._rng
        names = [rng.choice(_TOOLS) for _ in range(rng.randint(1, self._widest_call))]
        calls = [self._call(name) for name in names]
        results = [_result(rng, name, call) for name, call in zip(names, self._open(calls), strict=True)]
        rng.shuffle(results)
        spoken = rng.choice(_THOUGHTS) if rng.random() < SPOKEN_CALLS else None
        return [{"content": spoken, "role": "assistant", "tool_calls": calls}, *results]

    def _call(self, name: str) -> dict[str, object]:
        rng = self._rng
        arguments = _argument_text(rng, _arguments(rng, name))
        return {"function": {"arguments": arguments, "name": name}, "id": self._call_id(), "type": "function"}

    def _open(self, calls: list[dict[str, object]]) -> list[str]:
        ids = [str(call["id"]) for call in calls]
        self._used_ids += ids
        return ids

    def _call_id(self) -> str:
        rng = self._rng
        if self._used_ids and rng.random() < REPEATED_CALL_IDS:
            # Taken out while open, so that a parallel sibling cannot get the same one.
            return self._used_ids.pop(rng.randrange(len(self._used_ids)))
        return "call_" + "".join(rng.choices(string.ascii_letters + string.digits, k=24))


def _arguments(rng: random.Random, name: str) -> dict[str, object]:
    match name:
        case "find_sailings" | "quote_fare":
            here, there = rng.sample(_PORTS, 2)
            return {"from": here, "to": there, "date": _day(rng), "cabin": rng.choice(_CABINS)}
        case "get_traveller":
            return {"traveller_id": _traveller_id(rng)}
        case "change_booking":
            return {
                "booking_id": _booking_id(rng),
                "date": _day(rng),
                "extras": [{"kind": rng.choice(_EXTRAS), "count": rng.randint(1, 3)}],
                "payment_id": f"card_{rng.randint(10**6, 10**7)}",
            }
        case _:
            return {"booking_id": _booking_id(rng)}


def _argument_text(rng: random.Random, arguments: dict[str, object]) -> str:
    chance = rng.random()
    if chance < 0.88:
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    if chance < 0.98:
        return json.dumps(arguments)
    return json.dumps(arguments, ensure_ascii=False, indent=2) + "\n"


def _result(rng: random.Random, name: str, call_id: str) -> ChatMessage:
    content = _result_text(rng, name)
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def _result_text(rng: random.Random, name: str) -> str:
    if rng.random() < 0.05:
        return f"Error: {name.replace('_', ' ')}: nothing is known under that id"
    match name:
        case "find_sailings":
            return json.dumps([_sailing(rng) for _ in range(rng.randint(2, 8))])
        case "quote_fare":
            return str(float(rng.randint(80, 900)))
        case "get_traveller":
            return json.dumps(_traveller(rng), ensure_ascii=False)
        case _:
            return json.dumps(_booking(rng), ensure_ascii=False)


def _sailing(rng: random.Random) -> dict[str, object]:
    here, there = rng.sample(_PORTS, 2)
    return {
        "sailing": f"N{rng.randint(100, 999)}",
        "from": here,
        "to": there,
        "departs": f"{rng.randint(5, 22):02d}:{rng.choice((0, 15, 30, 45)):02d}",
        "minutes": rng.randint(35, 400),
        "places": {cabin: rng.randint(0, 40) for cabin in _CABINS},
        "fares": {cabin: rng.randint(40, 400) for cabin in _CABINS},
    }


def _person(rng: random.Random) -> dict[str, object]:
    return {
        "first_name": rng.choice(_FIRST_NAMES),
        "last_name": rng.choice(_LAST_NAMES),
        "born": f"{rng.randint(1940, 2025)}-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}",
    }


def _traveller(rng: random.Random) -> dict[str, object]:
    cards = [f"card_{rng.randint(10**6, 10**7)}" for _ in range(rng.randint(1, 3))]
    return {
        "id": _traveller_id(rng),
        "name": _person(rng),
        "address": {"street": f"{rng.randint(1, 99)} Harbour Row", "town": rng.choice(_PORTS)},
        "payment": {card: {"kind": "card", "ends": str(rng.randint(1000, 9999))} for card in cards},
        "companions": [_person(rng) for _ in range(rng.randint(0, 4))],
        "bookings": [_booking_id(rng) for _ in range(rng.randint(1, 6))],
        "member": rng.random() < 0.4,
    }


def _booking(rng: random.Random) -> dict[str, object]:
    return {
        "booking_id": _booking_id(rng),
        "traveller_id": _traveller_id(rng),
        "state": rng.choice(_STATES),
        "cabin": rng.choice(_CABINS),
        "crossings": [
            {"date": _day(rng), **{key: value for key, value in _sailing(rng).items() if key != "places"}}
            for _ in range(rng.randint(1, 2))
        ],
        "travellers": [_person(rng) for _ in range(rng.randint(1, 4))],
        "extras": rng.sample(_EXTRAS, rng.randint(0, 2)),
        "paid": [{"payment_id": f"card_{rng.randint(10**6, 10**7)}", "amount": rng.randint(40, 900)}],
        "insured": False,
        "note": None,
    }


_TOOLS = (
    "get_booking",
    "get_booking",
    "find_sailings",
    "get_traveller",
    "change_booking",
    "cancel_booking",
    "quote_fare",
)
