// What a person would notice in a page: an object of questions, evaluated in the page itself.
({
  nameOf(element) {
    const classes = [...element.classList].map((one) => "." + one).join("");
    return element.tagName.toLowerCase() + (element.id ? "#" + element.id : "") + classes;
  },

  /** Whether an element may be wider than what is seen of it: it scrolls, is drawn, or is there for screen readers. */
  mayBeWide(element) {
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (["auto", "scroll"].includes(style.overflowX)) return true;
      if (style.clip !== "auto" || style.clipPath !== "none") return true;
      if (["svg", "canvas"].includes(at.tagName.toLowerCase())) return true;
    }
    return false;
  },

  /** Everything that is wider than the page, or whose text is cut off. */
  findOverflow() {
    const root = document.documentElement;
    const width = root.clientWidth;
    const found = root.scrollWidth > width ? [`the page is ${root.scrollWidth} px wide, ${width} are there`] : [];
    for (const element of document.body.querySelectorAll("*")) {
      const box = element.getBoundingClientRect();
      const style = getComputedStyle(element);
      if (!box.width || !box.height || style.visibility === "hidden" || this.mayBeWide(element)) continue;
      const text = (element.textContent || "").trim().slice(0, 40);
      if (box.right > width + 1 && box.left >= 0) {
        found.push(`${this.nameOf(element)} ends at ${Math.round(box.right)} px: ${text}`);
      }
      const isOwn = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
      const isCut = ["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis";
      if (isOwn && isCut && element.scrollWidth > element.clientWidth + 1) {
        found.push(`${this.nameOf(element)} is clipped: ${text}`);
      }
    }
    return found.slice(0, 10);
  },

  /** The next Tab begins at the top of the page. */
  forgetFocus() {
    document.activeElement?.blur();
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
  },

  /** Whether an element, or anything in it, looks otherwise with the focus than without. */
  isDrawnOtherwise(element) {
    const properties = ["outline", "boxShadow", "stroke", "strokeWidth", "fill", "borderColor", "backgroundColor"];
    const look = () =>
      [element, ...element.querySelectorAll("*")]
        .map((one) => getComputedStyle(one))
        .map((style) => properties.map((name) => style[name]).join())
        .join();
    const withFocus = look();
    element.blur();
    const without = look();
    element.focus({ preventScroll: true });
    return withFocus !== without;
  },

  /** What has the focus, and whether that can be seen; null: nothing has. */
  lookAtFocus() {
    const at = document.activeElement;
    if (!at || at === document.body || at === document.documentElement) return null;
    const box = at.getBoundingClientRect();
    const style = getComputedStyle(at);
    const isAgain = "visited" in at.dataset;
    at.dataset.visited = "yes";
    const label = (at.getAttribute("aria-label") || at.textContent || at.getAttribute("name") || "").trim();
    return {
      name: `${this.nameOf(at)} ${label.slice(0, 30)}`,
      isAgain,
      isVisible: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || this.isDrawnOtherwise(at),
      isSeen: box.width > 0 && box.height > 0,
    };
  },

  /** Controls that have not had the focus since it was followed. */
  findUnvisited() {
    const isGroupVisited = (one) =>
      one.type === "radio" && document.querySelector(`input[type=radio][name="${one.name}"][data-visited]`);
    return [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
      .filter((one) => !one.disabled && one.tabIndex >= 0 && !("visited" in one.dataset) && !isGroupVisited(one))
      .filter((one) => one.checkVisibility({ visibilityProperty: true }))
      .map((one) => one.outerHTML.slice(0, 120));
  },
})
