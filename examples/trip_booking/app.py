"""An assistant that books a trip: flight, hotel, train, seat, and the itinerary by e-mail.

Of the 93 lines of code here, 40 are about Ondol; the others are about trips.
"""

import argparse
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import world

from ondol import Agent, Context, Happened, NotDone, NotHappened, Runtime, tool

FARE_LIMIT = Decimal(900)  # what the travel policy allows for a flight, in euros
NIGHT_LIMIT = Decimal(180)  # and for a night
AT_ONCE = timedelta(seconds=2)  # how long these services may take; a lost call is not looked into before

# --- looking ----------------------------------------------------------------------------------------------------


@tool(effect="read")
async def search_flights(origin: str, destination: str, day: date) -> list[dict[str, Any]]:
    """Flights of a day between two airports (IATA codes) that the travel policy allows, the cheapest first."""
    wanted = (origin, destination)
    found = [f for f in world.FLIGHTS if (f["from"], f["to"]) == wanted and f["fare"] <= FARE_LIMIT]
    world.answer(f"airline-flights: {len(found)} from {origin} to {destination} on {day:%d %B}")
    return sorted(found, key=lambda flight: flight["fare"])


@tool(effect="read")
async def search_hotels(city: str) -> list[dict[str, Any]]:
    """Hotels in a city that the travel policy allows, with their price for a night."""
    found = [h for h in world.HOTELS if h["city"] == city and h["night"] <= NIGHT_LIMIT]
    world.answer(f"hotel: {len(found)} within the policy in {city}")
    return found


def free_seats(flight: str) -> dict[str, str]:
    taken = {s["seat"] for s in world.ledger("airline-seats") if s["flight"] == flight}
    return {seat: place for seat, place in world.SEATS.items() if seat not in taken}


@tool(effect="read")
async def seat_map(flight: str) -> dict[str, str]:
    """The free seats of a flight, and where they are."""
    free = free_seats(flight)
    world.answer(f"airline-seats: {len(free)} free on {flight}")
    return free


# --- booking: these services honour a key, so a call may be repeated with it ------------------------------------


@tool(effect="idempotent", timeout=AT_ONCE)
async def buy_ticket(ctx: Context, flight: str, day: date, passenger: str) -> str:
    """Buy a ticket. The flight must come from search_flights."""
    offered = next((f for f in world.FLIGHTS if f["flight"] == flight), None)
    if offered is None or offered["fare"] > FARE_LIMIT:
        raise NotDone(f"{flight} is not a flight that the travel policy allows")
    what = {"flight": flight, "day": day, "passenger": passenger, "fare": offered["fare"]}
    world.sell_once("airline-flights", ctx.idempotency_key, f"{flight} on {day:%d %B} for {passenger}", **what)
    return f"{flight} on {day:%A %d %B}, {offered['departs']}, {offered['fare']} EUR"


@tool(effect="idempotent", timeout=AT_ONCE)
async def book_hotel(ctx: Context, hotel: str, arrival: date, departure: date, guest: str) -> str:
    """Book a room from the day of arrival to the day of departure."""
    nights = (departure - arrival).days
    price = next((h["night"] for h in world.HOTELS if h["hotel"] == hotel), None)
    if price is None or nights < 1:
        raise NotDone(f"there is no {hotel} for {nights} nights")
    what = {"hotel": hotel, "arrival": arrival, "nights": nights, "guest": guest}
    world.sell_once("hotel", ctx.idempotency_key, f"{nights} nights at {hotel} for {guest}", **what)
    return f"{hotel}, {nights} nights from {arrival:%d %B}, {nights * price} EUR"


@tool(effect="idempotent", timeout=AT_ONCE)
async def book_train(ctx: Context, from_airport: str, to_city: str, passenger: str) -> str:
    """Book the train from an airport into the city."""
    what = {"from": from_airport, "to": to_city, "passenger": passenger}
    world.sell_once("railway", ctx.idempotency_key, f"{from_airport} to {to_city} for {passenger}", **what)
    return f"train from {from_airport} to {to_city}"


# --- once: the seat desk and the mail service know no keys, but they can be asked what they did -----------------


async def seat_was_taken(ctx: Context, flight: str) -> Happened | NotHappened:
    mine = [s for s in world.ledger("airline-seats") if s["key"] == ctx.idempotency_key]
    print(f"  airline-seats: was one taken on {flight} for this call? {'yes' if mine else 'no'}", flush=True)
    return Happened(f"seat {mine[0]['seat']} on {flight}") if mine else NotHappened()


@tool(effect="once", check=seat_was_taken, timeout=AT_ONCE)
async def reserve_seat(ctx: Context, flight: str, seat: str, passenger: str) -> str:
    """Reserve a seat that seat_map shows as free."""
    if seat not in free_seats(flight):
        raise NotDone(f"seat {seat} on {flight} is not free")
    what = {"flight": flight, "seat": seat, "passenger": passenger}
    world.sell("airline-seats", ctx.idempotency_key, f"{seat} on {flight} for {passenger}", **what)
    return f"seat {seat} on {flight}"


async def itinerary_was_sent(ctx: Context, to: str) -> Happened | NotHappened:
    sent = any(mail["key"] == ctx.idempotency_key for mail in world.ledger("mail"))
    print(f"  mail: was this one sent to {to}? {'yes' if sent else 'no'}", flush=True)
    return Happened(f"sent to {to}") if sent else NotHappened()


@tool(effect="once", check=itinerary_was_sent, timeout=AT_ONCE)
async def send_itinerary(ctx: Context, to: str, lines: list[str]) -> str:
    """Send the itinerary, one line for each booking."""
    body = "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))
    world.sell("mail", ctx.idempotency_key, f"{len(lines)} lines to {to}", to=to, body=body)
    return f"sent to {to}"


REQUEST = (
    "Book me Seoul to Paris on 2 March 2027, three nights, a window seat, "
    "and send the itinerary to kim@example.com. I am Kim Jiwoo."
)
trip = Agent(
    "trip",
    model=f"script:{Path(__file__).with_name('answers.json')}",
    instructions=(
        "You book business trips. Search before you book, take the cheapest offer that fits, take the train from "
        "the airport, and reserve the seat that the passenger wants. Send the itinerary last, then sum up."
    ),
    tools=[
        search_flights, buy_ticket, search_hotels, book_hotel, book_train, seat_map, reserve_seat, send_itinerary,
    ],
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Book a trip. The same command again goes on where it stopped.")
    parser.add_argument("--kill-at", type=int, default=0, metavar="STEP", help="kill -9 in the middle of this step")
    world.power_cut_after = parser.parse_args().kill_at  # each step calls one service
    print(Runtime(agents=[trip]).run_sync(trip, REQUEST, session="kim", operation_id="trip-paris").text)


if __name__ == "__main__":
    main()
