"""The full fuzz: ``python -m tests.fuzz [--bodies N] [--specs N] [--files N] [--openapi N] [--seed S]``.

Prints every input that did harm, and leaves it in build/fuzz; exit status 1 where there was one.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from random import Random

from tests.fuzz.described import openapi_findings
from tests.fuzz.targets import CHECKOUT, Api, Found, read, texts_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--specs", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=5_000, help="of each kind")
    parser.add_argument("--openapi", type=int, default=100, help="cases of schemathesis for each route")
    parser.add_argument("--seed", type=int, default=1)
    warnings.simplefilter("error")
    return report(found(parser.parse_args()))


def found(options: argparse.Namespace) -> Iterator[Found]:
    random = Random(options.seed)
    for target, count in {"spec": options.specs, **dict.fromkeys(("cluster", "queue", "pods"), options.files)}.items():
        yield from (each for text in texts_of(target, count, random) if (each := read(target, text)))
        print(f"{target}: {count} read", flush=True)
    for user, share in (("op", 1), ("ada", 4)):
        api, count = Api(user), options.bodies // share
        yield from (each for asked in api.requests(count, random) if (each := api.ask(*asked)))
        print(f"{count} bodies sent as {user}", flush=True)
        yield from openapi_findings(api, max(1, options.openapi // share))


def report(findings: Iterator[Found]) -> int:
    folder, num = CHECKOUT / "build/fuzz", 0
    folder.mkdir(parents=True, exist_ok=True)
    for num, each in enumerate(findings, start=1):
        (folder / f"{num}.txt").write_text(f"{each.target}\n{each.problem}\n{each.text}", errors="replace")
        print(f"{folder / f'{num}.txt'}: {each.target}: {each.problem}", flush=True)
    print(f"{num} inputs did harm")
    return 1 if num else 0


if __name__ == "__main__":
    sys.exit(main())
