"""What a page owes readers who see little or use no mouse, measured in the page as it is shown."""

from __future__ import annotations

from typing import Any, Final

from tests.e2e.browser import Browser

# Of WCAG 2.2: contrast of text at level AA, a name for every control, all of them reached with the Tab key.
_FAULTS: Final = r"""
(() => {
  const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((each, index) => a * each + (1 - a) * below[index]);
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    const own = numbers(getComputedStyle(element).backgroundColor);
    return own.length === 3 ? own : over(own, ground(element.parentElement));
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => rgb.map((each) => linear(each / 255))
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const isShown = (element) => element.checkVisibility() && element.getClientRects().length > 0;
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const words = Array.from(element.childNodes, (each) => (each.nodeType === 3 ? each.data.trim() : "")).join("");
    if (!words || !isShown(element) || element.closest(":disabled, .stale, noscript, option")) continue;
    const style = getComputedStyle(element), behind = ground(element);
    const [size, isBold] = [parseFloat(style.fontSize), Number(style.fontWeight) >= 700];
    const least = size >= 24 || (isBold && size >= 18.66) ? 3 : 4.5;
    const ratio = contrast(over(numbers(element.closest("svg") ? style.fill : style.color), behind), behind);
    if (ratio < least) found.push(`contrast ${ratio.toFixed(2)} of ${JSON.stringify(words.slice(0, 40))}`);
  }
  for (const each of document.querySelectorAll("a, button, input, select, textarea, summary")) {
    const name = each.getAttribute("aria-label") || each.labels?.[0]?.textContent || each.textContent;
    if (isShown(each) && !name.trim()) found.push(`no name: ${each.outerHTML.slice(0, 80)}`);
  }
  return Array.from(new Set(found));
})()
"""
_STOPS: Final = r"""
(() => Array.from(document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']"))
  .filter((each) => !each.disabled && each.checkVisibility() && each.getClientRects().length > 0).length)()
"""
_FOCUSED: Final = r"""
(() => {
  const focused = document.activeElement;
  if (!focused || focused === document.body) return null;
  window.reached ??= [];
  if (!window.reached.includes(focused)) window.reached.push(focused);
  const { outlineStyle, outlineWidth } = getComputedStyle(focused);
  return { isSeen: outlineStyle !== "none" && parseFloat(outlineWidth) > 0, html: focused.outerHTML.slice(0, 80) };
})()
"""


def faults(page: Browser) -> list[str]:
    """Texts with too little contrast, and controls without a name."""
    return list(page.evaluate(_FAULTS))


def keyboard_faults(page: Browser) -> list[str]:
    """Controls that the Tab key does not reach, or where the focus is not seen; from the page's beginning on."""
    wanted, found = int(page.evaluate(_STOPS)), []
    for _ in range(wanted + 1):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        focused: dict[str, Any] | None = page.evaluate(_FOCUSED)
        if focused is not None and not focused["isSeen"]:
            found.append(f"focus is not seen: {focused['html']}")
    reached = int(page.evaluate("(window.reached ?? []).length"))
    return [*found, *([f"Tab reaches {reached} of {wanted} controls"] if reached < wanted else [])]


# Words that lie upon other words: of each text what its clipping ancestors leave of it.
_OVERLAPS: Final = r"""
(() => {
  const clipped = (rect, element) => {
    let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
    for (let each = element; each && each !== document.body; each = each.parentElement) {
      if (getComputedStyle(each).overflow === "visible") continue;
      const box = each.getBoundingClientRect();
      [left, top] = [Math.max(left, box.left), Math.max(top, box.top)];
      [right, bottom] = [Math.min(right, box.right), Math.min(bottom, box.bottom)];
    }
    return { left, top, right, bottom };
  };
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { currentNode: text } = walker;
    const within = text.parentElement;
    // the head of a virtual table lies upon its rows
    if (!text.data.trim() || !within.checkVisibility() || within.closest("option, pre, table.virtual")) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const each of range.getClientRects()) {
      const box = clipped(each, within), words = text.data.trim().slice(0, 30);
      if (box.right - box.left > 1 && box.bottom - box.top > 1) found.push({ words, ...box });
    }
  }
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return found.flatMap((one, index) => found.slice(index + 1).filter((other) => over(one, other))
    .map((other) => `${one.words} / ${other.words}`));
})()
"""
_WIDER: Final = "document.documentElement.scrollWidth > innerWidth ? ['the page is wider than its window'] : []"


def layout_faults(page: Browser) -> list[str]:
    """Words upon words, and what stands beyond the window's edge."""
    return [*page.evaluate(_OVERLAPS), *page.evaluate(_WIDER)]
