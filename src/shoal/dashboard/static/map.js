// The map: the stream's picture on a canvas, with filters in the address, a pane that tells the card, and the keyboard.

import { arrange, boxOf, cardAt, cardFrom, Painter } from "./map_canvas.js";
import { attention, BROKEN, MapModel, matching, MISSING, STALE } from "./map_model.js";
import { clock, element, mib, percent, since } from "./words.js";

// Lines of each kind that are told while no card is looked at.
const SHOWN = 5;

export class MapView {
  constructor(root) {
    this.root = root;
    this.scroll = root.querySelector(".map-scroll");
    this.canvas = root.querySelector("canvas");
    this.space = root.querySelector(".map-space");
    this.empty = root.querySelector(".map-empty");
    this.detail = root.querySelector(".map-detail");
    this.said = root.querySelector("[role=status]");
    this.form = document.getElementById("map-filters");
    this.found = document.getElementById("map-found");
    this.model = new MapModel();
    this.painter = new Painter(this.canvas);
    this.asked = {};
    this.focus = null;
    this.hover = null;
    this.due = 0;
    this.version = 0;
    this.listen();
    this.read();
  }

  listen() {
    window.addEventListener("resize", () => this.changed());
    new ResizeObserver(() => this.draw()).observe(this.scroll);
    this.scroll.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("pointermove", (event) => this.over(event));
    this.canvas.addEventListener("pointerleave", () => this.setHover(null));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("dblclick", () => this.open());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => {
      if (!this.focus) this.setFocus(cardFrom(this.layout, null, "Home"));
    });
    document.addEventListener("shoal:theme", () => {
      this.painter.theme();
      this.draw();
    });
    this.form.addEventListener("input", () => this.read());
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  // Filters are the form's, and stand in the address, so that a link shows the same.
  read() {
    const data = new FormData(this.form);
    this.asked = { search: data.get("search") ?? "", show: data.get("show") ?? "", size: data.get("size") ?? "" };
    this.address();
    this.changed();
  }

  address() {
    const query = new URLSearchParams(window.location.search);
    const card = this.focus ? this.focus.uuid : query.get("card");
    for (const [name, value] of Object.entries({ ...this.asked, card })) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    history.replaceState(history.state, "", text ? `?${text}` : window.location.pathname);
  }

  snapshot(document) {
    this.model.snapshot(document);
    this.changed();
    const wanted = new URLSearchParams(window.location.search).get("card");
    if (wanted && !this.focus) this.setFocus(this.find((card) => card.uuid === wanted), { quiet: true });
  }

  delta(document) {
    this.model.delta(document);
    this.changed();
  }

  find(test) {
    for (const node of this.model.nodes) {
      const card = node.cards.find(test);
      if (card) return card;
    }
    return null;
  }

  // The picture, the filters or the room changed: where things stand is worked out anew.
  changed() {
    const width = this.scroll.clientWidth;
    const height = this.room();
    const match = matching(this.model, this.asked);
    this.cards = match.cards;
    this.version += 1;
    this.layout = arrange(match.nodes, width, height, this.asked.size);
    this.space.style.height = `${Math.max(this.layout.height, 1)}px`;
    this.scroll.style.height = `${Math.max(160, Math.min(height, this.layout.height))}px`;
    this.tellFound(match);
    this.focus = this.now(this.focus);
    this.hover = this.now(this.hover);
    this.tell(this.hover ?? this.focus);
    this.draw();
  }

  // How high the map may be: what the window leaves, and never so little that nothing is seen of it.
  room() {
    const above = this.scroll.getBoundingClientRect().top + window.scrollY;
    return Math.max(380, window.innerHeight - above - 84);
  }

  // The same card in the newest picture.
  now(card) {
    const node = card ? this.model.byName.get(card.node.name) : null;
    return node?.cards.find((one) => one.index === card.index && one.uuid === card.uuid) ?? null;
  }

  tellFound({ nodes, cards }) {
    const known = this.model.number !== null;
    this.empty.hidden = nodes.length > 0;
    if (!known) this.empty.textContent = "Waiting for the first picture …";
    else if (this.model.nodes.length === 0) this.empty.textContent = "No node with cards that you may see.";
    else this.empty.textContent = "No card matches. Clear the search or show all.";
    const all = nodes.reduce((sum, node) => sum + node.cards.length, 0);
    this.found.textContent = known ? `${cards ? cards.size : all} cards on ${nodes.length} nodes` : "";
  }

  draw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.painter.draw(this.layout, {
        version: this.version,
        top: this.scroll.scrollTop,
        width: this.scroll.clientWidth,
        height: this.scroll.clientHeight,
        found: this.cards,
        focus: this.focus,
        hover: this.hover,
      });
      this.root.dataset.drawn = String(this.model.number);
    });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return cardAt(this.layout, event.clientX - box.left, event.clientY - box.top + this.scroll.scrollTop);
  }

  over(event) {
    if (event.pointerType === "touch") return;
    const card = this.place(event);
    this.canvas.style.cursor = card ? "pointer" : "default";
    this.setHover(card);
  }

  setHover(card) {
    if (card === this.hover) return;
    this.hover = card;
    this.tell(card ?? this.focus);
    this.draw();
  }

  click(event) {
    const card = this.place(event);
    if (card) this.setFocus(card, { quiet: true });
  }

  setFocus(card, { quiet = false } = {}) {
    this.focus = card;
    this.tell(card);
    if (card && !quiet) this.said.textContent = this.sentence(card);
    const box = card ? boxOf(this.layout, card) : null;
    if (box) {
      const { scrollTop, clientHeight } = this.scroll;
      if (box.y < scrollTop + 30) this.scroll.scrollTop = box.y - 30;
      else if (box.y + box.height > scrollTop + clientHeight - 10) this.scroll.scrollTop = box.y - clientHeight + 60;
    }
    this.address();
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") {
      event.preventDefault();
      this.open();
    } else if (event.key === "n" && this.focus) {
      window.location.assign(`/nodes/${encodeURIComponent(this.focus.node.name)}`);
    } else if (event.key === "Escape") {
      this.setFocus(null);
    } else {
      const card = cardFrom(this.layout, this.focus, event.key);
      if (!card) return;
      event.preventDefault();
      this.setFocus(card);
    }
  }

  open() {
    if (this.focus?.uuid) window.location.assign(`/cards/${encodeURIComponent(this.focus.uuid)}`);
    else if (this.focus) window.location.assign(`/nodes/${encodeURIComponent(this.focus.node.name)}`);
  }

  sentence(card) {
    const model = this.model.models[card.model] ?? "";
    const pods = card.shares.map((share) => this.model.podName(share.pod)).join(", ") || "no pods";
    return (
      `${card.node.name}, card ${card.index}, ${model}: requested ${mib(card.requested)}, ` +
      `used ${mib(card.used)}, of ${mib(card.total)}; ${pods}`
    );
  }

  tell(card) {
    if (!card) {
      this.detail.dataset.card = "";
      this.detail.replaceChildren(...this.overview());
      return;
    }
    this.detail.dataset.card = card.uuid ?? "";
    this.detail.replaceChildren(...this.detailOf(card));
  }

  // While no card is looked at: what somebody should look at.
  overview() {
    const found = attention(this.model);
    const parts = [element("h2", {}, "Worth a look")];
    const list = (title, items, more, line) => {
      if (!items.length) return;
      const rows = items.slice(0, SHOWN).map((item) => element("li", {}, ...line(item)));
      const rest = items.length > SHOWN ? element("a", { href: more }, `all ${items.length}`) : null;
      parts.push(element("h3", {}, `${title} · ${items.length}`), element("ul", {}, ...rows), ...(rest ? [rest] : []));
    };
    list("Waiting for cards", found.waiting, "/queue", ({ pod }) => [this.podLink(pod)]);
    list("Used beyond the request", found.over, "/?show=over", ({ card, pod, amount }) => [
      this.podLink(pod), element("span", { class: "amounts state over" }, mib(amount)),
      element("span", { class: "note muted small" }, "on ", cardLink(card)),
    ]);
    list("Used by no pod", found.unattributed, "/?show=unattributed", ({ card, amount }) => [
      cardLink(card), element("span", { class: "amounts" }, mib(amount)),
    ]);
    list("Broken", found.broken, "/?show=broken", ({ card }) => [cardLink(card)]);
    if (parts.length === 1) parts.push(element("p", { class: "muted" }, "Nothing stands out."));
    const hint = "Point at a card, or move to one with the arrow keys, to see who has it.";
    return [...parts, element("p", { class: "hint" }, hint)];
  }

  podLink(place) {
    const pod = this.model.pods[place];
    if (!pod) return element("span", { class: "muted" }, this.model.podName(place));
    const href = `/pods/${encodeURIComponent(pod[0])}/${encodeURIComponent(pod[1])}`;
    return element("a", { href }, `${pod[0]}/${pod[1]}`);
  }

  detailOf(card) {
    const { node } = card;
    const nodeLink = element("a", { href: `/nodes/${encodeURIComponent(node.name)}` }, node.name);
    const own = element("a", { href: `/cards/${encodeURIComponent(card.uuid)}` }, `Card ${card.index}`);
    const facts = element("dl", { class: "facts" });
    const fact = (name, ...value) => facts.append(element("dt", {}, name), element("dd", {}, ...value));
    fact("requested", `${mib(card.requested)} of ${mib(card.total)}`);
    fact("used", amount(card.used, node));
    if (card.unattributed) fact("of no pod", mib(card.unattributed));
    fact("utilisation", card.utilisation === null ? noData(node) : percent(card.utilisation));
    return [
      element("h2", {}, own, " of ", nodeLink),
      element("p", { class: "muted" }, this.model.models[card.model] || "model not known"),
      ...marks(card),
      facts,
      this.shares(card),
    ];
  }

  shares(card) {
    const list = element("ul", { "aria-label": "pods" });
    for (const share of card.shares) {
      const name = this.podLink(share.pod);
      const amounts = element("span", { class: "amounts" }, `${mib(share.requested)} · ${mib(share.used)}`);
      const over = share.used !== null && share.used > share.requested;
      const note = over
        ? element("span", { class: "note state over" }, `${mib(share.used - share.requested)} more than requested`)
        : null;
      list.append(element("li", {}, name, amounts, ...(note ? [note] : [])));
    }
    if (!card.shares.length) list.append(element("li", { class: "muted" }, card.exclusive ? "held whole" : "no pods: free"));
    return list;
  }
}

function cardLink(card) {
  return element("a", { href: `/cards/${encodeURIComponent(card.uuid)}` }, `${card.node.name} · ${card.index}`);
}

function amount(value, node) {
  if (value === null) return noData(node);
  if (node.measured !== STALE) return mib(value);
  return element("span", { class: "old" }, `${mib(value)}, stale since ${clock(node.since)}`);
}

function noData(node) {
  const why = node.measured === MISSING ? "no collector answers on this node" : "the card does not tell";
  return element("span", { class: "nodata", title: why }, "no data");
}

function marks(card) {
  const said = [];
  if (card.health === BROKEN) said.push(element("p", { class: "state bad" }, "broken"));
  if (!card.node.ready) said.push(element("p", { class: "state bad" }, "its node is not ready"));
  if (card.node.cordoned) said.push(element("p", { class: "state none" }, "its node is cordoned"));
  if (card.node.measured === STALE) {
    said.push(element("p", { class: "state stale" }, `stale for ${since(card.node.since)}`));
  }
  return said;
}
