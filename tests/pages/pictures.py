"""``python -m tests.pages.pictures``: the pictures of the pages in docs/images, of a played installation."""

from __future__ import annotations

import sys
import time
from typing import Final

from tests.e2e.browser import Browser, browser
from tests.pages.stage import Stage, stage

from frenzy.settings import CHECKOUT

_FOLDER: Final = CHECKOUT / "docs/images"
_WIDTH: Final = 1440
# Nothing in a page says that it has been painted.
_SETTLE_S: Final = 2.0


def take(page: Browser, name: str) -> None:
    """The whole page as it is now."""
    page.window(_WIDTH, int(page.evaluate("document.querySelector('main').scrollHeight")) + 60)
    time.sleep(_SETTLE_S)
    page.picture(_FOLDER / f"{name}.png")
    sys.stdout.write(f"docs/images/{name}.png\n")


def take_all(page: Browser, played: Stage) -> None:
    page.window(_WIDTH, 900)
    page.open(played.page("gpus"))
    page.wait_for("document.querySelectorAll('.usage .uplot canvas').length === 2")
    take(page, "gpus")
    page.window(_WIDTH, 900)
    page.open(played.page("new_job"))
    page.wait_for("Boolean(document.querySelector('#preset option[value=tiny]'))")
    page.evaluate(
        "(e => { e.value = 'tiny'; e.dispatchEvent(new Event('change')); })(document.querySelector('#preset'))"
    )
    page.wait_for("document.body.innerText.includes('that fit, best first')")
    take(page, "new-job")


def main() -> None:
    with stage() as played, browser() as page:
        take_all(page, played)


if __name__ == "__main__":
    main()
